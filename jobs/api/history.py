"""Execution history over HTTP (OJS execution history §7)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rest_framework.response import Response

from .. import engine
from ..access import Binding
from ..access.audit import of_caller, record_action
from ..errors import InvalidRequest, JobNotFound
from ..http.base import OJSViewSet
from ..http.paging import bad_cursor, decode_cursor, encode_cursor
from ..http.parameters import (
    ExecutionPurge,
    ExecutionQuery,
    ExecutionSearch,
    ExecutionStatistics,
)
from ..http.request import Request
from ..models import Event, Job
from ..record import execution, execution_figures, execution_search
from ..record.execution import TYPES, Reader
from ..spec.fields import missing
from ..spec.timestamps import format_timestamp
from ..store import clock
from ..store.database import atomic
from .admin.search import moment_of, period_of
from .jobs import parse_id

MOST = 1000
"""Entries of a page of the search."""
BUCKETS = 3000
CLAMPED = "X-OJS-Limit-Clamped"


class HistoryViewSet(OJSViewSet):
    """`/ojs/v1/history`, `/ojs/v1/jobs/{id}/history` and `/ojs/v1/jobs/{id}/lineage`"""

    resource = "history"
    queries = {
        "of_job": ExecutionQuery,
        "search": ExecutionSearch,
        "statistics": ExecutionStatistics,
        "purge": ExecutionPurge,
    }

    @property
    def reader(self) -> Reader:
        return Reader(self.caller.project, self.is_redacted)

    def of_job(self, request: Request, job_id: str) -> Response:
        """What happened to a job, oldest first, also after it was deleted (§7.1)."""
        key, parameters = parse_id(job_id), request.query_params
        cursor = parameters.get("cursor")
        page = execution.history_of(
            key,
            limit=ExecutionQuery.limit.read(parameters),
            after=_numbers(cursor, 2) if cursor else None,
            reader=self.reader,
        )
        if not page.entries and not Job.objects.filter(pk=key).exists():
            self._check_is_known(job_id, key)
        following = encode_cursor(*map(str, page.next)) if page.next else None
        return Response({"events": page.entries, "next_cursor": following, "total": page.total})

    def _check_is_known(self, job_id: str, key: Any) -> None:
        """
        Raises:
            JobNotFound: neither is there such a job, nor does the record mention it.
        """
        if not Event.objects.filter(subject=str(key)).exclude(job_type="").exists():
            raise JobNotFound(job_id)

    def lineage(self, request: Request, job_id: str) -> Response:
        """The parent, the root and the descendants of a job (§7.2)."""
        return Response(engine.find_lineage(parse_id(job_id), self.caller.project))

    def purge_job(self, request: Request, job_id: str) -> Response:
        """Delete the history of a job (§7.3)."""
        key = parse_id(job_id)
        if not Job.objects.filter(pk=key).exists():
            self._check_is_known(job_id, key)
        with atomic():
            purged = engine.history.purge_history(key)
            self._trace(purged.entries, {"ids": [str(key)]})
        return Response({"deleted": True, "events_deleted": purged.entries})

    def search(self, request: Request) -> Response:
        """Entries of the history of all jobs, newest first (§7.4)."""
        parameters = request.query_params
        limit = asked = ExecutionSearch.limit.read(parameters)
        limit = min(limit, MOST)
        cursor = parameters.get("cursor")
        found = execution_search.search(
            execution_search.Wanted(
                query=parameters.get("query") or "",
                start=_moment(parameters, "start"),
                end=_moment(parameters, "end"),
                event_types=_types(parameters),
                queues=_several(parameters, "queues"),
                job_types=_several(parameters, "job_types"),
                actor_type=ExecutionSearch.actor_type.read(parameters) or "",
            ),
            limit=limit,
            below=execution_search.Place(*_numbers(cursor, 3)) if cursor else None,
            reader=self.reader,
        )
        response = Response(
            {
                "events": found.entries,
                "next_cursor": encode_cursor(*map(str, found.next)) if found.next else None,
                "total_estimate": found.estimate,
                "query_time_ms": found.milliseconds,
            }
        )
        if asked > limit:
            response[CLAMPED] = "true"
        return response

    def statistics(self, request: Request) -> Response:
        """How many entries there were of each type, period by period (§7.5)."""
        parameters = request.query_params
        width = execution_figures.WIDTHS[ExecutionStatistics.group_by.read(parameters)]
        start, end = period_of(parameters, "start", "end", execution_figures.WIDTHS["day"])
        if (end - start) / width > BUCKETS:
            raise InvalidRequest(
                f"That is more than {BUCKETS} periods: ask for longer ones or a shorter range.",
                field="start",
            )
        queues, job_types = (_several(parameters, name) for name in ("queues", "job_types"))
        if queues and job_types:
            raise InvalidRequest(
                "Figures are kept by queue or by type: give one of 'queues' and 'job_types'.",
                field="job_types",
            )
        found = execution_figures.buckets(start, end, width, queues=queues, job_types=job_types)
        return Response({"buckets": found})

    def purge(self, request: Request) -> Response:
        """Delete the history of all jobs before a moment (§7.6)."""
        parameters = request.query_params
        ExecutionPurge.before.read(parameters)
        before = _moment(parameters, "before")
        if before is None:
            raise missing("before")
        queues, event_types = _several(parameters, "queues"), _types(parameters)
        purged = engine.history.purge_before(before, queues=queues, event_types=event_types)
        chosen: dict[str, Any] = {"before": format_timestamp(before)}
        chosen |= {"queues": queues} if queues else {}
        chosen |= {"event_types": event_types} if event_types else {}
        self._trace(purged.entries, chosen)
        return Response(
            {
                "purged": not purged.has_more,
                "events_purged": purged.entries,
                "async": False,
                "has_more": purged.has_more,
            }
        )

    def _trace(self, count: int, chosen: dict[str, Any]) -> None:
        actor = of_caller(self.caller, self.request)
        record_action(actor, "purge_history", kind="event", count=count, selection=chosen)


class AdminHistoryViewSet(HistoryViewSet):
    """The same below `/ojs/v1/admin`, for operators, redacted unless their key sees arguments."""

    binding = Binding.ADMIN
    resource = "execution"


def _moment(parameters: Any, name: str) -> datetime | None:
    return moment_of(parameters, name, clock.now())


def _several(parameters: Any, name: str) -> list[str]:
    return [item.strip() for item in (parameters.get(name) or "").split(",") if item.strip()]


def _types(parameters: Any) -> Sequence[str]:
    """
    Raises:
        InvalidRequest: the history has no entries of such a type.
    """
    wanted = _several(parameters, "event_types")
    for name in wanted:
        if name not in TYPES:
            raise InvalidRequest(
                f"There are no entries of the type {name!r}; there are {', '.join(TYPES)}.",
                field="event_types",
            )
    return wanted


def _numbers(cursor: str, parts: int) -> Any:
    """
    Raises:
        InvalidRequest: this is not a cursor of this server.
    """
    keys = decode_cursor(cursor, parts)
    if not all(key.isascii() and key.isdecimal() and len(key) < 19 for key in keys):
        raise bad_cursor(cursor)
    return tuple(map(int, keys))
