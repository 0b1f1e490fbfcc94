"""Roll-ups of single queues, for the history of one queue (OJS admin API §10.2).

Part of each round of `rollup`. A minute in which a queue did nothing has no row, and of very many
queues only the busiest are kept: the table is bounded whatever queue names clients use.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, QuerySet
from django.db.models.functions import TruncMinute

from ..models import Job, JobError, QueueRollup
from ..spec.identifiers import first_uuid7
from ..spec.lifecycle import State
from .histogram import Bucket, added, put

MINUTE = timedelta(minutes=1)
MOST_QUEUES = 100
"""Queues of one minute that are kept separately."""
SUMMED = ("enqueued", "completed", "failed", "discarded", "waits", "runs")


def created(start: datetime, end: datetime) -> QuerySet[Job]:
    """Jobs created from `start` to `end`.

    Found by their ids, for only those are indexed. An id that a client made may contain another
    time: such a job is not counted.
    """
    first, last = (
        first_uuid7(round(moment.timestamp() * 1000)) for moment in (start - MINUTE, end + MINUTE)
    )
    jobs = Job.objects.filter(pk__gte=first, pk__lt=last)
    return jobs.filter(created_at__gte=start, created_at__lt=end)


def count(start: datetime, end: datetime) -> None:
    """Replace the roll-ups of each queue for the minutes from `start` to `end`."""
    found: dict[tuple[datetime, str], QueueRollup] = {}

    def of(minute: datetime, queue: str) -> QueueRollup:
        fresh = QueueRollup(resolution=60, start=minute, queue=queue, waits={}, runs={})
        return found.setdefault((minute, queue), fresh)

    finished = Job.objects.filter(finished_at__gte=start, finished_at__lt=end)
    completed = (
        finished.filter(state=State.COMPLETED)
        .order_by()
        .annotate(minute=TruncMinute("finished_at"), wait=Bucket("enqueued_at", "started_at"))
        .values("queue", "minute", "wait", run=Bucket("started_at", "finished_at"))
        .annotate(jobs=Count("pk"))
    )
    for row in completed:
        rollup = of(row["minute"], row["queue"])
        rollup.completed += row["jobs"]
        put(rollup.waits, row["wait"], row["jobs"])
        put(rollup.runs, row["run"], row["jobs"])
    errors = JobError.objects.filter(occurred_at__gte=start, occurred_at__lt=end)
    for name, rows, moment, queue in (
        ("enqueued", created(start, end), "created_at", "queue"),
        ("discarded", finished.filter(state=State.DISCARDED), "finished_at", "queue"),
        ("failed", errors, "occurred_at", "job__queue"),
    ):
        grouped = rows.order_by().annotate(minute=TruncMinute(moment)).values("minute", queue)
        for minute, key, jobs in grouped.annotate(n=Count("pk")).values_list("minute", queue, "n"):
            setattr(of(minute, key), name, jobs)
    QueueRollup.objects.filter(resolution=60, start__gte=start, start__lt=end).delete()
    QueueRollup.objects.bulk_create(_busiest(found.values()), batch_size=1000)
    _sum_hours(start, end)


def _busiest(rollups: Any) -> list[QueueRollup]:
    by_minute: dict[datetime, list[QueueRollup]] = defaultdict(list)
    for rollup in rollups:
        by_minute[rollup.start].append(rollup)
    kept = []
    for each in by_minute.values():
        each.sort(key=lambda one: one.completed + one.enqueued + one.failed, reverse=True)
        kept += each[:MOST_QUEUES]
    return kept


def _sum_hours(start: datetime, end: datetime) -> None:
    first = _hour(start)
    last = _hour(end - MINUTE) + 60 * MINUTE
    sums: dict[tuple[datetime, str], dict[str, Any]] = defaultdict(dict)
    within = QueueRollup.objects.filter(start__gte=first, start__lt=last)
    for minute in within.filter(resolution=60).iterator():
        hour = sums[_hour(minute.start), minute.queue]
        for name in SUMMED:
            hour[name] = added(hour.get(name), getattr(minute, name))
    within.filter(resolution=3600).delete()
    QueueRollup.objects.bulk_create(
        (
            QueueRollup(resolution=3600, start=hour, queue=queue, **values)
            for (hour, queue), values in sums.items()
        ),
        batch_size=1000,
    )


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
