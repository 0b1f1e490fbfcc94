"""PUSH: make jobs exist (OJS core §7.1). Validation has already happened; see `validation`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

from ..errors import QueueFull
from ..models import Dependency
from ..spec.batches import representatives
from ..spec.validation import NewJob
from . import bounds, dependencies, insertion
from .flow import ending


def enqueue(new: Sequence[NewJob]) -> Sequence[NewJob]:
    """Store the jobs, all or none, and wake those that wait for them (OJS core §7.1).

    The jobs come back with the fields only the server knows. One that its unique policy ignored
    is not stored; `existing` is the job that is there already.

    Raises:
        DuplicateJob: a job with one of the ids exists, or the batch names an id twice; or a
            unique policy says reject.
        QueueFull, QueueClosed, JobTypeNotAllowed: a queue among them does not take its jobs.
        InMaintenance: nothing is enqueued now.
    """
    insert = insertion.insert_jobs
    if not any(job.unique is not None for job in representatives(new)):
        try:
            # Nearly all: one statement, which is a transaction by itself.
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
            # What was undone was not recorded either; the refusal must be.
            bounds.record_refusal(refusal)
        raise


def enqueue_after(
    new: Sequence[NewJob],
    depends_on: Mapping[UUID, Sequence[UUID]],
    *,
    condition: str = Dependency.SUCCESS,
    pass_results: bool = True,
) -> Sequence[NewJob]:
    """Store the jobs, all or none; those named in `depends_on` wait for the jobs it gives.

    A waiting job becomes available when all its predecessors have settled, with their results as
    `parent_results`, in the order given. One whose predecessor ends otherwise than completed is
    cancelled, and those that wait for it in turn; with the condition `settled` any end will do.

    Args:
        depends_on: id of a new job → ids of jobs, new ones too.
        condition: `success` or `settled`.
        pass_results: give the job its predecessors' results.

    Raises:
        InvalidRequest: a predecessor does not exist, or the jobs wait for each other in a circle.
        DuplicateJob: see `enqueue`.
    """
    with enqueueing() as ended:
        ended += dependencies.insert_after(
            new, depends_on, condition=condition, pass_results=pass_results
        )
    return new
