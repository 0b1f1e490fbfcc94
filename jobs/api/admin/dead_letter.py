"""Dead letter for operators (OJS admin API §11; dead letter §9, §10)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import Count, Max, Min, OuterRef, Subquery
from rest_framework.response import Response

from ... import engine
from ...access import Binding
from ...conf import ojs_settings
from ...http.dialects import purge_reply
from ...http.parameters import DeadLetterQuery, JobSearch
from ...http.request import Request
from ...models import DeadJob, JobError
from ...spec.durations import format_duration
from ...spec.fields import Document
from ...spec.members import OlderThan, Text
from ...spec.operator_requests import DeadFilter, PurgeDead, RetryDeadFor, read_override
from ...spec.timestamps import format_timestamp
from ...store import clock
from ...store.database import atomic
from ..jobs import errors_by_job, parse_id
from ..queues import list_dead
from .base import AdminViewSet, confirmed, reason_of
from .bulk import read_filter
from .documents import COLUMNS, line, moment, reply
from .paging import page
from .search import filtered, moment_of, of_type, ordered

NEWEST = 10_000
"""Jobs whose errors are counted separately; by default `DEAD_LETTER_MAX` keeps no more."""
TYPES = 100
MOST = 10_000
BATCH = 1000
AGE = OlderThan()
PURGED = [member for member in DeadFilter.members.values() if isinstance(member, Text)]


class AdminDeadLetterViewSet(AdminViewSet):
    """`/ojs/v1/admin/dead-letter`"""

    resource = "dead-letter"
    queries = {"list": JobSearch, "purge": DeadFilter}

    def list(self, request: Request) -> Response:
        """Discarded jobs that await an operator's decision, with their last error (§11.1)."""
        parameters = request.query_params
        project = self.caller.project
        dead = filtered(self.scoped(DeadJob.objects.only(*COLUMNS)), parameters, project)
        rows, by_id = ordered(dead, parameters)
        jobs, pagination = page(parameters, rows, by_id=by_id)
        errors = errors_by_job([job.pk for job in jobs])
        hidden = self.is_redacted
        items = [
            line(job, errors.get(job.pk, ()), is_redacted=hidden, project=project) for job in jobs
        ]
        return Response({"items": items, "pagination": pagination})

    def retrieve(self, request: Request, job_id: str) -> Response:
        job = DeadJob.objects.filter(pk=parse_id(job_id)).first()
        if job is None:
            raise engine.not_dead(job_id)
        return Response(reply(job, is_redacted=self.is_redacted, project=self.caller.project))

    def retry(self, request: Request, job_id: str) -> Response:
        """Enqueue it again with fresh attempts (§11.2)."""
        body = self.read(RetryDeadFor)
        reason, override = reason_of(body), read_override(body)
        with atomic():
            job = engine.retry_one(parse_id(job_id), override)
            self.audit("retry_job", [job], reason=reason)
        extra = {"re_enqueued_at": format_timestamp(job.enqueued_at)}
        return Response(
            reply(job, is_redacted=self.is_redacted, project=self.caller.project, **extra)
        )

    def destroy(self, request: Request, job_id: str) -> Response:
        """Delete one job permanently (dead letter §10)."""
        wanted = parse_id(job_id)
        with atomic():
            if not engine.delete_dead([wanted]):
                raise engine.not_dead(job_id)
            self.audit("discard_job", kind="job", count=1, selection={"ids": [str(wanted)]})
        return Response(status=204)

    def purge(self, request: Request) -> Response:
        """Delete the dead letter, or the part of it that a filter selects (§11.3).

        A limited number per request; `has_more` means that there are more to delete. Jobs that
        something still asks for are left alone, and not counted.
        """
        body, parameters = self.read(PurgeDead), self.request.query_params
        confirmed(body, "deleting the dead letter is final.")
        dead, now = self.scoped(engine.deletable(DeadJob.objects.all())), clock.now()
        chosen: dict[str, str] = {}
        for narrowing in purge_filters(body, parameters):
            dead = filtered(dead, narrowing, self.caller.project, time="finished_at")
            if (before := moment_of(narrowing, "older_than", now, kind=AGE)) is not None:
                dead = dead.filter(finished_at__lt=before)
                narrowing["older_than"] = format_timestamp(before)
            chosen |= narrowing
        purged, rest = 0, dead
        while purged < MOST:
            with atomic():
                ids = list(rest.order_by("pk").values_list("pk", flat=True)[:BATCH])
                # By then another job may wait for one of them, or one may have been retried.
                free = engine.lock_deletable(dead.filter(pk__in=ids))
                purged += engine.delete_dead(free)
            if not ids:
                break
            # What cannot be deleted stays behind, and is not counted as more.
            rest = dead.filter(pk__gt=ids[-1])
        self.audit(
            "discard_job",
            kind="job",
            count=purged,
            selection={"filter": chosen},
            reason=reason_of(body),
        )
        document = {"purged_count": purged, "has_more": rest.exists()}
        return Response(purge_reply(request.method, document))

    def stats(self, request: Request) -> Response:
        """The number of jobs by queue and by error (dead letter §10.1)."""
        dead = self.scoped(DeadJob.objects.order_by())
        by_queue = dict(dead.values_list("queue").annotate(jobs=Count("pk")))
        newest = dead.order_by("-finished_at").values("pk")[:NEWEST]
        last = JobError.objects.filter(job=OuterRef("pk")).order_by("-id").values("type")[:1]
        errors = dead.filter(pk__in=newest).annotate(error=Subquery(last)).values_list("error")
        by_error = errors.annotate(jobs=Count("pk")).order_by("-jobs")[:TYPES]
        span = dead.aggregate(oldest=Min("finished_at"), newest=Max("finished_at"))
        return Response(
            {
                "total": sum(by_queue.values()),
                "by_queue": by_queue,
                "by_error_type": {error or "Unknown": jobs for error, jobs in by_error},
                "oldest_at": moment(span["oldest"]),
                "newest_at": moment(span["newest"]),
                "retention": {
                    "max_age": format_duration(ojs_settings.DEAD_LETTER_RETENTION),
                    "max_count": ojs_settings.DEAD_LETTER_MAX,
                },
            }
        )


