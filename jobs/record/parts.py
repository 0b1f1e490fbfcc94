"""Roll-ups of single queues (OJS admin API §10.2) and of single types of jobs.

Part of each round of `rollup`: what is counted for them adds up to the roll-up of all jobs. A
minute in which a queue or type did nothing has no row, and of very many only the busiest are kept:
the tables are bounded whatever names clients use.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, QuerySet
from django.db.models.functions import TruncMinute

from ..models import Job, JobError, QueueRollup, Rollup, TypeRollup
from ..spec.identifiers import first_uuid7
from ..spec.lifecycle import State
from ..store import pace
from .histogram import Bucket, added, put

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
COLUMNS = {QueueRollup: "queue", TypeRollup: "type"}
"""Model → the column that tells its parts apart."""
KEEP = {60: timedelta(days=2), 3600: timedelta(days=35), 86_400: timedelta(days=35)}
"""As `rollup.KEEP`: minutes of many queues and types take room, so fewer are kept. Of a thousand
queues, a week has 168,000 hours: those of days that are over are summed up as well."""
MOST = 100
"""Queues, and types, of one minute that are kept separately."""
PIECES = 12
"""Into which a count is cut."""
COUNTED = ("enqueued", "completed", "failed", "discarded", "waits", "runs")


MOST_NAMES = 500


def names(model: Any) -> list[str]:
    """The queues or types that did anything while their roll-ups are kept: five weeks."""
    rows = model.objects.filter(resolution=3600).order_by(COLUMNS[model])
    return list(rows.values_list(COLUMNS[model], flat=True).distinct()[:MOST_NAMES])


def floor(moment: datetime, width: timedelta) -> datetime:
    """The beginning of the minute, hour or day (of UTC) that contains a moment."""
    return moment - timedelta(seconds=moment.timestamp() % width.total_seconds())


def created(start: datetime, end: datetime) -> QuerySet[Job]:
    """Jobs created from `start` to `end`.

    Found by their ids, because only those are indexed. An id that a client chose may contain
    another time: such a job is not counted.
    """
    jobs = Job.objects.filter(pk__gte=_first_id(start - MINUTE), pk__lt=_first_id(end + MINUTE))
    return jobs.filter(created_at__gte=start, created_at__lt=end)


def _first_id(moment: datetime) -> UUID:
    return first_uuid7(round(moment.timestamp() * 1000))


class Counted:
    """What happened in some minutes."""

    def __init__(self, start: datetime, end: datetime) -> None:
        self._range = start, end
        minutes = [start + n * MINUTE for n in range((end - start) // MINUTE)]
        self.totals = {
            minute: Rollup(resolution=60, start=minute, waits={}, runs={}) for minute in minutes
        }
        """Of all jobs, by minute; also of minutes in which nothing happened."""
        self._found: dict[Any, dict[tuple[datetime, str], Any]] = {model: {} for model in COLUMNS}

    def of(self, minute: datetime, names: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the roll-ups of a minute to which a job of this queue and type belongs."""
        yield self.totals[minute]
        for model, column in COLUMNS.items():
            name = names[column]
            found = self._found[model]
            if (minute, name) not in found:
                fresh = {"resolution": 60, "start": minute, column: name, "waits": {}, "runs": {}}
                found[minute, name] = model(**fresh)
            yield found[minute, name]

    def replace(self) -> None:
        """Replace the roll-ups of each queue and each type for these minutes, their hours, and the
        day that is over with them."""
        start, end = self._range
        midnight = floor(end, DAY)
        for model, rollups in self._found.items():
            model.objects.filter(resolution=60, start__gte=start, start__lt=end).delete()
            model.objects.bulk_create(_busiest(rollups.values()), batch_size=1000)
            sum_up(model, start, end, summed=COUNTED)
            if start < midnight:
                sum_up(model, midnight - DAY, midnight, summed=COUNTED, of=HOUR, width=DAY)


