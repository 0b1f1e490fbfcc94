"""Figures for the admin, read only: bounded queries over sets, however large the table."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Count, Min

from .lifecycle import State
from .models import Job
from .querysets import JobQuerySet


@dataclass(slots=True)
class Depth:
    """How many unfinished jobs a queue has, by state."""

    jobs: dict[str, int] = field(default_factory=dict)
    waiting_since: datetime | None = None
    """When the job that waits longest became available."""

    def of(self, state: State) -> int:
        return self.jobs.get(state, 0)


# One query for each partial index: asked for in one, the planner would read the whole table.
# Pending jobs are in no index; `pending()` counts them where somebody asks for one queue.
INDEXED: tuple[dict[str, Any], ...] = (
    {"state": State.AVAILABLE},
    {"state__in": (State.SCHEDULED, State.RETRYABLE)},
    {"state": State.ACTIVE, "reserved_until__isnull": False},
)


def depths(queues: Collection[str]) -> dict[str, Depth]:
    """Return how deep each of `queues` is: available, scheduled, retryable and active jobs."""
    found = {queue: Depth() for queue in queues}
    for index in INDEXED:
        rows = (
            Job.objects.filter(queue__in=queues, **index)
            .order_by()
            .values("queue", "state")
            .annotate(jobs=Count("pk"), since=Min("enqueued_at"))
        )
        for row in rows:
            depth = found[row["queue"]]
            depth.jobs[row["state"]] = row["jobs"]
            if row["state"] == State.AVAILABLE:
                depth.waiting_since = row["since"]
    return found


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
