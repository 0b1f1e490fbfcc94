"""History for charts, read from the roll-ups (OJS admin API §10.2)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from rest_framework.response import Response

from ...errors import InvalidRequest
from ...http.parameters import HistoryQuery
from ...http.request import Request
from ...models import QueueRollup, Rollup
from ...record.histogram import add, percentile
from ...record.rollup import HOUR, MINUTE, floor
from ...spec.timestamps import format_timestamp
from ...store import clock
from .base import AdminViewSet
from .search import period_of

PERIODS = {"1m": MINUTE, "5m": 5 * MINUTE, "1h": HOUR, "1d": 24 * HOUR}
SINCE = HOUR
MOST = 3000
"""Points per response: two days by the minute; by the hour, more than is kept."""


class HistoryViewSet(AdminViewSet):
    """`/ojs/v1/admin/stats/history`"""

    resource = "history"
    queries = {"retrieve": HistoryQuery}

    def retrieve(self, request: Request) -> Response:
        """One point per period, oldest first, without the current, incomplete minute."""
        parameters = request.query_params
        period = HistoryQuery.period.read(parameters)
        width = PERIODS[period]
        since, until = period_of(parameters, "since", "until", SINCE)
        start = floor(since, width)
        if (until - start) / width > MOST:
            raise InvalidRequest(
                f"That is more than {MOST} points: ask for a longer period or a shorter range.",
                field="since",
            )
        # Days are sums of hours, an hour is one; anything shorter is a sum of minutes.
        resolution = 3600 if width >= HOUR else 60
        within = {
            "resolution": resolution,
            "start__gte": start,
            "start__lt": min(until, floor(clock.now(), MINUTE)),
        }
        known: Any = Rollup.objects.filter(**within).order_by("start")
        points: dict[datetime, list[Any]] = {}
        queue = parameters.get("queue")
        if queue:
            # If the server recorded this period, a queue without a row did nothing in it.
            for moment in known.values_list("start", flat=True):
                points.setdefault(floor(moment, width), [])
            known = QueueRollup.objects.filter(queue=queue, **within).order_by("start")
        for rollup in known:
            points.setdefault(floor(rollup.start, width), []).append(rollup)
        data = [point(moment, points[moment], width) for moment in sorted(points)]
        return Response({"period": period, "queue": queue or None, "data": data})


def point(moment: datetime, rollups: Iterable[Any], width: timedelta) -> dict[str, Any]:
    sums = dict.fromkeys(("completed", "failed", "enqueued", "discarded"), 0)
    waits: dict[str, int] = {}
    runs: dict[str, int] = {}
    for rollup in rollups:
        for name in sums:
            sums[name] += getattr(rollup, name)
        add(waits, rollup.waits)
        add(runs, rollup.runs)
    return {
        "timestamp": format_timestamp(moment),
        # Executions that ended, successfully or not.
        "processed": sums["completed"] + sums["failed"],
        **sums,
        "latency_p50_ms": _milliseconds(waits, 0.5),
        "latency_p99_ms": _milliseconds(waits, 0.99),
        "run_p50_ms": _milliseconds(runs, 0.5),
        "run_p99_ms": _milliseconds(runs, 0.99),
    }


def _milliseconds(histogram: dict[str, int], share: float) -> int | None:
    found = percentile(histogram, share)
    return None if found is None else round(found / timedelta(milliseconds=1))