def count(start: datetime, end: datetime) -> Counted:
    """Count the minutes from `start` to `end`, in pieces (`pace`)."""
    counted = Counted(start, end)
    jobs, errors = Job.objects.all(), JobError.objects.all()
    for first, last in _pieces(start, end):
        with pace.piece():
            finished = jobs.filter(finished_at__gte=first, finished_at__lt=last)
            failed = errors.filter(occurred_at__gte=first, occurred_at__lt=last)
            _add_completed(counted, finished.filter(state=State.COMPLETED))
            _add(counted, "discarded", finished.filter(state=State.DISCARDED), "finished_at")
            _add(counted, "failed", failed, "occurred_at", "job__")
    for first, last in _pieces(start - MINUTE, end + MINUTE):
        with pace.piece():
            within = created(start, end).filter(pk__gte=_first_id(first), pk__lt=_first_id(last))
            _add(counted, "enqueued", within, "created_at")
    return counted


def _pieces(start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    width = (end - start) / PIECES
    moments = [start + n * width for n in range(PIECES)]
    return zip(moments, [*moments[1:], end], strict=True)


def _add_completed(counted: Counted, jobs: QuerySet[Job]) -> None:
    rows = (
        jobs.order_by()
        .annotate(minute=TruncMinute("finished_at"), wait=Bucket("enqueued_at", "started_at"))
        .values("queue", "type", "minute", "wait", run=Bucket("started_at", "finished_at"))
        .annotate(jobs=Count("pk"))
    )
    for row in rows:
        for rollup in counted.of(row["minute"], row):
            rollup.completed += row["jobs"]
            put(rollup.waits, row["wait"], row["jobs"])
            put(rollup.runs, row["run"], row["jobs"])


def _add(counted: Counted, name: str, rows: QuerySet[Any], moment: str, job: str = "") -> None:
    """Count rows in the column `name` of the roll-ups.

    Args:
        moment: the column that tells when.
        job: what leads from a row to the columns of its job.
    """
    columns = (f"{job}queue", f"{job}type")
    grouped = rows.order_by().annotate(minute=TruncMinute(moment)).values("minute", *columns)
    numbers = grouped.annotate(jobs=Count("pk")).values_list("minute", *columns, "jobs")
    for minute, queue, kind, jobs in numbers:
        for rollup in counted.of(minute, {"queue": queue, "type": kind}):
            setattr(rollup, name, getattr(rollup, name) + jobs)


def _busiest(rollups: Iterable[Any]) -> list[Any]:
    by_minute: dict[datetime, list[Any]] = defaultdict(list)
    for rollup in rollups:
        by_minute[rollup.start].append(rollup)
    kept = []
    for each in by_minute.values():
        each.sort(key=lambda one: one.completed + one.enqueued + one.failed, reverse=True)
        kept += each[:MOST]
    return kept


def sum_up(
    model: Any,
    start: datetime,
    end: datetime,
    *,
    summed: Collection[str] = (),
    highest: Collection[str] = (),
    of: timedelta = MINUTE,
    width: timedelta = HOUR,
) -> None:
    """Replace the roll-ups of the hours, or days, that contain a range with shorter ones summed up.

    Args:
        summed: columns of numbers or histograms.
        highest: columns of which the highest value counts.
        of: the width of the shorter ones.
        width: that of those that are replaced.
    """
    names = ["start", *([COLUMNS[model]] if model in COLUMNS else [])]
    sums: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(dict)
    within = model.objects.filter(
        start__gte=floor(start, width), start__lt=floor(end - of, width) + width
    )
    for short in within.filter(resolution=round(of.total_seconds())).iterator():
        long = sums[floor(short.start, width), *(getattr(short, name) for name in names[1:])]
        for name in summed:
            long[name] = added(long.get(name), getattr(short, name))
        for name in highest:
            values = [v for v in (long.get(name), getattr(short, name)) if v is not None]
            long[name] = max(values, default=None)
    resolution = round(width.total_seconds())
    if model in COLUMNS:
        # A part that is no longer one of the busiest has none.
        within.filter(resolution=resolution).delete()
    model.objects.bulk_create(
        (
            model(resolution=resolution, **dict(zip(names, key, strict=True)), **values)
            for key, values in sums.items()
        ),
        batch_size=1000,
        update_conflicts=True,
        unique_fields=["resolution", *names],
        update_fields=[*summed, *highest],
    )
