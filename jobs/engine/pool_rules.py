"""What a worker pool with rules gives to a fetch: its limit, and its share for every queue (OJS
fair scheduling §6.1, §8).

Fetches through such a pool take turns locking its row, so that no two of them can take the same
free place. Jobs that run are not counted by a number that could drift: each has a `PoolPlace`,
which is void as soon as the job does anything else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, Exists, OuterRef, Q

from ..models import Event as EventRow
from ..models import Job, Pool, PoolPlace, Queue
from ..models.job import DUE_STATES
from ..models.querysets import JobQuerySet
from ..record.events import pool_event, record
from ..spec.durations import format_duration, parse_duration
from ..spec.lifecycle import State
from ..store import clock
from ..store.claimed import ClaimedJob
from ..store.database import connection, run

SLICES = 30
"""The sliding window of starvation prevention moves on by a thirtieth of itself."""
MOST_COUNTED = 1_000
"""Waiting jobs that an event counts."""
BATCH = 1_000
# Copied by the database: SQLite writes its own time and one of Python differently. A job may have
# come back since the places were counted.
PLACE = """
    INSERT INTO ojs_jobs_poolplace (pool, job_id, started_at)
    SELECT %s, id, started_at
      FROM ojs_jobs_job
     WHERE id IN ({ids})
        ON CONFLICT (pool, job_id) DO UPDATE SET started_at = excluded.started_at
 RETURNING job_id
