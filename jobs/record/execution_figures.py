"""Statistics of the execution history, read from the roll-ups (OJS execution history §7.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from ..models import QueueRollup, Rollup, TypeRollup
from ..spec.timestamps import format_timestamp
from .histogram import add, percentile
from .rollup import HOUR, MINUTE, floor

WIDTHS = {"minute": MINUTE, "hour": HOUR, "day": 24 * HOUR}
SUMS = {
    "job.created": "enqueued",
    "job.attempt_completed": "completed",
    "job.attempt_failed": "failed",
    "job.discarded": "discarded",
}
"""Type of an entry → the column of a roll-up that counts it."""
SHARE = 0.95


def buckets(
    start: datetime,
    end: datetime,
    width: timedelta,
    *,
    queues: Sequence[str] = (),
    job_types: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return the figures of each period in which anything happened, oldest first.

    Args:
        queues, job_types: one of these, or neither.
    """
    rows: Any = Rollup.objects.all()
    if queues:
        rows = QueueRollup.objects.filter(queue__in=list(queues))
    elif job_types:
        rows = TypeRollup.objects.filter(type__in=list(job_types))
    # Days are sums of hours.
    resolution = 60 if width < HOUR else 3600
    within = rows.filter(resolution=resolution, start__gte=floor(start, width), start__lt=end)
    found: dict[datetime, list[Any]] = {}
    for row in within.order_by("start"):
        found.setdefault(floor(row.start, width), []).append(row)
    sums = ((moment, _bucket(moment, rolled)) for moment, rolled in found.items())
    return [bucket for _, bucket in sums if any(bucket["events"].values())]


def _bucket(moment: datetime, rows: Sequence[Any]) -> dict[str, Any]:
    runs: dict[str, int] = {}
    for row in rows:
        add(runs, row.runs)
    longest = percentile(runs, SHARE)
    return {
        "timestamp": format_timestamp(moment),
        "events": {
            kind: sum(getattr(row, column) for row in rows) for kind, column in SUMS.items()
        },
        "avg_duration_ms": _mean(runs),
        "p95_duration_ms": None if longest is None else round(longest / timedelta(milliseconds=1)),
    }


def _mean(histogram: Mapping[str, int]) -> int | None:
    """Return the mean in milliseconds, to a fifth: that of the middles of the buckets."""
    jobs = sum(histogram.values())
    if not jobs:
        return None
    middles = (
        count * (percentile({bucket: count}, 1) or timedelta())
        for bucket, count in histogram.items()
        if count
    )
    return round(sum(middles, timedelta()) / jobs / timedelta(milliseconds=1))
