"""PUSH: make jobs exist (OJS core §7.1). Validation has already happened; see `validation`."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import DuplicateJob
from ..models import Job
from ..signals import jobs_enqueued, send_on_commit
from ..spec.batches import in_parts, representatives
from ..spec.validation import NewJob
from ..store import clock
from ..store.database import atomic, on_commit
from . import bounds, limits, maintenance, queue_policy
from .insertion import insert, stamp

BATCH = 1000


def enqueue(new: Sequence[NewJob]) -> Sequence[NewJob]:
    """Store the jobs, all or none, and tell those that wait for them (OJS core §7.1).

    The jobs come back with the fields only the server knows. One that its unique policy ignored
    is not stored; `existing` is the job that is there already.

    Raises:
        DuplicateJob: a job with one of the ids exists, or the batch names an id twice; or a
            unique policy says reject.
        QueueFull, QueueClosed, JobTypeNotAllowed: a queue among them does not take its jobs.
    """
    if not new:
        return new
    if any(job.unique is not None for job in representatives(new)):
        return _enqueue_unique(new)
    return _enqueue(new)


def _enqueue_unique(new: Sequence[NewJob]) -> Sequence[NewJob]:
    # Late: what gives way is cancelled, and what waited for it may have to be enqueued.
    from .unique import Conflicts

    if not bounds.are_accepted():
        # Before anything gives way, or a duplicate is told of one that could not be made.
        maintenance.refuse_jobs()
    with atomic():
        stamp(new, clock.now())
        conflicts = Conflicts(new)
        _enqueue(conflicts.settle())
        conflicts.cancel_replaced()
    return new


def _enqueue(new: Sequence[NewJob]) -> Sequence[NewJob]:
    if not new:
        return new
    unknown = _unknown_queues({job.queue for job in representatives(new)})
    policy = queue_policy.default_policy() if unknown else {}
    if policy:
        # First: it has something to say about these jobs already.
        queue_policy.make(unknown, policy)
    try:
        if bounds.are_accepted():
            each = list(new)
            bounds.fill_in(each)
            _store_all(each, admitted=True)
        else:
            _store_all(new)
    except bounds.Guarded:
        each = list(new)
        bounds.store(each, lambda: _store(each, admitted=True))
    if unknown:
        _know_queues(unknown, are_made=bool(policy))
    if jobs_enqueued.has_listeners():
        send_on_commit(jobs_enqueued, Job, jobs=new)
    return new


def _store_all(new: Sequence[NewJob], *, admitted: bool = False) -> None:
    if len(new) > BATCH or any(job.client_id or job.rate_limit for job in representatives(new)):
        # Ids that somebody else chose may be taken, and a second statement may fail when the
        # first has succeeded; then all is undone.
        _refuse_repeated_ids(new)
        with atomic():
            _store(new, admitted=admitted)
    else:
        _store(new, admitted=admitted)


def _store(new: Sequence[NewJob], *, admitted: bool = False) -> None:
    """
    Args:
        admitted: the guarded queues among them have agreed, and maintenance was asked.

    Raises:
        InMaintenance: nothing is enqueued now.
        Guarded: a queue has to be asked first; nothing was stored.
    """
    for batch in in_parts(new, BATCH):
        while (stored := insert(batch, admitted=admitted)) < len(batch):
            if not admitted:
                maintenance.refuse_jobs()
            if not (admitted or stored) and bounds.guarded(
                {job.queue for job in representatives(batch)}
            ):
                raise bounds.Guarded
            taken = _taken(batch)
            if stored or taken:
                raise _duplicate_of(taken or batch[0])
            # What refused them is over again, and they are tried once more.
    limits.know([job for job in representatives(new) if job.rate_limit])


def _refuse_repeated_ids(new: Sequence[NewJob]) -> None:
    seen = set()
    for job in representatives(new):
        if job.id in seen:
            raise _duplicate_of(job)
        seen.add(job.id)


def _duplicate_of(job: NewJob) -> DuplicateJob:
    return DuplicateJob(f"A job with id '{job.id}' already exists.", existing_job_id=str(job.id))


def _taken(batch: Sequence[NewJob]) -> NewJob | None:
    """Find a job whose id is taken. On PostgreSQL the others of the batch are there, ours."""
    ids = [job.id for job in batch if job.client_id]
    others = Job.objects.filter(pk__in=ids).exclude(created_at=batch[0].created_at)
    existing = others.values_list("pk", flat=True).first()
    return next((job for job in batch if job.id == existing), None)


_known_queues: set[str] = set()


def _unknown_queues(names: set[str]) -> set[str]:
    """Those that this process has not made sure of yet."""
    return names - _known_queues


def _know_queues(unknown: set[str], *, are_made: bool) -> None:
    """Make queues exist on first use; a process asks once for each."""
    if not are_made:
        queue_policy.make(unknown, {})
    on_commit(lambda: _known_queues.update(unknown))


def forget_queues() -> None:
    """Forget which queues exist (after one was deleted)."""
    _known_queues.clear()
