"""Reservations: extended by heartbeats, lost by time or with their worker (OJS worker §5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import F, Value
from django.db.models.functions import Coalesce, Now
from django.db.models.lookups import LessThan
from django.utils import timezone

from .. import wakeup
from ..database import atomic, connection
from ..events import job_event, record
from ..lifecycle import Event, State
from ..models import Job, JobError
from ..querysets import JobQuerySet
from ..retry import RetryPolicy
from ..signals import jobs_reclaimed, send_on_commit
from .failure import keeps_dead_letter

BATCH_SIZE = 1000


@dataclass(frozen=True)
class Cause:
    """Why a reservation was taken back; `type` is a word of Appendix B."""

    type: str
    message: str


VISIBILITY_TIMEOUT = Cause(
    "visibility_timeout", "The visibility timeout passed without ACK, FAIL or heartbeat."
)
WORKER_DEATH = Cause("worker_death", "The worker that held the job was declared dead.")


def extend(
    job_ids: Collection[UUID],
    *,
    worker_id: str,
    requested: timedelta | None = None,
    at_least: timedelta | None = None,
) -> set[UUID]:
    """Restart the visibility timeout of the jobs `worker_id` holds; return which (§5.4).

    A job's own visibility timeout wins over the one requested; without either the period of its
    reservation starts again. Jobs fetched without a worker id are adopted by the worker that
    says it runs them.

    Args:
        at_least: shortest period, so that a terminating worker's reservations last its grace
            period even if it sends no more heartbeats.
    """
    if not job_ids:
        return set()
    period: Any = F("reserved_for")
    if requested is not None:
        period = Coalesce(F("visibility_timeout"), _duration(requested))
    if at_least is not None and connection().vendor == "postgresql":
        period = models.functions.Greatest(period, _duration(at_least))
    elif at_least is not None:
        # Two-argument MAX() of SQLite loses the type of a duration.
        period = models.Case(
            models.When(LessThan(period, _duration(at_least)), then=_duration(at_least)),
            default=period,
        )
    until = models.ExpressionWrapper(Now() + period, output_field=models.DateTimeField())
    with atomic():
        # Locked in the order of ids, as every batch does: no deadlock with a batch of ACKs.
        held = list(
            Job.objects.active()
            .filter(pk__in=job_ids, reserved_by__in=(worker_id, ""))
            .order_by("pk")
            .select_for_update()
            .values_list("pk", flat=True)
        )
        if held:
            Job.objects.active().filter(pk__in=held).update(
                reserved_until=until, reserved_by=worker_id
            )
    return set(held)


def _duration(value: timedelta) -> Value:
    return Value(value, output_field=models.DurationField())


def expire() -> int:
    """Take back one batch of reservations whose time has passed (§5.5); return how many."""
    return reclaim(Job.objects.overdue(), VISIBILITY_TIMEOUT)


def reclaim(jobs: JobQuerySet, cause: Cause) -> int:
    """Take active jobs back from their workers, one batch; return how many.

    Each gets an error of the attempt it was in. With attempts left it becomes available at once
    with the next attempt already counted (see `claim`), else it is discarded (§5.5, §10.2).
    Jobs locked by somebody else are being settled or extended right now, and left alone.
    """
    now = timezone.now()
    with atomic():
        lost = list(
            jobs.order_by("pk")
            .select_for_update(skip_locked=connection().features.has_select_for_update_skip_locked)
            .only("type", "queue", "attempt", "max_attempts", "retry", "reserved_by", "state")[
                :BATCH_SIZE
            ]
        )
        if not lost:
            return 0
        JobError.objects.bulk_create(
            JobError(
                job_id=job.pk,
                attempt=job.attempt,
                type=cause.type,
                code=cause.type,
                message=cause.message,
                worker_id=job.reserved_by,
                occurred_at=now,
            )
            for job in lost
        )
        spent = [job for job in lost if not job.has_attempts_left]
        _return(sorted({job.pk for job in lost} - {job.pk for job in spent}))
        _discard(spent)
        record(event for job in lost for event in _events(job, cause, now))
        wakeup.notify({job.queue for job in lost})
    send_on_commit(jobs_reclaimed, Job, count=len(lost), error_type=cause.type)
    return len(lost)


def _return(ids: Sequence[UUID]) -> None:
    Job.objects.filter(pk__in=ids).transition(
        Event.TIMEOUT,
        State.AVAILABLE,
        attempt=F("attempt") + 1,
        attempt_counted=True,
        enqueued_at=Now(),
    )


def _discard(spent: Sequence[Job]) -> None:
    for dead_letter in (True, False):
        ids = [
            job.pk
            for job in spent
            if keeps_dead_letter(RetryPolicy.parse(job.retry)) is dead_letter
        ]
        if ids:
            Job.objects.filter(pk__in=ids).transition(
                Event.TIMEOUT, State.DISCARDED, dead_letter=dead_letter
            )


def _events(job: Job, cause: Cause, now: Any) -> list[Any]:
    error = {"code": cause.type, "message": cause.message}
    told: dict[str, Any] = {"time": now, "worker_id": job.reserved_by}
    again = job.has_attempts_left
    failed = {"error": error | {"retryable": again}, "state": "available" if again else "discarded"}
    events = [job_event("job.failed", job, data=failed, **told)]
    if again:
        retry = {"max_attempts": job.max_attempts, "next_retry_at": now.isoformat(), "error": error}
        events.append(job_event("job.retrying", job, data=retry | {"state": "available"}, **told))
    else:
        last = {"total_attempts": job.attempt, "last_error": error}
        events.append(job_event("job.discarded", job, data=last, **told))
    return events
