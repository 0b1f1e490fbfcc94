"""Figures for the admin, read only: bounded queries over sets, however large the table."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db.models import Count

from .database import run_by_index
from .lifecycle import State
from .models import Job, QueueSample
from .querysets import JobQuerySet

MOST_COUNTED = 500
"""Jobs of one queue and state that are counted while somebody waits for the page."""


@dataclass(slots=True)
class Depth:
    """How many unfinished jobs a queue has, by state."""

    jobs: dict[str, int] = field(default_factory=dict)
    waiting_since: datetime | None = None
    """When the job that waits longest became available."""
    capped: set[str] = field(default_factory=set)
    """States with more jobs than were counted; what is said of them is the last sample."""

    def of(self, state: State) -> int:
        return self.jobs.get(state, 0)

    def shown(self, state: State) -> str:
        """The number; after ≈ if it is the last sample, after ≥ if there is none."""
        if state not in self.capped:
            return f"{self.of(state):,}"
        mark = "≈" if self.of(state) > MOST_COUNTED else "≥"
        return f"{mark} {self.of(state):,}"


# One query for each partial index: asked for in one, the planner would read the whole table.
INDEXED: tuple[dict[str, Any], ...] = (
    {"state": State.AVAILABLE},
    {"state__in": (State.SCHEDULED, State.RETRYABLE)},
    {"state": State.ACTIVE, "reserved_until__isnull": False},
)

# Each count stops after MOST_COUNTED rows of a partial index: a queue with a million jobs costs
# no more than one with a few thousand. The states are literals, for only they match an index.
SOME = """
    (SELECT {what}
       FROM (SELECT {column}
               FROM ojs_jobs_job AS job
              WHERE job.queue = queue.name AND {condition}
              LIMIT {most}) AS first)"""
COUNTED = """
    SELECT queue.name, {available}, {since}, {scheduled}, {retryable}
      FROM ojs_jobs_queue AS queue
     WHERE queue.name IN ({names})
"""
DUE = "job.state IN ('scheduled', 'retryable') AND job.state = "


def _statement(names: int) -> str:
    def some(condition: str, what: str = "count(*)", column: str = "1") -> str:
        return SOME.format(what=what, column=column, condition=condition, most=MOST_COUNTED + 1)

    return COUNTED.format(
        available=some("job.state = 'available'"),
        since=some("job.state = 'available'", "min(enqueued_at)", "enqueued_at"),
        scheduled=some(f"{DUE} 'scheduled'"),
        retryable=some(f"{DUE} 'retryable'"),
        names=", ".join(["%s"] * names),
    )


def depths(queues: Collection[str]) -> dict[str, Depth]:
    """Return how deep each of `queues` is: available, scheduled, retryable and active jobs.

    What has more than `MOST_COUNTED` jobs is told by its last sample, up to a minute old.
    """
    found = {queue: Depth() for queue in queues}
    if not found:
        return found
    rows = run_by_index(_statement(len(found)), list(found))
    for name, available, since, scheduled, retryable in rows:
        depth = found[name]
        depth.waiting_since = _moment(since)
        counts = {"available": available, "scheduled": scheduled, "retryable": retryable}
        depth.jobs = {state: min(jobs, MOST_COUNTED) for state, jobs in counts.items() if jobs}
        depth.capped = {state for state, jobs in counts.items() if jobs > MOST_COUNTED}
    active = Job.objects.active().filter(queue__in=queues, reserved_until__isnull=False)
    for name, jobs in active.order_by().values_list("queue").annotate(Count("pk")):
        found[name].jobs[State.ACTIVE] = jobs
    deep = [name for name, depth in found.items() if depth.capped]
    if deep:
        _add_samples(found, deep)
    return found


def _add_samples(found: dict[str, Depth], deep: list[str]) -> None:
    for sample in QueueSample.objects.filter(pk__in=deep):
        depth = found[sample.queue]
        for state in depth.capped:
            depth.jobs[state] = max(MOST_COUNTED, getattr(sample, state))
        known = [since for since in (depth.waiting_since, sample.waiting_since) if since]
        depth.waiting_since = min(known, default=None)


def _moment(value: Any) -> datetime | None:
    """A timestamp as the database's driver gives it: SQLite's is a text."""
    if isinstance(value, str):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    return value


MOST_SHOWN = 10_000
STATE_CONDITIONS = {
    # What follows from the state tells PostgreSQL which partial index to count in.
    State.ACTIVE: "reserved_until IS NOT NULL AND state = 'active'",
    **{
        state: f"finished_at IS NOT NULL AND state = '{state}'"
        for state in (State.COMPLETED, State.CANCELLED, State.DISCARDED)
    },
    **{
        state: f"state IN ('scheduled', 'retryable') AND state = '{state}'"
        for state in (State.SCHEDULED, State.RETRYABLE)
    },
}


def state_counts() -> list[tuple[State, str]]:
    """How many jobs are in each state, counted no further than `MOST_SHOWN`."""
    counts = ", ".join(
        f"(SELECT count(*) FROM (SELECT 1 FROM ojs_jobs_job WHERE {condition}"
        f" LIMIT {MOST_SHOWN + 1}) AS first)"
        for condition in (STATE_CONDITIONS.get(s, f"state = '{s}'") for s in State)
    )
    (row,) = run_by_index(f"SELECT {counts}")
    return [
        (state, f"{MOST_SHOWN:,}+" if count > MOST_SHOWN else f"{count:,}")
        for state, count in zip(State, row, strict=True)
    ]


def pending(queue: str) -> int:
    return Job.objects.filter(queue=queue, state=State.PENDING).count()


def held(worker_ids: Iterable[str]) -> JobQuerySet:
    """Jobs in the hands of these workers, oldest first."""
    # `reserved_until` lets PostgreSQL use the partial index on `reserved_by`.
    return (
        Job.objects.active()
        .filter(reserved_by__in=list(worker_ids), reserved_until__isnull=False)
        .order_by("reserved_by", "started_at", "pk")
    )


RECENT = 10_000


def unfenced_by(worker_id: str) -> JobQuerySet:
    """Jobs this worker held when an ACK came that did not say whose it was, newest first.

    Looked for among the latest `RECENT` completions: nothing indexes them by worker.
    """
    recent = (
        Job.objects.filter(state=State.COMPLETED, finished_at__isnull=False)
        .order_by("-finished_at")
        .values("pk")[:RECENT]
    )
    return Job.objects.filter(pk__in=recent, unfenced=True, finished_by=worker_id).order_by(
        "-finished_at"
    )
