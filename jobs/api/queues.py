"""Queues, dead letter and events over HTTP (OJS HTTP §11, §12; events §6.4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.http import HttpResponse
from rest_framework.response import Response

from .. import engine
from ..access.audit import of_caller, record_action
from ..access.projects import of_worker, scope_to
from ..access.redaction import redact_job
from ..errors import InvalidRequest
from ..http.base import OJSViewSet
from ..http.dialects import is_preferred, job_reply
from ..http.paging import bad_cursor, page
from ..http.parameters import EventQuery, Page
from ..http.renderers import dumps
from ..http.request import Request
from ..models import DeadJob, Job, Queue
from ..record import events
from ..spec import cloudevents, queue_config
from ..spec.envelope import envelope
from ..spec.identifiers import parse_uuid
from ..spec.operator_requests import NewQueue, RetryDead, read_new_queue, read_override
from ..spec.timestamps import format_timestamp, parse_timestamp
from ..store import standby
from ..store.database import atomic
from .admin.paging import page as admin_page
from .admin.paging import page_of_list
from .jobs import errors_by_job, full_envelope, parse_id

MAX_DEAD = 100
"""Dead letter jobs per page (OJS HTTP §12.1)."""
LOOKED_AT = 2000
"""Events read for one page of a project's events."""
LOST = (
    "The '{name}' parameter is ahead of the record of events: was the database restored from an "
    "older backup? Begin again without a cursor; events may be repeated."
)


class QueueViewSet(OJSViewSet):
    """`/ojs/v1/queues`"""

    resource = "queues"
    queries = {"list": Page}

    def create(self, request: Request) -> Response:
        """Create a queue before its first job (queue configuration §9.2)."""
        body = self.read(NewQueue, required=True)
        name, config = read_new_queue(body)
        with atomic():
            queue = engine.queues.create(name, config)
            record_action(
                of_caller(self.caller, request),
                "add_queue",
                kind="queue",
                count=1,
                selection={"ids": [name], "config": config},
            )
        return Response(full_document(queue), status=201)

    def list(self, request: Request) -> Response:
        """Every queue that has been used (OJS HTTP §11.1)."""
        queues, pagination = page(
            request.query_params,
            Queue.objects.order_by("name"),
            keys=lambda queue: [queue.name],
            after=lambda rows, keys: rows.filter(name__gt=keys[0]),
            parts=1,
        )
        return Response(
            {"queues": [queue_document(queue) for queue in queues], "pagination": pagination}
        )


def queue_document(queue: Queue) -> dict[str, Any]:
    document = {
        "name": queue.name,
        "status": queue.status,
        "paused": queue.is_paused,
        "created_at": format_timestamp(queue.created_at),
    }
    if queue.is_paused and queue.paused_at is not None:
        document["paused_at"] = format_timestamp(queue.paused_at)
    return document


def full_document(queue: Queue) -> dict[str, Any]:
    """A queue and its configuration (queue configuration §9.3)."""
    config = queue_config.public(queue.config)
    if queue.concurrency is not None:
        config["concurrency"] = queue.concurrency
    document = queue_document(queue) | {"state": queue.status, "config": config}
    if queue.updated_at is not None:
        document["updated_at"] = format_timestamp(queue.updated_at)
    return document | {"configuration": config}


