"""What can be asked about workers and the jobs they hold: reading only, no wire words.

Where a `project` is given, only what is its own is there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from jobs import engine
from jobs.expressions import JSONArrayHas
from jobs.models import Job
from jobs.projects import own

from .lifecycle import WorkerState
from .models import Worker

MOST = 10_000
"""Ids in one answer."""


def active(capability: str = "", project: str = "") -> list[str]:
    """Ids of the workers that are there, those with `capability` only if one is given."""
    workers = own(Worker.objects.heard(), project)
    if capability:
        workers = workers.filter(JSONArrayHas("capabilities", capability))
    return list(workers.order_by("pk").values_list("pk", flat=True)[:MOST])


def registered(protocol: str, project: str = "") -> list[str]:
    """Ids of all workers on record that speak `protocol`, the dead ones too."""
    workers = own(Worker.objects.filter(protocol=protocol).order_by("pk"), project)
    return list(workers.values_list("pk", flat=True)[:MOST])


def capabilities(project: str = "") -> list[str]:
    """Everything that some active worker can do."""
    workers = own(Worker.objects.live().exclude(capabilities=[]), project)
    found = workers.values_list("capabilities", flat=True)
    return sorted({word for words in found[:MOST] for word in words})[:MOST]


def find(worker_id: str, project: str = "") -> Any | None:
    """The worker's row, to read from; None if nobody knows it."""
    return own(Worker.objects.filter(pk=worker_id), project).first()


def is_active(worker: Any) -> bool:
    """Whether it is live and has been heard within its heartbeat timeout."""
    gone: bool = worker.state == WorkerState.TERMINATED
    return not gone and not worker.is_silent


def standing(worker_id: str) -> tuple[bool, frozenset[str]] | None:
    """Whether the worker shall be given jobs, and what it can do; None if it is not there."""
    columns = ("state", "directive", "labels", "capabilities")
    worker = Worker.objects.live().filter(pk=worker_id).only(*columns).first()
    if worker is None:
        return None
    return worker.may_fetch, frozenset(worker.labels) | frozenset(worker.capabilities)


def keep_stats(worker_id: str, stats: dict[str, Any]) -> None:
    """Remember what a worker measured of itself (AGQ §3.3)."""
    Worker.objects.live().filter(pk=worker_id).update(stats=stats, stats_at=Now())


def keep_queues(worker_id: str, queues: Collection[str]) -> None:
    """Remember which queues a worker pulls from, where it does not say so at registration."""
    Worker.objects.live().filter(pk=worker_id).update(queues=list(queues))


def job(job_id: UUID, project: str = "") -> Any | None:
    """A job's state, holder and how long it is reserved; None if there is no such job."""
    columns = ("state", "reserved_by", "reserved_until", "result")
    return own(Job.objects.only(*columns).filter(pk=job_id), project).first()


def held_by(worker_id: str) -> dict[UUID, int]:
    """The jobs in a worker's hands, and the attempt that each is at."""
    return dict(Job.objects.held_by(worker_id).values_list("pk", "attempt"))


def extend(job_id: UUID, worker_id: str) -> bool:
    """Start the job's reservation again; False if the worker does not hold it (§5.4)."""
    return bool(engine.extend([job_id], worker_id=worker_id))


def report_progress(job_id: UUID, worker_id: str, share: float | None, task: Any) -> bool:
    """Note how far the job is, 0 to 1, and at which task; False if the worker does not hold it.

    A report is a sign of life of the job: its reservation starts again.
    """
    data = None if task is None else {"current_task": task}
    engine.report_progress(job_id, value=share, data=data, worker_id=worker_id)
    return Job.objects.held_by(worker_id).filter(pk=job_id).exists()
