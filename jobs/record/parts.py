"""Roll-ups of single queues (OJS admin API §10.2) and of single types of jobs.

Part of each round of `rollup`: what is counted for them adds up to the roll-up of all jobs. A
minute in which a queue or type did nothing has no row, and of very many only the busiest are kept:
the tables are bounded whatever names clients use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, QuerySet
from django.db.models.functions import TruncMinute

from ..models import Job, JobError, QueueRollup, Rollup, TypeRollup
from ..spec.identifiers import first_uuid7
from ..spec.lifecycle import State
from .histogram import Bucket, added, put

MINUTE = timedelta(minutes=1)
COLUMNS = {QueueRollup: "queue", TypeRollup: "type"}
"""Model → the column that tells its parts apart."""
KEEP = {60: timedelta(days=2), 3600: timedelta(days=35)}
"""As `rollup.KEEP`: minutes of many queues and types take room, so fewer are kept."""
MOST = 100
"""Queues, and types, of one minute that are kept separately."""
SUMMED = ("enqueued", "completed", "failed", "discarded", "waits", "runs")


MOST_NAMES = 500


def names(model: Any) -> list[str]:
    """The queues or types that did anything while their roll-ups are kept: five weeks."""
    rows = model.objects.filter(resolution=3600).order_by(COLUMNS[model])
    return list(rows.values_list(COLUMNS[model], flat=True).distinct()[:MOST_NAMES])


def created(start: datetime, end: datetime) -> QuerySet[Job]:
    """Jobs created from `start` to `end`.

    Found by their ids, because only those are indexed. An id that a client chose may contain
    another time: such a job is not counted.
    """
    first, last = (
        first_uuid7(round(moment.timestamp() * 1000)) for moment in (start - MINUTE, end + MINUTE)
    )
    jobs = Job.objects.filter(pk__gte=first, pk__lt=last)
    return jobs.filter(created_at__gte=start, created_at__lt=end)


def count(start: datetime, end: datetime, totals: Mapping[datetime, Rollup]) -> None:
    """Replace the roll-ups of each queue and each type for the minutes from `start` to `end`.

    Args:
        totals: an empty roll-up for each of these minutes, which gets what all of them add up to.
    """
    found: dict[Any, dict[tuple[datetime, str], Any]] = {model: {} for model in COLUMNS}

    def of(minute: datetime, names: Mapping[str, Any]) -> Iterator[Any]:
        """The roll-ups of a minute to which a job of this queue and type belongs."""
        yield totals[minute]
        for model, column in COLUMNS.items():
            name = names[column]
            if (minute, name) not in found[model]:
                fresh = {"resolution": 60, "start": minute, column: name, "waits": {}, "runs": {}}
                found[model][minute, name] = model(**fresh)
            yield found[model][minute, name]

    finished = Job.objects.filter(finished_at__gte=start, finished_at__lt=end)
    completed = (
        finished.filter(state=State.COMPLETED)
        .order_by()
        .annotate(minute=TruncMinute("finished_at"), wait=Bucket("enqueued_at", "started_at"))
        .values("queue", "type", "minute", "wait", run=Bucket("started_at", "finished_at"))
        .annotate(jobs=Count("pk"))
    )
    for row in completed:
        for rollup in of(row["minute"], row):
            rollup.completed += row["jobs"]
            put(rollup.waits, row["wait"], row["jobs"])
            put(rollup.runs, row["run"], row["jobs"])
    errors = JobError.objects.filter(occurred_at__gte=start, occurred_at__lt=end)
    for name, rows, moment, job in (
        ("enqueued", created(start, end), "created_at", ""),
        ("discarded", finished.filter(state=State.DISCARDED), "finished_at", ""),
        ("failed", errors, "occurred_at", "job__"),
    ):
        columns = (f"{job}queue", f"{job}type")
        grouped = rows.order_by().annotate(minute=TruncMinute(moment)).values("minute", *columns)
        numbers = grouped.annotate(jobs=Count("pk")).values_list("minute", *columns, "jobs")
        for minute, queue, kind, jobs in numbers:
            for rollup in of(minute, {"queue": queue, "type": kind}):
                setattr(rollup, name, getattr(rollup, name) + jobs)
    for model, rollups in found.items():
        model.objects.filter(resolution=60, start__gte=start, start__lt=end).delete()
        model.objects.bulk_create(_busiest(rollups.values()), batch_size=1000)
        _sum_hours(model, start, end)


def _busiest(rollups: Iterable[Any]) -> list[Any]:
    by_minute: dict[datetime, list[Any]] = defaultdict(list)
    for rollup in rollups:
        by_minute[rollup.start].append(rollup)
    kept = []
    for each in by_minute.values():
        each.sort(key=lambda one: one.completed + one.enqueued + one.failed, reverse=True)
        kept += each[:MOST]
    return kept


def _sum_hours(model: Any, start: datetime, end: datetime) -> None:
    column = COLUMNS[model]
    first = _hour(start)
    last = _hour(end - MINUTE) + 60 * MINUTE
    sums: dict[tuple[datetime, str], dict[str, Any]] = defaultdict(dict)
    within = model.objects.filter(start__gte=first, start__lt=last)
    for minute in within.filter(resolution=60).iterator():
        hour = sums[_hour(minute.start), getattr(minute, column)]
        for name in SUMMED:
            hour[name] = added(hour.get(name), getattr(minute, name))
    within.filter(resolution=3600).delete()
    model.objects.bulk_create(
        (
            model(resolution=3600, start=hour, **{column: name}, **values)
            for (hour, name), values in sums.items()
        ),
        batch_size=1000,
    )


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