"""


IS_TAKEN = Exists(
    Job.objects.active().filter(pk=OuterRef("job_id"), started_at=OuterRef("started_at"))
)
"""The job of a place is still in the attempt that took it."""


finding_members: list[Callable[[], Mapping[str, str]]] = []
"""Returns the live workers whose labels name a pool, each with its pool. Set by the app that knows
workers."""


def members() -> Mapping[str, str]:
    """Return the live workers of all pools, by their stored ids."""
    return finding_members[0]() if finding_members else {}


def active_jobs(pools: Collection[Pool], pool_by_worker: Mapping[str, str]) -> Counter[str]:
    """Return how many jobs run for each of these pools, in two queries for all of them.

    They are those that take its places; where it has no limit, those that its workers hold.

    Args:
        pool_by_worker: what `members()` returns.
    """
    limited = [pool.pk for pool in pools if pool.concurrency is not None]
    places = PoolPlace.objects.filter(IS_TAKEN, pool__in=limited).values_list("pool")
    found: Counter[str] = Counter(dict(places.annotate(jobs=Count("pk"))) if limited else {})
    free = {pool.pk for pool in pools}.difference(limited)
    holders = [name for name, pool in pool_by_worker.items() if pool in free]
    held = running().filter(reserved_by__in=holders).order_by().values_list("reserved_by")
    for name, jobs in held.annotate(jobs=Count("pk")) if holders else ():
        found[pool_by_worker[name]] += jobs
    return found


def running() -> JobQuerySet:
    """Return the jobs that are reserved for a worker."""
    return Job.objects.active().filter(reserved_for__isnull=False)


class PoolRules:
    """The locked row of a pool, and what one fetch may have through it."""

    def __init__(self, row: Pool) -> None:
        self.row = row
        self.starved: dict[str, timedelta] = {}
        """Queues that got nothing for longer than the interval, although jobs waited."""

    def room(self, count: int) -> int:
        """Return how many of `count` jobs may start now, within the limit of active jobs (§6.1)."""
        most = self.row.concurrency
        if most is None:
            return count
        places = PoolPlace.objects.filter(pool=self.row.pk)
        places.exclude(IS_TAKEN).delete()
        taken = places.count()
        room = max(0, min(count, most - taken))
        self._note(is_full=count > 0 and not room, active=taken)
        return room

    def _note(self, *, is_full: bool, active: int) -> None:
        """Record when the pool is at its limit for the first time (§11.1)."""
        if is_full == (self.row.full_since is not None):
            return
        self.row.full_since = clock.now() if is_full else None
        Pool.objects.filter(pk=self.row.pk).update(full_since=self.row.full_since)
        if is_full:
            about = {"active_jobs": active, "waiting_jobs": _waiting(self.row.queues)}
            record([pool_event("scheduling.pool_overloaded", self.row.pk, **about)])

    def plan(self, queues: Sequence[str], count: int, now: datetime) -> list[tuple[str, int]]:
        """Return in which order to search the queues, and how many jobs to take from each.

        Queues that had less than their share of the dispatches in the sliding window come first,
        and get what they lack (§8.2). The others are searched as asked.
        """
        asked = [(queue, count) for queue in queues]
        policy = self.row.starvation_prevention
        if not policy.get("enabled"):
            return asked
        recent = self._recent(now)
        whole = recent.total() + count
        # Less a little: the product of two decimals may be just above a whole number.
        lacks = {
            queue: math.ceil(policy["min_dispatch_ratio"] * whole - recent[queue] - 1e-9)
            for queue in queues
            if queue in self.row.queues
        }
        starved = _with_work([queue for queue, lack in lacks.items() if lack > 0])
        self._notice(starved, now)
        first = sorted(
            (queue for queue in queues if queue in starved), key=lambda queue: -lacks[queue]
        )
        return [(queue, lacks[queue]) for queue in first] + asked

    @property
    def _interval(self) -> timedelta:
        return parse_duration(self.row.starvation_prevention["rotation_interval"])

    def _slice(self, now: datetime) -> int:
        return int(now.timestamp() / (self._interval / SLICES).total_seconds())

    def _recent(self, now: datetime) -> Counter[str]:
        """Return how many jobs of each queue were handed out in the sliding window."""
        first = self._slice(now) - SLICES + 1
        found: Counter[str] = Counter()
        for number, counts in self.row.dispatches.get("slices", ()):
            if number >= first:
                found.update(counts)
        return found

    def _notice(self, starved: set[str], now: datetime) -> None:
        """Find the queues that waited in vain for longer than the interval (§11.1)."""
        interval, last = self._interval, self.row.dispatches.get("last", {})
        for queue in starved:
            since = datetime.fromtimestamp(last[queue], now.tzinfo) if queue in last else None
            silent = now - max(since or self.row.updated_at, self.row.updated_at)
            waiting = Job.objects.filter(queue=queue, state=State.AVAILABLE)
            if silent > interval and waiting.filter(enqueued_at__lte=now - interval).exists():
                self.starved[queue] = silent

    def take(self, jobs: Sequence[ClaimedJob], now: datetime) -> None:
        """Give the claimed jobs their places, and count them."""
        if not jobs:
            return
        if self.row.concurrency is not None:
            give_places(self.row.pk, [job.id for job in jobs])
        if self.row.starvation_prevention.get("enabled"):
            self._count(Counter(job.queue for job in jobs), now)

    def _count(self, counts: Counter[str], now: datetime) -> None:
        events: list[EventRow] = []
        state: dict[str, Any] = self.row.dispatches
        number = self._slice(now)
        slices = [pair for pair in state.get("slices", ()) if pair[0] > number - SLICES]
        if slices and slices[-1][0] == number:
            slices[-1][1] = dict(Counter(slices[-1][1]) + counts)
        else:
            slices.append([number, dict(counts)])
        last = {
            queue: at for queue, at in state.get("last", {}).items() if queue in self.row.queues
        }
        times: dict[str, int] = dict(state.get("starved", {}))
        for queue in counts:
            last[queue] = round(now.timestamp(), 3)
            if queue in self.starved:
                times[queue] = times.get(queue, 0) + 1
                about = {
                    "queue": queue,
                    "duration": format_duration(self.starved[queue]),
                    "available_count": counts[queue] + _waiting([queue]),
                }
                events.append(pool_event("scheduling.queue_starved", self.row.pk, **about))
        state = {"slices": slices, "last": last, "starved": times}
        Pool.objects.filter(pk=self.row.pk).update(dispatches=state)
        record(events)


def give_places(pool: str, jobs: Sequence[UUID]) -> None:
    """Let active jobs take places of the pool."""
    to_database = Job._meta.pk.get_db_prep_value
    for start in range(0, len(jobs), BATCH):
        part = [to_database(job_id, connection()) for job_id in jobs[start : start + BATCH]]
        run(PLACE.format(ids=", ".join(["%s"] * len(part))), [pool, *part])


def locked(name: str | None) -> PoolRules | None:
    """Lock a pool that has rules; None if it has none, or does not exist."""
    if not name:
        return None
    row = Pool.objects.filter(pk=name, has_rules=True).select_for_update().first()
    return None if row is None else PoolRules(row)


def _with_work(queues: Sequence[str]) -> set[str]:
    """Return those of the queues in which a job waits that may start."""
    if not queues:
        return set()
    jobs = Job.objects.filter(queue=OuterRef("pk"))
    waits = Q(Exists(jobs.filter(state=State.AVAILABLE)))
    due = jobs.due().filter(state__in=DUE_STATES)
    rows = Queue.objects.filter(waits | Q(Exists(due)), pk__in=queues)
    return set(rows.values_list("pk", flat=True))


def _waiting(queues: Sequence[str]) -> int:
    """Count the available jobs of the queues, up to a number."""
    found = 0
    for queue in queues:
        rows = Job.objects.filter(queue=queue, state=State.AVAILABLE).values("pk")
        found += rows[: MOST_COUNTED - found].count() if found < MOST_COUNTED else 0
    return found
