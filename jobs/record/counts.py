"""Figures for the Admin API, read only: jobs by state, throughput, waiting times.

Waiting and running jobs are counted from partial indexes. Finished jobs are in no index by queue,
and there may be millions: a slow count is cached for a multiple of the time it took, so that a
dashboard that polls every second costs little however big the tables are.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Avg, Count, DurationField, F

from ..access.projects import scope_to
from ..models import Job, JobError, Queue
from ..spec.lifecycle import TERMINAL, State
from ..store import clock
from ..store.database import compiled
from .dashboard import INDEXED

HOUR = timedelta(hours=1)
WINDOW = timedelta(minutes=5)
"""Throughput and waiting times are those of the last minutes."""
SAMPLE = 2000
"""Most recent completions that waiting times are computed from."""
UNINDEXED = sorted(TERMINAL | {State.PENDING})
SLOW = 0.1
"""Seconds; the result of a slower count is cached."""
PATIENCE = 20
"""For how many times as long as the count took: counting takes a twentieth of the time at most."""
REMEMBERED = 64

_lock = threading.Lock()
_memory: dict[Any, tuple[float, Any]] = {}


def by_state(jobs: Any) -> dict[str, int]:
    """How many of `jobs` there are in each state; a state with none has 0."""
    counts = dict.fromkeys(State.values, 0)
    for index in INDEXED:
        counts |= _grouped(jobs.filter(**index), "state")
    return counts | _finished(jobs)


def _finished(jobs: Any) -> dict[str, int]:
    # Queried one by one, each is answered from an index that holds nothing else.
    finished = jobs.filter(finished_at__isnull=False)
    counts = remembered(("finished", str(compiled(jobs))), lambda: _grouped(finished, "state"))
    pending = jobs.filter(state=State.PENDING)
    return counts | remembered(("pending", str(compiled(jobs))), lambda: _grouped(pending, "state"))


def by_queue(queues: Collection[str]) -> dict[str, dict[str, int]]:
    """Queue → state → how many jobs."""
    found = {queue: dict.fromkeys(State.values, 0) for queue in queues}
    jobs = Job.objects.filter(queue__in=sorted(queues))
    for index in INDEXED:
        _spread(found, _rows(jobs.filter(**index)))
    rest = jobs.filter(state__in=UNINDEXED)
    _spread(found, remembered(("queues", *sorted(queues)), lambda: _rows(rest)))
    return found


def _rows(jobs: Any) -> list[tuple[str, str, int]]:
    grouped = jobs.order_by().values_list("queue", "state")
    return list(grouped.annotate(jobs=Count("pk")))


def _spread(found: dict[str, dict[str, int]], rows: Iterable[tuple[str, str, int]]) -> None:
    for queue, state, jobs in rows:
        found[queue][state] = jobs


def _grouped(jobs: Any, *columns: str) -> dict[Any, int]:
    return dict(jobs.order_by().values_list(*columns).annotate(jobs=Count("pk")))


def remembered(key: Any, count: Any, *, slow: float | None = None) -> Any:
    """Return the cached result of `count()`, if it was slow and recent; else call it.

    Args:
        slow: in seconds: the result is cached if it took longer, by default longer than `SLOW`.
    """
    with _lock:
        until, value = _memory.get(key, (0.0, None))
    if until > time.monotonic():
        return value
    started = time.monotonic()
    value = count()
    took = time.monotonic() - started
    if took > (SLOW if slow is None else slow):
        with _lock:
            if len(_memory) >= REMEMBERED:
                _memory.clear()
            _memory[key] = (time.monotonic() + PATIENCE * took, value)
    return value


def forget_counts() -> None:
    with _lock:
        _memory.clear()


@dataclass(slots=True)
class Pace:
    """The activity of a queue, or of all of them, in the last minutes."""

    completed: int = 0
    failed: int = 0
    """Attempts that failed, whatever became of their jobs."""
    waits: list[timedelta] = field(default_factory=list)

    def throughput(self) -> dict[str, float]:
        minutes = WINDOW / timedelta(minutes=1)
        return {
            "processed_per_minute": round((self.completed + self.failed) / minutes, 2),
            "failed_per_minute": round(self.failed / minutes, 2),
        }

    def latency(self) -> dict[str, int | None]:
        """How long jobs waited from becoming available to being fetched."""
        waits = sorted(self.waits)
        return {f"p{share}": _percentile(waits, share) for share in (50, 95, 99)}


def _percentile(waits: list[timedelta], share: int) -> int | None:
    if not waits:
        return None
    place = min(len(waits) - 1, len(waits) * share // 100)
    return max(0, waits[place] // timedelta(milliseconds=1))


def paces(queues: Collection[str] | None = None) -> dict[str, Pace]:
    """Queue → its activity in the last `WINDOW`; of these queues, or of all.

    Args:
        queues: by default all of them, without waiting times.
    """
    since = clock.now() - WINDOW
    jobs, errors = Job.objects.all(), JobError.objects.filter(occurred_at__gte=since)
    key: tuple[str, ...] = ("paces",)
    if queues is not None:
        names = sorted(queues)
        jobs, errors = jobs.filter(queue__in=names), errors.filter(job__queue__in=names)
        key = ("paces", "of", *names)
    completed = jobs.filter(state=State.COMPLETED, finished_at__gte=since)

    def count() -> dict[str, Pace]:
        found: dict[str, Pace] = defaultdict(Pace)
        for queue, number in _grouped(completed, "queue").items():
            found[queue].completed = number
        for queue, number in _grouped(errors, "job__queue").items():
            found[queue].failed = number
        latest = completed.order_by("-finished_at") if queues is not None else completed.none()
        waits = latest.values_list("queue", F("started_at") - F("enqueued_at"))
        for queue, wait in waits[:SAMPLE]:
            if wait is not None:
                found[queue].waits.append(wait)
        return found

    found: dict[str, Pace] = remembered(key, count)
    return found


def last_hour(queue: str, project: str = "") -> dict[str, Any]:
    """Return a queue's statistics for the last hour (OJS HTTP §11.2).

    Args:
        project: count only its jobs; empty means all.
    """

    def count() -> dict[str, Any]:
        since = clock.now() - HOUR
        jobs = scope_to(Job.objects.filter(queue=queue).order_by(), project)
        run, wait = F("finished_at") - F("started_at"), F("started_at") - F("enqueued_at")
        completed = jobs.filter(state=State.COMPLETED, finished_at__gte=since).aggregate(
            jobs=Count("pk"),
            run=Avg(run, output_field=DurationField()),
            wait=Avg(wait, output_field=DurationField()),
        )
        errors = JobError.objects.filter(occurred_at__gte=since, job__in=jobs.values("pk"))
        return {
            "completed_last_hour": completed["jobs"],
            "failed_last_hour": errors.count(),
            "avg_duration_ms": _milliseconds(completed["run"]),
            "avg_wait_ms": _milliseconds(completed["wait"]),
            "throughput_per_second": round(completed["jobs"] / HOUR.total_seconds(), 2),
        }

    found: dict[str, Any] = remembered(("last hour", queue, project), count)
    return found


def _milliseconds(value: timedelta | None) -> int:
    return max(0, (value or timedelta(0)) // timedelta(milliseconds=1))


def pace() -> Pace:
    """Like `paces`, for all queues together."""
    each = paces().values()
    return Pace(sum(one.completed for one in each), sum(one.failed for one in each))


def queues() -> int:
    return Queue.objects.count()
