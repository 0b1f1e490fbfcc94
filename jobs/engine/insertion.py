"""Inserts jobs into their queues, under the queues' rules and the jobs' unique policies.

A layer below `flow`: jobs that ended to make room are returned. The verb is `enqueue`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from uuid import UUID

from django.db.models import QuerySet

from ..errors import (
    DuplicateJob,
    InMaintenance,
    JobTooLarge,
    JobTypeNotAllowed,
    QueueClosed,
    QueueFull,
    TenantLimitExceeded,
)
from ..models import Job
from ..signals import jobs_enqueued, send_on_commit
from ..spec.batches import in_parts, representatives
from ..spec.tenants import default_tenant
from ..spec.validation import NewJob
from ..store import clock
from ..store.contract import ANY_REGISTRY, stamp
from ..store.database import atomic, on_commit
from ..store.stores import store
from . import (
    bounds,
    limits,
    lineage,
    maintenance,
    queue_marks,
    queue_policy,
    schemas,
    tenants,
    unique,
)

BATCH = 1000
CLOSED = (
    InMaintenance,
    JobTooLarge,
    JobTypeNotAllowed,
    QueueClosed,
    QueueFull,
    TenantLimitExceeded,
)
"""Refusals of new jobs that an earlier request for the same jobs may have escaped."""


def insert_jobs(new: Sequence[NewJob]) -> list[UUID]:
    """Store the jobs, all or none, in the caller's transaction; return those that gave way to them.

    Raises:
        DuplicateJob: a job with one of the ids exists, the batch repeats an id, or a unique
            policy is `reject`.
        QueueFull, QueueClosed, JobTypeNotAllowed: one of the queues does not accept its jobs.
        TenantLimitExceeded, JobTooLarge: a tenant is at one of its limits.
        InMaintenance: enqueues are refused now.
        InvalidArguments: a job does not match the schema of its type.
    """
    if not any(job.unique is not None for job in representatives(new)):
        return _insert_into_queues(new)
    if not bounds.are_accepted():
        # Before any job gives way, or is reported a duplicate of one that could not be stored.
        with _unless_stored(new):
            maintenance.refuse_jobs()
    stamp(new, clock.now())
    conflicts = unique.Conflicts(new)
    kept = conflicts.settle()
    ended = _insert_into_queues(kept)
    conflicts.cancel_replaced()
    return conflicts.ended + ended


def lock_for(new: Sequence[NewJob]) -> None:
    """Lock what these jobs need, in the order of an enqueue of all of them.

    For those who enqueue them one after another in one transaction. Queues are made.
    """
    unique.lock([job.unique for job in new if job.unique])
    unknown = _unknown_queues({job.queue for job in new})
    queue_policy.make(unknown, queue_policy.default_policy())
    queue_marks.lock(new, at_once=True)
    tenants.locked({job.project or default_tenant() for job in new})
    limits.lock({job.rate_key for job in new if job.rate_limit})


def _insert_into_queues(new: Sequence[NewJob]) -> list[UUID]:
    try:
        insert_freely(new)
    except bounds.Guarded:
        return insert_guarded(new)
    return []


def insert_freely(new: Sequence[NewJob]) -> None:
    """Store jobs in queues that are not guarded.

    Raises:
        Guarded: a queue is guarded or a tenant limited, and nothing was stored: use
            `insert_guarded`.
    """
    if not new:
        return
    while True:
        known = schemas.known_queues()
        unknown, is_made = _make_unknown_queues(new)
        if bounds.are_accepted():
            each = list(new)
            bounds.fill_in(each)
            is_stored = _store_all(each, unknown, admitted=True)
        else:
            with _unless_stored(new):
                is_stored = _store_all(new, unknown)
        if is_stored:
            break
    _inserted(new, known, unknown, is_made)


def insert_guarded(new: Sequence[NewJob]) -> list[UUID]:
    """Store jobs that their queues admit, in the caller's transaction; return those that ended."""
    each = list(new)
    _refuse_repeated_ids(each)
    known = schemas.known_queues()
    unknown, is_made = _make_unknown_queues(new)
    with _unless_stored(each):
        queue_marks.lock(each)
        ended = bounds.admit(each)
        tenants.admit(each)
    while not _store(each, unknown, admitted=True):
        known = schemas.known_queues()
        unknown, is_made = _make_unknown_queues(new)
    _inserted(new, known, unknown, is_made)
    return ended


def _make_unknown_queues(new: Sequence[NewJob]) -> tuple[set[str], bool]:
    """Return the queues this process does not know yet, and whether they were created just now."""
    unknown = _unknown_queues({job.queue for job in representatives(new)})
    policy = queue_policy.default_policy() if unknown else {}
    if policy:
        # Queues first: the default policy already applies to these jobs.
        queue_policy.make(unknown, policy)
    return unknown, bool(policy)


