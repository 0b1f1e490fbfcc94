"""Queues and workers as they are now: a handful of queries, however big the tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, NamedTuple

from django.db.models import Count, Q, Subquery, Value

from jobs.models import Queue, QueueSample
from jobs.record import dashboard
from jobs.spec.lifecycle import State
from jobs.store import clock
from jobs.store.expressions import Parsed, as_text

from ..fleet.condition import condition, in_hand, is_given_jobs
from ..liveness import reapers
from ..models import Worker, places

MOST_QUEUES = 500
"""Queues that are looked at. Of more, these are those that are paused, that were the deepest or had
the oldest jobs when they were last sampled, and those that are asked for by name."""
RECENT = timedelta(hours=24)
"""A worker that died longer ago no longer calls for attention."""


@dataclass(frozen=True)
class QueueRow:
    """One queue, and the workers that serve it."""

    queue: Queue
    depth: dashboard.Depth
    workers: int
    """Workers that fetch from it, and are given jobs."""

    @property
    def wait(self) -> timedelta | None:
        """How long its oldest available job has been waiting."""
        since = self.depth.waiting_since
        return clock.now() - since if since else None

    def waits_longer(self, limit: timedelta) -> bool:
        """Whether a job has been waiting for too long, and not because the queue is paused."""
        is_long = self.wait is not None and self.wait > limit
        return is_long and not self.queue.is_paused


class Member(NamedTuple):
    """A worker of the fleet."""

    condition: str
    is_given_jobs: bool
    project: str
    concurrency: int | None
    in_hand: int
    died_at: datetime | None
    queues: list[str]
    job_versions: dict[str, list[int | None]]


class Unserved(NamedTuple):
    """A queue in which jobs wait that no live worker serves."""

    row: Any
    wait: timedelta
    """How long the oldest of these jobs has been waiting."""
    project: str | None
    """Their project, if there are workers for jobs of other projects; empty for jobs without."""


class Situation:
    """Queues, workers and reapers; each is queried when it is first needed."""

    named = 100
    """Most problems of a kind that are named one by one."""
    _seen_with_fleet: datetime | None = None

    def row(self, queue: Queue, depth: dashboard.Depth, workers: int) -> QueueRow:
        return QueueRow(queue, depth, workers)

    @cached_property
    def reaper_seen(self) -> datetime | None:
        """When any reaper was last seen: read with the fleet, if there is one."""
        return self._seen_with_fleet if self.fleet else reapers.last_seen()

    @cached_property
    def fleet(self) -> list[Member]:
        """Live workers, and those that died recently."""
        died = clock.now() - RECENT
        workers = Worker.objects.filter(
            Q(pk__in=Worker.objects.live().values("pk")) | Q(died_at__gte=died)
        )
        annotated = workers.annotate(in_hand=in_hand()).annotate(
            condition=condition(),
            is_given_jobs=is_given_jobs(),
            reaper_seen=Subquery(reapers.newest()),
        )
        read = (
            *("reaper_seen", "condition", "is_given_jobs", "project"),
            *("concurrency", "in_hand", "died_at"),
        )
        texts = as_text("queues"), as_text("job_versions")
        parsed = Parsed()
        members = []
        rows = annotated.order_by().values_list(*read, *texts)
        for seen, state, given, project, concurrency, busy, died_at, queues, versions in rows:
            self._seen_with_fleet = seen
            placed = parsed[queues], parsed[versions] or {}
            members.append(Member(state, given, project, concurrency, busy, died_at, *placed))
        return members

    @cached_property
    def workers(self) -> Counter[str]:
        """How many workers are in each condition."""
        return Counter(member.condition for member in self.fleet)

    @cached_property
    def queues(self) -> list[Any]:
        """Every queue, the deepest first; at most `MOST_QUEUES`."""
        return sorted(self._rows(_looked_at()), key=lambda row: -row.depth.of(State.AVAILABLE))

    def queue(self, name: str) -> list[Any]:
        """The queue with this name, if there is one."""
        found = [row for row in self.queues if row.queue.pk == name]
        return found or self._rows(Queue.objects.filter(pk=name))

    def _rows(self, queues: Iterable[Queue]) -> list[Any]:
        found = list(queues)
        depths = dashboard.depths([queue.pk for queue in found])
        workers = {queue.pk: len(self._serving.get(queue.pk, ())) for queue in found}
        return [self.row(queue, depths[queue.pk], workers[queue.pk]) for queue in found]

    @cached_property
    def _serving(self) -> dict[str, list[Member]]:
        """The workers that are given jobs, by the queues that they fetch from."""
        found: dict[str, list[Member]] = defaultdict(list)
        for member in self.fleet:
            if member.is_given_jobs:
                for name in set(member.queues):
                    found[name].append(member)
        return found

    def versions_taken_in(self, queue: str) -> list[dict[str, list[int | None]]]:
        """What each worker that gets jobs of the queue declared; empty where it takes all versions
        of all types (OJS job versioning §8.1)."""
        return [member.job_versions for member in self._serving.get(queue, ())]

    def unserved(self, rows: Iterable[Any]) -> list[Unserved]:
        """Those of these queues in which jobs wait that no live worker serves.

        A worker of a project serves only the jobs of that project.
        """
        waiting = [row for row in rows if row.wait is not None]
        projects = {
            row.queue.pk: {member.project for member in self._serving.get(row.queue.pk, ())}
            for row in waiting
        }
        partly = [name for name, served in projects.items() if served and "" not in served]
        since = dashboard.waiting_by_project(partly)
        found = []
        for row in waiting:
            name = row.queue.pk
            left = {
                project: moment
                for project, moment in since.get(name, {}).items()
                if project not in projects[name]
            }
            if not projects[name]:
                found.append(Unserved(row, row.wait, None))
            elif left:
                oldest = min(left, key=lambda project: left[project])
                found.append(Unserved(row, clock.now() - left[oldest], oldest))
        return found

    @property
    def busy(self) -> int:
        return sum(member.in_hand for member in self.fleet)

    @property
    def capacity(self) -> int:
        """How many jobs the workers that are given jobs run at once."""
        return sum(places(member.concurrency) for member in self.fleet if member.is_given_jobs)


def _looked_at() -> list[Queue]:
    every = Queue.objects.order_by().annotate(one=Value(1)).values("one")
    number = Subquery(every.annotate(number=Count("pk")).values("number"))
    samples = QueueSample.objects.filter(available__gt=0)
    chosen = Q(number__lte=MOST_QUEUES)
    for first in (
        Queue.objects.paused().order_by("-paused_at").values("pk"),
        samples.order_by("-available").values("queue"),
        samples.order_by("waiting_since").values("queue"),
    ):
        chosen |= Q(pk__in=first[: MOST_QUEUES // 3])
    return list(Queue.objects.alias(number=number).filter(chosen).order_by("name"))
