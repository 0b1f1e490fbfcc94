"""Queues for operators: list, pause, configure, purge (OJS admin API §6)."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from ... import engine
from ...http.parameters import QueueSearch
from ...http.request import Request
from ...models import Queue
from ...record import counts, dashboard
from ...record.counts import Pace
from ...spec.operator_requests import Reason
from ...spec.timestamps import format_timestamp
from ...store import clock
from ...store.database import atomic
from ..queue_ops import QueueOperationsViewSet, checked, found, pause_document
from ..queues import full_document
from .base import AdminViewSet, reason_of
from .documents import moment
from .paging import page


class AdminQueueViewSet(AdminViewSet, QueueOperationsViewSet):
    """`/ojs/v1/admin/queues`: the verbs of the data plane, with the scopes of operators."""

    resource = "queues"
    queries = {"list": QueueSearch}

    def list(self, request: Request) -> Response:
        """Every queue, with its depth and throughput (§6.1)."""
        rows = Queue.objects.order_by("name")
        parameters = request.query_params
        wanted = QueueSearch.state.read(parameters)
        if wanted:
            paused = Queue.objects.paused().values("pk")
            rows = rows.filter(pk__in=paused) if wanted == "paused" else rows.exclude(pk__in=paused)
            if wanted != "paused":
                rows = rows.filter(is_draining=wanted == "draining")
        found, pagination = page(parameters, rows)
        names = [queue.pk for queue in found]
        states, paces = counts.by_queue(names), counts.paces(names)
        items = [
            full_document(queue) | _figures(states[queue.pk], paces.get(queue.pk, Pace()))
            for queue in found
        ]
        return Response({"items": items, "pagination": pagination})

    def retrieve(self, request: Request, name: str) -> Response:
        """One queue with its configuration (§6.2)."""
        queue = found(checked(name))
        states, paces = counts.by_queue([name]), counts.paces([name])
        document = full_document(queue) | _figures(states[name], paces.get(name, Pace()))
        document["configuration"] = _with_plain_rate(document["configuration"])
        waiting = dashboard.depths([name])[name].waiting_since
        return Response(
            document
            | {
                "queue": full_document(queue),
                "oldest_available_at": moment(waiting),
                "pause": pause_document(queue),
            }
        )

    def resume(self, request: Request, name: str) -> Response:
        """Hand out its jobs again (§6.4)."""
        reason = reason_of(self.read(Reason))
        with atomic():
            queue = engine.resume(checked(name), resumed_by=self.caller.name)
            self.audit("resume_queue", [queue], reason=reason)
        return Response(self._state(queue) | {"resumed_at": format_timestamp(clock.now())})


def _figures(states: dict[str, int], pace: Pace) -> dict[str, Any]:
    return {"counts": states, "throughput": pace.throughput(), "latency_ms": pace.latency()}


def _with_plain_rate(configuration: dict[str, Any]) -> dict[str, Any]:
    """Add a simple rate limit in the format of this document, `{limit, period}` (§6.2)."""
    limit = configuration.get("rate_limit") or {}
    if not limit.get("rate"):
        return configuration
    return configuration | {"rate_limit": limit["rate"] | limit}
