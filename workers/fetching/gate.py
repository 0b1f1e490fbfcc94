"""Fetch gate: whether a worker may have more jobs, how many, and which.

A worker gets none if it is quiet or terminating, or was asked to be (§6.6), if it was declared dead
and not heard since, or if it already runs as many as it can (§8.2). An unknown worker is treated
like one that declared nothing.
"""

from __future__ import annotations

from functools import partial

from jobs.engine import Admission, Gate
from jobs.store.sql import read

from ..liveness.holdings import held_by
from ..models import Worker
from .abilities import able


def evaluate(worker_id: str, *, registered: bool = False) -> Admission:
    """Evaluate the gate for a worker; `GATE` and `REGISTERED` do so inside a statement."""
    worker = Worker.objects.filter(pk=worker_id).first() if worker_id else None
    if registered and (worker is None or worker.registered_at is None):
        return Admission(0, (), {})
    if worker is None:
        return Admission(None, able(worker_id, [], []), {})
    words = able(worker_id, worker.labels, worker.capabilities)
    versions = worker.job_versions or {}
    if not worker.may_fetch:
        return Admission(0, words, versions)
    if worker.concurrency is None:
        return Admission(None, words, versions)
    return Admission(worker.concurrency - held_by([worker]).count(), words, versions)


SQL = read("workers.store.postgres", "gate")
GATE = Gate(SQL, evaluate)
REGISTERED = Gate(
    SQL.replace("worker.worker_id IS NULL THEN NULL", "worker.registered_at IS NULL THEN 0"),
    partial(evaluate, registered=True),
)
"""The gate for workers that must register before they get jobs (AGQ §6)."""
