"""Roll-ups: the data behind the charts, computed a few minutes at a time.

Each round counts the last complete minutes again and replaces their roll-ups. So a job that
commits late is counted, a crash leaves nothing half done, and after downtime the next rounds catch
up. One process at a time: the mark's row is the lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Min, Q, QuerySet

from ..models import Job, QueueSample, Rollup, RollupMark
from ..spec.lifecycle import State
from ..store import clock
from ..store.database import atomic, connection
from . import parts
from .dashboard import INDEXED, moment_of

# Part of what this module offers.
from .parts import COUNTED as COUNTED
from .parts import HOUR as HOUR
from .parts import MINUTE as MINUTE
from .parts import floor as floor
from .parts import sum_up as sum_up

LATE = 2 * MINUTE
"""How late a finish may commit and still be counted."""
STEP = HOUR
"""Longest time that one step counts, so that no transaction takes long."""
STEPS = 10
"""Most steps of one turn."""
HISTORY = timedelta(days=7)
KEEP = {60: timedelta(days=8), 3600: timedelta(days=35)}
"""Seconds of a roll-up → how long it is kept. A day of minutes is compared with that a week before.
"""
SAMPLED = ["available", "active", "delayed", "oldest_wait"]


def roll_up() -> int:
    """Count the minutes that are over; after downtime, a few steps of them.

    Always returns 0, because the rest is counted in the next turn: the reaper has more urgent
    things to do.
    """
    for _ in range(STEPS):
        if not step():
            break
    else:
        return 0
    prune(Rollup)
    for model in parts.COLUMNS:
        prune(model)
    return 0


def step() -> bool:
    """Count at most `STEP`; return whether there is more to catch up on."""
    now = floor(clock.now(), MINUTE)
    mark = RollupMark.objects.filter(pk="jobs").first()
    if mark is None:
        first = {"until": _beginning(now)}
        mark, _ = RollupMark.objects.get_or_create(name="jobs", defaults=first)
    start = min(mark.until, now) - LATE
    end = min(now, start + STEP + LATE)
    counted = parts.count(start, end)
    skip = connection().features.has_select_for_update_skip_locked
    with atomic():
        unchanged = RollupMark.objects.filter(pk="jobs", until=mark.until)
        if unchanged.select_for_update(skip_locked=skip).first() is None:
            return False  # another process has counted these minutes
        Rollup.objects.bulk_create(
            counted.totals.values(),
            update_conflicts=True,
            unique_fields=["resolution", "start"],
            update_fields=COUNTED,
        )
        counted.replace()
        sum_up(Rollup, start, end, summed=COUNTED, highest=SAMPLED)
        unchanged.update(until=end)
    return end < now


def _beginning(now: datetime) -> datetime:
    """The first minute to count, where jobs are older than their roll-ups."""
    completed = Job.objects.filter(state=State.COMPLETED, finished_at__isnull=False)
    oldest = completed.order_by("finished_at").values_list("finished_at", flat=True).first()
    return floor(max(oldest or now, now - HISTORY), HOUR)


def sample() -> int:
    """Count in full how deep the queues are; always returns 0, because nothing is left to do."""
    now = clock.now()
    samples: dict[str, QueueSample] = {}
    for rows in INDEXED:
        # Grouped by a known state as well, PostgreSQL reads the table, not the index alone.
        known = rows.get("state")
        columns = ("queue",) if known else ("queue", "state")
        queues = Job.objects.filter(**rows).order_by().values(*columns)
        for row in queues.annotate(jobs=Count("pk"), since=Min("enqueued_at")):
            queue, state = row["queue"], known or row["state"]
            kept = samples.setdefault(queue, QueueSample(queue=queue, sampled_at=now))
            setattr(kept, state, row["jobs"])
            if state == State.AVAILABLE:
                kept.waiting_since = row["since"]
    since = [each.waiting_since for each in samples.values() if each.waiting_since]
    total = {
        "oldest_wait": max(now - min(since, default=now), timedelta(0)),
        "available": sum(each.available for each in samples.values()),
        "active": sum(each.active for each in samples.values()),
        "delayed": sum(each.scheduled + each.retryable for each in samples.values()),
    }
    with atomic():
        QueueSample.objects.bulk_create(
            [samples[name] for name in sorted(samples)],
            update_conflicts=True,
            unique_fields=["queue"],
            update_fields=[
                "sampled_at",
                "available",
                "scheduled",
                "retryable",
                "active",
                "waiting_since",
            ],
        )
        QueueSample.objects.filter(sampled_at__lt=now).delete()
        Rollup.objects.bulk_create(
            [Rollup(resolution=60, start=floor(now, MINUTE), **total)],
            update_conflicts=True,
            unique_fields=["resolution", "start"],
            update_fields=SAMPLED,
        )
    return 0


@dataclass(frozen=True)
class Unfinished:
    """What has happened since the last minute that was rolled up."""

    until: datetime
    """The end of that minute."""
    is_new: bool
    """Whether nothing was counted before the moment that was asked about."""
    began: datetime | None = None
    """The first hour that the roll-ups contain; None if there are none."""
    completed: int = 0
    failed: int = 0


MOST_UNFINISHED = 100_000
"""Rows that are counted while a page is being loaded: a roll-up that stands still costs no more."""


# The conditions and the order are those of the indexes. What is counted came after the mark, and in
# the range.
SINCE = """
    WITH mark AS (SELECT until FROM ojs_jobs_rollupmark WHERE name = 'jobs')
    SELECT (SELECT until FROM mark),
           EXISTS (SELECT 1
                     FROM ojs_jobs_rollup
                    WHERE resolution = 60
                      AND start < %(since)s AND (completed > 0 OR failed > 0))
           OR EXISTS (SELECT 1
                        FROM ojs_jobs_rollup
                       WHERE resolution = 3600
                         AND start <= %(hour_before)s AND (completed > 0 OR failed > 0)),
           (SELECT start FROM ojs_jobs_rollup WHERE resolution = 3600 ORDER BY start LIMIT 1),
           (SELECT count(*)
              FROM (SELECT 1
                      FROM ojs_jobs_job
                     WHERE finished_at IS NOT NULL AND state = 'completed'
                       AND finished_at >= %(since)s
                       AND finished_at >= coalesce((SELECT until FROM mark), %(minute)s)
                  ORDER BY finished_at
                     LIMIT %(most)s) AS first),
           (SELECT count(*)
              FROM (SELECT 1
                      FROM ojs_jobs_joberror
                     WHERE occurred_at >= %(since)s
                       AND occurred_at >= coalesce((SELECT until FROM mark), %(minute)s)
                  ORDER BY occurred_at
                     LIMIT %(most)s) AS first)