def purge_filters(body: Document, parameters: Any) -> Iterator[dict[str, str]]:
    """All filters of a purge; only jobs that match every one of them are deleted.

    Filters may be members of the body, of its `filter` as for a retry (dead letter §10), or
    query parameters as for a list. A filter that was overlooked would delete more than was meant.

    Raises:
        InvalidRequest: a filter is invalid.
    """
    for source in (parameters, body):
        yield {one.name: value for one in PURGED if (value := one.read(source))}
    wanted = PurgeDead.filter.read(body)
    if wanted is not None:
        yield read_filter(wanted)


class WholeDeadLetterViewSet(AdminDeadLetterViewSet):
    """`/ojs/v1/dead-letter` itself: listed as in the HTTP binding, purged as in the Admin API (OJS
    HTTP §12; dead letter §10)."""

    binding = Binding.OJS
    queries = {"list": DeadLetterQuery, "purge": DeadFilter}

    def list(self, request: Request) -> Response:
        """Newest first, with complete jobs, filtered by the parameters of §9.1."""
        dead = narrowed(self.scoped(DeadJob.objects.all()), request.query_params)
        project = self.caller.project
        return list_dead(request.query_params, dead, is_redacted=self.is_redacted, project=project)


def narrowed(dead: Any, parameters: Any) -> Any:
    """Filter by `queue`, `type`, `error_type`, and by when the job was discarded (§9.1).

    Raises:
        InvalidRequest: a parameter is invalid.
    """
    if parameters.get("queue"):
        dead = dead.filter(queue=parameters["queue"])
    if parameters.get("type"):
        dead = of_type(dead, parameters["type"])
    if parameters.get("error_type"):
        dead = engine.failed_with(dead, parameters["error_type"])
    now = clock.now()
    for name, lookup in (("since", "finished_at__gte"), ("until", "finished_at__lt")):
        if (wanted := moment_of(parameters, name, now)) is not None:
            dead = dead.filter(**{lookup: wanted})
    return dead
