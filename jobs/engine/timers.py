"""Sweeps for jobs that are due, overrun or expired; one batch each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F

from ..models import Event as EventRow
from ..models import Job, JobError
from ..models.querysets import JobQuerySet
from ..record.events import PREVIOUS, discarded_events, job_event, record
from ..signals import jobs_discarded, jobs_failed, jobs_promoted, send_on_commit
from ..spec.envelope import milliseconds, timeout_details
from ..spec.lifecycle import Event, State
from ..spec.reports import Failure
from ..spec.retry import by_dead_letter
from ..spec.time_limits import enqueue_ttl, is_about_its_start
from ..store import clock, looks
from ..store.contract import BATCH_SIZE, HEAD_START
from ..store.expressions import Among
from ..store.portable import skips_locked
from ..store.rows import insert_rows
from ..store.stores import store
from .failure import fail_locked
from .flow import ending


def locked(jobs: JobQuerySet, *columns: str) -> list[Job]:
    """Lock one batch, skipping rows that are being changed right now."""
    return list(jobs.select_for_update(skip_locked=skips_locked()).only(*columns)[:BATCH_SIZE])


def promote_due(head_start: timedelta = HEAD_START) -> int:
    """Make scheduled and retryable jobs that are due available (OJS core §6.3).

    None during maintenance (OJS admin API §12.1).

    Args:
        head_start: how long due jobs are left to fetches, which take them without promotion.
    """
    count = store().promote(head_start)
    if count:
        send_on_commit(jobs_promoted, Job, count=count)
    return count


@looks.only_if_any(Job.objects.overrun)
def time_out() -> int:
    """Fail one batch of jobs past their execution timeout (OJS core §5.2); their policy decides."""
    with ending() as ended:
        overrun: list[Any] = list(
            Job.objects.overrun()
            .to_fail()
            .order_by("pk")
            .select_for_update(skip_locked=skips_locked())[:BATCH_SIZE]
        )
        if not overrun:
            return 0
        failures = [_overrun(job) for job in overrun]
        record(
            job_event(
                "job.timeout", job, time=job.now, worker_id=job.reserved_by, data=failure.details
            )
            for job, failure in zip(overrun, failures, strict=True)
        )
        outcomes, ended[:] = fail_locked(zip(overrun, failures, strict=True))
    if outcomes:
        send_on_commit(jobs_failed, Job, outcomes=outcomes)
    return len(outcomes)


def _overrun(job: Any) -> Failure:
    limit = milliseconds(job.timeout)
    return Failure(
        job.pk,
        worker_id=job.reserved_by,
        type="timeout",
        code="timeout",
        message=f"The job ran longer than its timeout of {limit} ms.",
        details={"timeout_ms": limit}
        | timeout_details("execution", job.timeout, job.now - job.started_at),
    )


@looks.only_if_any(Job.objects.expired)
def discard_expired() -> int:
    """Discard one batch of jobs not fetched before their `expires_at` or `enqueue_ttl` passed
    (OJS core §5.2, timeouts §5.3)."""
    now = clock.now()
    with ending() as ended:
        stale = locked(
            Job.objects.expired().order_by("expires_at"),
            "type",
            "queue",
            "state",
            "attempt",
            "attributes",
            "created_at",
            "expires_at",
            "followed",
        )
        if not stale:
            return 0
        Job.objects.these(stale).transition(Event.EXPIRE, State.DISCARDED)
        late = {job.pk: error for job in stale if (error := _outwaited(job, now))}
        insert_rows(late.get(job.pk) or _expired(job, now) for job in stale)
        record(
            job_event("job.ttl_expired", job, time=now, data=late[job.pk].details)
            for job in stale
            if job.pk in late
        )
        record(job_event("job.expired", job, time=now, data=_expiry(job, now)) for job in stale)
        ended += [job.pk for job in stale if job.followed]
    send_on_commit(jobs_discarded, Job, count=len(stale), reason="expired")
    return len(stale)


def _expiry(job: Job, now: datetime) -> dict[str, Any]:
    assert job.expires_at is not None
    return {
        "created_at": job.created_at.isoformat(),
        "expired_at": now.isoformat(),
        # A job may be enqueued with a deadline that has passed.
        "ttl_ms": max(0, milliseconds(job.expires_at - job.created_at)),
        PREVIOUS: str(job.state),
    }


def _outwaited(job: Job, now: datetime) -> JobError | None:
    """Return the error of a job that expired by its `enqueue_ttl` (OJS timeouts §8), else None."""
    ttl = enqueue_ttl(job)
    if ttl is None or not is_about_its_start(job):
        return None
    return JobError(
        job=job,
        attempt=job.attempt,
        type="enqueue_ttl_expired",
        code="enqueue_ttl_expired",
        message=f"No worker took the job within its {ttl.total_seconds():.0f} s.",
        details=timeout_details("enqueue_ttl", ttl, now - job.created_at),
        occurred_at=now,
    )


def _expired(job: Job, now: datetime) -> JobError:
    attempt = "further attempt" if job.attempt else "attempt"
    return JobError(
        job=job,
        attempt=job.attempt,
        type="expired",
        code="expired",
        message=f"No {attempt} began before the job expired.",
        occurred_at=now,
    )


@looks.only_if_any(Job.objects.overdrawn)
def discard_overdrawn() -> int:
    """Discard one batch of unfinished jobs past the `total_timeout` of all their attempts.

    This holds whatever attempts are left, even for active jobs (OJS timeouts §5.2): a worker's ACK
    is refused from then on.
    """
    now = clock.now()
    with ending() as ended:
        late = locked(
            Job.objects.overdrawn().order_by("deadline"),
            "type",
            "queue",
            "state",
            "attempt",
            "retry",
            "reserved_by",
            "created_at",
            "deadline",
            "followed",
        )
        if not late:
            return 0
        errors = {job.pk: _overdraft(job, now) for job in late}
        insert_rows(errors.values())
        kept: set[UUID] = set()
        for dead_letter, ids in by_dead_letter(late):
            kept |= {*ids} if dead_letter else set()
            jobs = Job.objects.filter(Among("pk", ids))
            jobs.transition(Event.EXPIRE, State.DISCARDED, dead_letter=dead_letter)
            jobs.transition(
                Event.FAIL, State.DISCARDED, dead_letter=dead_letter, finished_by=F("reserved_by")
            )
        record(
            event
            for job in late
            for event in _overdraft_events(job, errors[job.pk], dead_letter=job.pk in kept)
        )
        ended += [job.pk for job in late if job.followed]
    send_on_commit(jobs_discarded, Job, count=len(late), reason="total_timeout")
    return len(late)


def _overdraft(job: Job, now: datetime) -> JobError:
    assert job.deadline is not None
    limit = job.deadline - job.created_at
    return JobError(
        job=job,
        attempt=job.attempt,
        type="total_timeout",
        code="total_timeout",
        message=f"The job did not end within its {limit.total_seconds():.0f} s.",
        details=timeout_details("total", limit, now - job.created_at),
        worker_id=job.reserved_by,
        occurred_at=now,
    )


def _overdraft_events(job: Job, error: JobError, *, dead_letter: bool) -> Iterable[EventRow]:
    recorded: dict[str, Any] = {"time": error.occurred_at, "worker_id": job.reserved_by}
    what = {"code": error.code, "message": error.message}
    yield job_event("job.total_timeout", job, data=error.details, **recorded)
    if job.state == State.ACTIVE:
        failed = {"error": what | {"retryable": False}, "state": "discarded"}
        yield job_event("job.failed", job, data=failed, **recorded)
    last = {"total_attempts": job.attempt, "last_error": what, PREVIOUS: str(job.state)}
    yield from discarded_events(
        job, data=last, exhausted=False, dead_letter=dead_letter, **recorded
    )
