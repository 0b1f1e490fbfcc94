"""Making jobs exist: into their queues, by the queues' rules and the jobs' unique policies.

Below `flow`: what ended to make room for them is returned. `enqueue` is the verb.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from ..conf import ojs_settings
from ..errors import DuplicateJob
from ..models import Job
from ..signals import jobs_enqueued, send_on_commit
from ..spec.batches import in_parts, representatives
from ..spec.validation import NewJob
from ..store import clock
from ..store.contract import stamp
from ..store.database import alias, atomic, on_commit
from ..store.stores import store
from . import bounds, limits, maintenance, queue_policy
from .unique import Conflicts

BATCH = 1000


def insert_jobs(new: Sequence[NewJob]) -> list[UUID]:
    """Store the jobs, all or none, in the caller's transaction; return those that ended for them.

    Raises:
        DuplicateJob: a job with one of the ids exists, or the batch names an id twice; or a
            unique policy says reject.
        QueueFull, QueueClosed, JobTypeNotAllowed: a queue among them does not take its jobs.
        InMaintenance: nothing is enqueued now.
    """
    if not any(job.unique is not None for job in representatives(new)):
        return _insert_into_queues(new)
    if not bounds.are_accepted():
        # Before anything gives way, or a duplicate is found of one that could not be made.
        maintenance.refuse_jobs()
    stamp(new, clock.now())
    conflicts = Conflicts(new)
    kept = conflicts.settle()
    ended = _insert_into_queues(kept)
    conflicts.cancel_replaced()
    return conflicts.ended + ended


def _insert_into_queues(new: Sequence[NewJob]) -> list[UUID]:
    try:
        insert_freely(new)
    except bounds.Guarded:
        return insert_guarded(new)
    return []


def insert_freely(new: Sequence[NewJob]) -> None:
    """Store jobs that their queues simply take.

    Raises:
        Guarded: a queue has rules for new jobs, and nothing was stored: `insert_guarded` asks it.
    """
    if not new:
        return
    unknown, is_made = _make_unknown_queues(new)
    if bounds.are_accepted():
        each = list(new)
        bounds.fill_in(each)
        _store_all(each, admitted=True)
    else:
        _store_all(new)
    _inserted(new, unknown, is_made)


def insert_guarded(new: Sequence[NewJob]) -> list[UUID]:
    """Store jobs after their queues were asked, in the caller's transaction; return what ended."""
    unknown, is_made = _make_unknown_queues(new)
    each = list(new)
    ended = bounds.admit(each)
    _store(each, admitted=True)
    _inserted(new, unknown, is_made)
    return ended


def _make_unknown_queues(new: Sequence[NewJob]) -> tuple[set[str], bool]:
    """Return the queues that this process does not know, and whether they were made just now."""
    unknown = _unknown_queues({job.queue for job in representatives(new)})
    policy = queue_policy.default_policy() if unknown else {}
    if policy:
        # First: it has something to say about these jobs already.
        queue_policy.make(unknown, policy)
    return unknown, bool(policy)


def _inserted(new: Sequence[NewJob], unknown: set[str], is_made: bool) -> None:
    if unknown:
        # They exist from their first use on; a process asks once for each.
        if not is_made:
            queue_policy.make(unknown, {})
        known = _known_queues[alias()]
        on_commit(lambda: known.update(unknown))
    if jobs_enqueued.has_listeners():
        send_on_commit(jobs_enqueued, Job, jobs=new)


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
        while (stored := store().insert(batch, asks_queues=not admitted)) < len(batch):
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


_known_queues: defaultdict[str, set[str]] = defaultdict(set)
"""By the alias of their database."""


def _unknown_queues(names: set[str]) -> set[str]:
    """Those that this process has not made sure of yet."""
    # A test suite's reset deletes queues behind the other server processes' backs.
    return names if ojs_settings.CONFORMANCE_MODE else names - _known_queues[alias()]


def forget_queues() -> None:
    """Forget which queues exist (after one was deleted)."""
    _known_queues.pop(alias(), None)
