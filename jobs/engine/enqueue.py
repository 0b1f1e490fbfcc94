"""PUSH: enqueue validated jobs (OJS core §7.1); see `validation`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from ..errors import QueueFull, TenantLimitExceeded
from ..models import Dependency
from ..record import tracing
from ..spec.batches import representatives
from ..spec.validation import NewJob
from . import bounds, dependencies, insertion, tenants
from .flow import ending


def enqueue(new: Sequence[NewJob]) -> Sequence[NewJob]:
    """Store the jobs, all or none, and wake the fetches that wait for them (OJS core §7.1).

    The jobs are returned with the fields only the server sets. A job ignored by its unique policy
    is not stored; its `existing` is the job already there.

    Raises:
        DuplicateJob: a job with one of the ids exists, the batch repeats an id, or a unique
            policy is `reject`.
        QueueFull, QueueClosed, JobTypeNotAllowed: one of the queues does not accept its jobs.
        TenantLimitExceeded, JobTooLarge: a tenant is at one of its limits.
        InMaintenance: enqueues are refused now.
        InvalidArguments: a job does not match the schema of its type, whose mode is `strict`.
    """
    insert = insertion.insert_jobs
    with tracing.enqueueing(new):
        if not any(job.unique is not None for job in representatives(new)):
            try:
                # The usual case: one statement, which is a transaction of its own.
                insertion.insert_freely(new)
                return new
            except bounds.Guarded:
                insert = insertion.insert_guarded
        with enqueueing() as ended:
            ended += insert(new)
    return new


@contextlib.contextmanager
def enqueueing() -> Iterator[list[UUID]]:
    """A transaction in which jobs are inserted; see `ending`."""
    try:
        with ending() as ended:
            yield ended
    except QueueFull as refusal:
        if not bounds.is_patient():
            # The rollback undid its record as well; the refusal must be recorded.
            bounds.record_refusal(refusal)
        raise
    except TenantLimitExceeded as refusal:
        tenants.record_refusal(refusal)
        raise


def enqueue_after(
    new: Sequence[NewJob],
    depends_on: Mapping[UUID, Sequence[UUID]],
    *,
    condition: str = Dependency.SUCCESS,
    pass_results: bool = True,
) -> Sequence[NewJob]:
    """Store the jobs, all or none; those in `depends_on` wait for the jobs listed there.

    A waiting job becomes available when all its predecessors have settled, with their results as
    `parent_results`, in the order given. If a predecessor ends without completing, the job is
    cancelled, and so are its dependents; with the condition `settled` any end will do.

    Args:
        depends_on: id of a new job → ids of its predecessors, which may be new too.
        condition: `success` or `settled`.
        pass_results: give the job its predecessors' results.

    Raises:
        InvalidRequest: a predecessor does not exist, or the dependencies form a cycle.
        DuplicateJob: see `enqueue`.
    """
    with tracing.enqueueing(new), enqueueing() as ended:
        ended += dependencies.insert_after(
            new, depends_on, condition=condition, pass_results=pass_results
        )
    return new
