"""Cancel, retry or delete many jobs: a filter, taken in bounded batches (OJS bulk operations).

Each batch is one transaction with its events, so a request that is cut short has finished whole
batches and can be repeated; within an outer transaction they all commit together. Jobs whose state
does not allow the verb are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID

from django.db.models.functions import Now

from ..models import Job
from ..models.querysets import JobQuerySet
from ..record.events import PREVIOUS, job_event, record
from ..spec.lifecycle import TERMINAL, WAITING, Event, State
from ..store import clock, wakeup
from ..store.database import atomic
from .control import cancel_jobs, lock_retriable, retriable, retry_locked
from .retention import erase, lock_deletable, unattached

BATCH = 500
MOST = 10_000
"""Most jobs changed by one call; for more, call again."""
CANCELLABLE = frozenset(WAITING | {State.ACTIVE})
RETRIABLE = frozenset({State.DISCARDED, State.RETRYABLE})
DELETABLE = TERMINAL


def preview(jobs: JobQuerySet, *, most: int = MOST) -> tuple[int, bool]:
    """Return how many of the jobs that a verb would change it changes at once, and whether there
    are more."""
    found = jobs.order_by()[: most + 1].count()
    return min(found, most), found > most


def again(jobs: JobQuerySet, *, cancelled: bool = False) -> JobQuerySet:
    """What `retry` would retry."""
    return retriable(jobs, cancelled=cancelled, also={State.RETRYABLE})


def deletable(jobs: JobQuerySet) -> JobQuerySet:
    """What `delete` would delete."""
    return unattached(jobs).filter(state__in=sorted(DELETABLE))


def purgeable(jobs: JobQuerySet, states: Iterable[State]) -> JobQuerySet:
    """What `purge` would delete."""
    alone = jobs.filter(workflow__isnull=True, followed=False).unprotected()
    return alone.filter(state__in=sorted(frozenset(states) - {State.ACTIVE}))


def why_spared(workflow: UUID | None, did: str) -> str:
    """Say why a verb leaves a job alone though its state allows it."""
    if workflow is not None:
        return f"Job belongs to a workflow and cannot be {did} without it"
    return f"Job cannot be {did}: another job waits for it, or a row of this site refers to it"


def cancel(
    jobs: JobQuerySet, *, cancelled_by: str = "", reason: str = "", most: int = MOST
) -> list[UUID]:
    """Cancel the unfinished jobs among `jobs`; return their ids (OJS core §7.6, bulk §6)."""

    def move(batch: list[Job]) -> list[UUID]:
        ids = [job.pk for job in batch]
        return cancel_jobs(ids, cancelled_by=cancelled_by, reason=reason)

    return _in_batches(jobs.filter(state__in=sorted(CANCELLABLE)), move, most)


def retry(jobs: JobQuerySet, *, cancelled: bool = False, most: int = MOST) -> list[UUID]:
    """Make discarded jobs available with fresh attempts, and end the backoff of retryable ones.

    Returns their ids (OJS bulk operations §7).

    Args:
        cancelled: see `retriable`.
    """

    def move(batch: list[Job]) -> list[UUID]:
        over = Job.objects.these([job for job in batch if job.state != State.RETRYABLE])
        ended = lock_retriable(over, cancelled=cancelled)
        retry_locked(ended)
        backing_off = [job for job in batch if job.state == State.RETRYABLE]
        Job.objects.these(backing_off).transition(Event.TIMER, State.AVAILABLE, enqueued_at=Now())
        now = clock.now()
        data = {"retried": True, PREVIOUS: "retryable"}
        record(job_event("job.enqueued", job, time=now, data=data) for job in backing_off)
        wakeup.notify({job.queue for job in backing_off})
        moved = {job.pk for job in (*ended, *backing_off)}
        return [job.pk for job in batch if job.pk in moved]

    return _in_batches(again(jobs, cancelled=cancelled), move, most)


def delete(jobs: JobQuerySet, *, most: int = MOST) -> list[UUID]:
    """Permanently delete the finished jobs among `jobs`; return their ids (OJS bulk operations §8).

    Jobs of a workflow are deleted with it.
    """
    return _in_batches(deletable(jobs), _erase, most)


def purge(jobs: JobQuerySet, states: Iterable[State], *, most: int = MOST) -> list[UUID]:
    """Delete jobs that no worker holds, waiting ones too; return their ids (OJS admin API §6.5)."""
    return _in_batches(purgeable(jobs, states), _erase, most)


def _erase(batch: list[Job]) -> list[UUID]:
    ids = lock_deletable(Job.objects.these(batch))
    erase(ids)
    return ids


def _in_batches(
    jobs: JobQuerySet, move: Callable[[list[Job]], list[UUID]], most: int
) -> list[UUID]:
    """Lock and move batch after batch in id order; return the ids of those that were moved."""
    eligible = jobs.order_by("pk")
    columns = ("type", "queue", "attempt", "state", "reserved_by", "followed")
    done: list[UUID] = []
    last = None
    while len(done) < most:
        with atomic():
            # Rows already processed are not read again, whether or not they still match.
            rest = eligible if last is None else eligible.filter(pk__gt=last)
            size = min(BATCH, most - len(done))
            batch = list(rest.select_for_update().only(*columns)[:size])
            if not batch:
                break
            done += move(batch)
        last = batch[-1].pk
    return done