def _inserted(new: Sequence[NewJob], known: set[str], unknown: set[str], is_made: bool) -> None:
    if unknown:
        # A queue exists from its first use on; a process checks each one once.
        if not is_made:
            queue_policy.make(unknown, {})
        on_commit(lambda: known.update(unknown))
    if jobs_enqueued.has_listeners():
        send_on_commit(jobs_enqueued, Job, jobs=new)


def _store_all(new: Sequence[NewJob], made: set[str], *, admitted: bool = False) -> bool:
    if len(new) > BATCH or any(job.client_id or job.rate_limit for job in representatives(new)):
        # Ids chosen by clients may be taken, and a second statement may fail after the first has
        # succeeded; then everything is rolled back.
        _refuse_repeated_ids(new)
        with atomic():
            return _store(new, made, admitted=admitted)
    return _store(new, made, admitted=admitted)


def _store(new: Sequence[NewJob], made: set[str], *, admitted: bool = False) -> bool:
    """Store the jobs; False, and nothing is stored, if a queue must be made sure of again.

    Args:
        made: queues that this process did not know, and has made sure of.
        admitted: guarded queues have admitted the jobs, and maintenance has been checked.

    Raises:
        InMaintenance: enqueues are refused now.
        Guarded: a queue or a tenant must admit the jobs first; nothing was stored.
        InvalidArguments: a job does not match the schema of its type.
        InvalidRequest: there is no such parent.
    """
    lenient = bounds.are_accepted()
    lineage.settle(new, lenient=lenient)
    tenants.give_fallback(new)
    found, registry = schemas.checked(new, lenient=lenient)
    if _unknown_queues({job.queue for job in representatives(new)}) - made:
        return False
    if not admitted and tenants.are_limited(new):
        # For admitted jobs maintenance is not checked again.
        maintenance.refuse_jobs()
        if schemas.is_stale(registry):
            schemas.read_again()
            return False
        raise bounds.Guarded
    if not _store_checked(found, registry, admitted):
        # A schema, a tenant or a queue has been changed since this process read them.
        schemas.read_again()
        return False
    # Queues before partitions, as a fetch locks them.
    queue_marks.prepare_new(new)
    limits.know([job for job in representatives(new) if job.rate_limit])
    return True


def _store_checked(new: Sequence[NewJob], registry: str, admitted: bool) -> bool:
    """Store jobs whose arguments were checked; False if the schemas have changed since.

    Args:
        registry: the token of the schemas by which they were checked.
    """
    for batch in in_parts(new, BATCH):
        asks = not admitted
        while (stored := store().insert(batch, asks_queues=asks, registry=registry)) < len(batch):
            if not admitted:
                maintenance.refuse_jobs()
            if not stored and schemas.is_stale(registry):
                return False
            if not (admitted or stored) and bounds.guarded(
                {job.queue for job in representatives(batch)}
            ):
                raise bounds.Guarded
            taken = _taken(batch)
            if stored or taken:
                raise _duplicate_of(taken or batch[0])
            # The cause of the refusal is gone: try once more.
        # All of them were checked, and the first ones found the registry unchanged.
        registry = ANY_REGISTRY
    return True


def _refuse_repeated_ids(new: Sequence[NewJob]) -> None:
    seen = set()
    for job in representatives(new):
        if job.id in seen:
            raise DuplicateJob(f"Two jobs of this request have the id '{job.id}'.")
        seen.add(job.id)


def _duplicate_of(job: NewJob) -> DuplicateJob:
    return DuplicateJob(f"A job with id '{job.id}' already exists.", existing_job_id=str(job.id))


@contextlib.contextmanager
def _unless_stored(new: Sequence[NewJob]) -> Iterator[None]:
    """Jobs are refused inside only if they are new: a client may repeat its request.

    Raises:
        DuplicateJob: instead of the refusal, if a job with one of the ids exists.
    """
    try:
        yield
    except CLOSED as refusal:
        known = _first_of(new, Job.objects.all())
        if known is None:
            raise
        raise _duplicate_of(known) from refusal


def _taken(batch: Sequence[NewJob]) -> NewJob | None:
    """Find a job whose id is taken. On PostgreSQL the rest of the batch is stored by now."""
    return _first_of(batch, Job.objects.exclude(created_at=batch[0].created_at))


def _first_of(new: Sequence[NewJob], stored: QuerySet[Job]) -> NewJob | None:
    """Find a job with an id of the client's that is among those stored."""
    ids = [job.id for job in representatives(new) if job.client_id]
    existing = stored.filter(pk__in=ids).values_list("pk", flat=True).first() if ids else None
    return next((job for job in new if job.id == existing), None) if existing else None


def _unknown_queues(names: set[str]) -> set[str]:
    """Return the queues that this process has not yet made sure of."""
    return names - schemas.known_queues()


def forget_queues() -> None:
    """Forget which queues exist (after rows were deleted other than by `queues.delete`)."""
    schemas.known_queues().clear()