class DeadLetterViewSet(OJSViewSet):
    """`/ojs/v1/dead-letter`: the discarded jobs (OJS HTTP §12)."""

    resource = "dead-letter"

    def retrieve(self, request: Request, job_id: str) -> Response:
        job = DeadJob.objects.filter(pk=parse_id(job_id)).first()
        if job is None:
            raise engine.not_dead(job_id)
        return Response(job_reply(self._shown(full_envelope(job, self.caller.project))))

    def retry(self, request: Request, job_id: str) -> Response:
        """Enqueue it again with fresh attempts (OJS HTTP §12.2)."""
        override = read_override(self.read(RetryDead))
        with atomic():
            job = engine.retry_one(parse_id(job_id), override)
            record_action(of_caller(self.caller, request), "retry_job", [job])
        document = self._shown(full_envelope(job, self.caller.project))
        document |= {"re_enqueued_at": format_timestamp(job.enqueued_at)}
        return Response(job_reply(document))

    def destroy(self, request: Request, job_id: str) -> Response:
        """Delete it permanently (OJS HTTP §12.3)."""
        wanted = parse_id(job_id)
        with atomic():
            if not engine.delete_dead([wanted]):
                raise engine.not_dead(job_id)
            record_action(
                of_caller(self.caller, request),
                "discard_job",
                kind="job",
                count=1,
                selection={"ids": [str(wanted)]},
            )
        return Response({"deleted": True, "job_id": job_id})

    def _shown(self, document: dict[str, Any]) -> dict[str, Any]:
        return redact_job(document) if self.is_redacted else document


def list_dead(parameters: Any, dead: Any, *, is_redacted: bool, project: str) -> Response:
    """One page of the dead letter, newest first, for a key of `project`."""
    jobs, pagination = page(
        parameters,
        dead.order_by("-finished_at", "-pk"),
        keys=lambda job: [job.finished_at.isoformat(), str(job.pk)],
        after=_older_than,
        parts=2,
        most=MAX_DEAD,
    )
    history = errors_by_job([job.pk for job in jobs])
    documents = [envelope(job, history.get(job.pk, ()), project=project) for job in jobs]
    return Response(
        {
            "jobs": [redact_job(job) for job in documents] if is_redacted else documents,
            "pagination": pagination,
            "total": pagination["total"],
        }
    )


def _older_than(rows: Any, keys: list[str]) -> Any:
    finished, job_id = parse_timestamp(keys[0]), UUID(keys[1])
    return rows.filter(Q(finished_at__lt=finished) | Q(finished_at=finished, pk__lt=job_id))


class EventViewSet(OJSViewSet):
    """`/ojs/v1/events`: the record of events, in order, after a cursor (OJS events §6.4)."""

    resource = "events"
    queries = {"list": EventQuery}

    def list(self, request: Request) -> Response | HttpResponse:
        return standby.answer(lambda: self._page(request))

    def _page(self, request: Request) -> Response | HttpResponse:
        parameters, project = request.query_params, self.caller.project
        limit = EventQuery.limit.read(parameters)
        rows = events.settled()
        after = parameters.get("after") or parameters.get("cursor")
        name = "after" if parameters.get("after") else "cursor"
        cursor = None
        if EventQuery.page.read(parameters) or EventQuery.per_page.read(parameters):
            if after:
                raise InvalidRequest("Pages by number have no cursor.", field="page")
            return self._numbered(request, rows)
        if after:
            cursor = events.parse_cursor(after)
            if cursor is None:
                raise bad_cursor(after, name)
            rows = events.after(rows, cursor)
        rows = rows.order_by("id")
        if project:
            found, last, more = _of_project(rows, parameters, project, limit)
        else:
            found, last, more = _first(_filtered(rows, parameters, project), limit)
        if cursor and not last and events.is_lost(cursor):
            raise InvalidRequest(LOST.format(name=name), field=name)
        documents = events.event_documents(found, project=project)
        reached = events.cursor_of(last) if last else after
        return self._answer(request, documents, reached, has_more=more)

    def _numbered(self, request: Request, rows: Any) -> Response | HttpResponse:
        """A page by number, newest first, as the admin UI reads them."""
        parameters, project = request.query_params, self.caller.project
        rows = rows.order_by("-id")
        if project:
            own, _, more = _of_project(rows, parameters, project, LOOKED_AT)
            found, pagination = page_of_list(parameters, own)
            if more:
                pagination["total_is_minimum"] = True
        else:
            found, pagination = admin_page(parameters, _filtered(rows, parameters, project))
        # A cursor is an event here.
        pagination.pop("next_cursor", None)
        documents, more = events.event_documents(found, project=project), pagination["has_more"]
        newest = events.cursor_of(found[0]) if found else None
        shown = {"items": documents, "pagination": pagination}
        return self._answer(request, documents, newest, has_more=more, **shown)

    def _answer(
        self, request: Request, documents: Any, cursor: str | None, *, has_more: bool, **shown: Any
    ) -> Response | HttpResponse:
        if is_preferred(request._request, cloudevents.BATCHED):
            return self._batch(documents, cursor, has_more=has_more)
        return Response({"events": documents, "cursor": cursor, "has_more": has_more} | shown)

    @staticmethod
    def _batch(documents: Any, cursor: str | None, *, has_more: bool) -> HttpResponse:
        """The same events as CloudEvents in batched mode: an array has no place for the cursor."""
        found = [cloudevents.of_event(document) for document in documents]
        response = HttpResponse(dumps(found), content_type=cloudevents.BATCHED)
        response["OJS-Cursor"] = cursor or ""
        response["OJS-Has-More"] = "true" if has_more else "false"
        return response