"""


def unfinished(since: datetime) -> Unfinished:
    """Count what no roll-up contains yet, so that figures are of this second: one query.

    Args:
        since: the beginning of the figures' range, for `is_new`.
    """
    minute = floor(clock.now(), MINUTE)
    adapt = connection().ops.adapt_datetimefield_value
    parameters = {
        "since": adapt(since),
        # Of an hour that is in the range with a part, it is unknown whether that part has it all.
        "hour_before": adapt(since - HOUR),
        "minute": adapt(minute),
        "most": MOST_UNFINISHED,
    }
    with connection().cursor() as cursor:
        cursor.execute(SINCE, parameters)
        until, is_old, began, completed, failed = cursor.fetchone()
    is_new = until is None or not is_old
    return Unfinished(
        moment_of(until) or minute, is_new, until and moment_of(began), completed, failed
    )


def began() -> datetime | None:
    """The first hour that the roll-ups contain; None if there are none."""
    hours = Rollup.objects.filter(resolution=3600).order_by("start")
    return hours.values_list("start", flat=True).first()


def prune(model: Any) -> None:
    """Delete minutes and hours that no chart shows any more."""
    for resolution, keep in (parts.KEEP if model in parts.COLUMNS else KEEP).items():
        long_ago = clock.now() - keep
        model.objects.filter(resolution=resolution, start__lt=long_ago).delete()


@dataclass(frozen=True)
class Window:
    """A time, and the resolution of the roll-ups that are read for it."""

    since: datetime
    until: datetime
    resolution: int

    def part(self, start: datetime, seconds: int) -> float:
        """The part of a roll-up that lies in the window, from 0 to 1."""
        length = timedelta(seconds=seconds)
        inside = min(start + length, self.until) - max(start, self.since)
        return max(0.0, inside / length)


def series(model: Any, windows: Iterable[Window], **part: str) -> QuerySet[Any]:
    """Roll-ups that begin in any of the windows or extend into it, oldest first.

    Args:
        part: the one queue or type, of models that have several.
    """
    within = Q()
    for window in windows:
        width = timedelta(seconds=window.resolution)
        within |= Q(
            resolution=window.resolution,
            start__gt=window.since - width,
            start__lt=window.until,
        )
    rows: QuerySet[Any] = model.objects.filter(within, **part)
    return rows.order_by("start")
