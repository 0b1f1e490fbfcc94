"""Whether a worker may have more jobs, how many, and which: what decides about a fetch.

Nothing for one that is quiet or terminating, or was asked to be (§6.6), that was declared dead and
has not been heard since, or that already runs all it can (§8.2). An unknown one is served like one
that declared nothing.
"""

from __future__ import annotations

from functools import partial

from jobs.engine import Admission, Gate
from jobs.models import Job
from jobs.store.sql import read

from ..models import Worker
from .abilities import able


def evaluate(worker_id: str, *, registered: bool = False) -> Admission:
    """Evaluate the gate for a worker; `GATE` and `REGISTERED` do it inside of a statement."""
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
    in_hand = Job.objects.filter(reserved_by=worker_id, reserved_for__isnull=False).count()
    return Admission(worker.concurrency - in_hand, words, versions)


SQL = read("workers.store.postgres", "gate")
GATE = Gate(SQL, evaluate)
REGISTERED = Gate(
    SQL.replace("worker.worker_id IS NULL THEN NULL", "worker.registered_at IS NULL THEN 0"),
    partial(evaluate, registered=True),
)
"""Where a worker must register before it is given anything (AGQ §6)."""