def _first(rows: Any, limit: int) -> tuple[Any, Any, bool]:
    """The first events, the last of them, and whether there are more."""
    found = list(rows[: limit + 1])
    return found[:limit], found[:limit][-1] if found else None, len(found) > limit


def _of_project(rows: Any, parameters: Any, project: str, limit: int) -> tuple[Any, Any, bool]:
    """A page of the events of one project's jobs: those found, the last one read, and whether
    there are more.

    Events have no project. A fixed number of them is read, however few match; the next cursor
    continues after those. So a reader gets every event, and no request reads the whole record. How
    many are read does not depend on the filters, or the cursor would tell whether they match events
    of other projects.
    """
    if (own := _own_subjects(parameters, project)) is not None:
        of_them = rows.filter(subject__in=own).exclude(job_type="")
        return _first(_filtered(of_them, parameters, project), limit)
    looked_at = list(rows.only("pk")[:LOOKED_AT])
    if not looked_at:
        return [], None, False
    first, last = sorted([looked_at[0].pk, looked_at[-1].pk])
    matching = list(_filtered(rows.filter(pk__range=(first, last)), parameters, project))
    ids = {event.subject: parse_uuid(event.subject) for event in matching if event.job_type}
    keys = _own(project, ids.values())
    found = [event for event in matching if ids.get(event.subject) in keys]
    if len(found) > limit:
        return found[:limit], found[limit - 1], True
    return found, looked_at[-1], len(looked_at) == LOOKED_AT


def _own_subjects(parameters: Any, project: str) -> list[str] | None:
    """The project's jobs that a request for certain jobs names; None if it is for no certain ones.

    Their events are found by an index.
    """
    named = _named(parameters, "job_id") or _named(parameters, "subject")
    if not named or any(item.endswith("*") for item in named):
        return None
    ids = {item: parse_uuid(item) for item in named}
    keys = _own(project, ids.values())
    return [item for item, job_id in ids.items() if job_id in keys]


def _own(project: str, ids: Iterable[UUID | None]) -> set[UUID]:
    jobs = scope_to(Job.objects.filter(pk__in=filter(None, ids)), project)
    return set(jobs.values_list("pk", flat=True))


FILTERS = {
    "types": "type",
    "type": "type",
    "event_types": "type",
    "queues": "queue",
    "queue": "queue",
    "job_types": "job_type",
    "job_id": "subject",
    "subject": "subject",
    "worker_id": "worker_id",
}


def _filtered(rows: Any, parameters: Any, project: str) -> Any:
    """Narrow by the filters of OJS events §6.1; `job.*` matches a prefix."""
    for parameter, column in FILTERS.items():
        wanted = _named(parameters, parameter)
        if not wanted:
            continue
        choice = Q()
        for item in wanted:
            if column == "worker_id":
                choice |= of_worker(column, item, project)
            elif item.endswith("*"):
                choice |= Q(**{f"{column}__startswith": item[:-1]})
            else:
                choice |= Q(**{column: item})
        rows = rows.filter(choice)
    return rows


def _named(parameters: Any, name: str) -> list[str]:
    return [item for item in (parameters.get(name) or "").split(",") if item]
