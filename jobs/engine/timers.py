"""What time alone does to jobs: due, overrun, expired. Sweeps, one batch each."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F
from django.db.models.functions import Now

from ..conf import ojs_settings
from ..models import Job, JobError, Maintenance
from ..models.querysets import JobQuerySet
from ..record.events import job_event, record
from ..signals import jobs_discarded, jobs_failed, jobs_promoted, send_on_commit
from ..spec.envelope import milliseconds, timeout_details
from ..spec.lifecycle import WAITING, Event, State
from ..spec.time_limits import enqueue_ttl, is_about_its_start
from ..store import clock, wakeup
from ..store.database import atomic, connection, is_postgresql, run
from .dependents import follow
from .failure import by_dead_letter, fail_locked
from .outcomes import Failure

BATCH_SIZE = 1000
HEAD_START = timedelta(milliseconds=250)
"""A fetch takes due jobs itself and passes over locked rows: at the moment a job falls due, when
its fetch is likeliest, the timer must not hold it, or that fetch would come back empty."""

# For the same reason it holds them for one statement, not for four on their way to and fro.
PROMOTE = """
    WITH due AS MATERIALIZED (
        SELECT id
          FROM ojs_jobs_job
         WHERE state IN ('scheduled', 'retryable')
           AND scheduled_at <= statement_timestamp() - %(head_start)s::interval
           AND NOT EXISTS (SELECT 1
                             FROM ojs_jobs_maintenance
                            WHERE coalesce(until > statement_timestamp(), true))
      ORDER BY scheduled_at
         LIMIT {limit}
           FOR UPDATE SKIP LOCKED
    ), promoted AS (
        UPDATE ojs_jobs_job AS job
           SET state = 'available', enqueued_at = statement_timestamp()
          FROM due
         WHERE job.id = due.id
     RETURNING job.id, job.type, job.queue, job.attempt
    ), rung AS (
        SELECT count(pg_notify('ojs_jobs', queue))
          FROM (SELECT DISTINCT queue FROM promoted) AS queues
         WHERE EXISTS (SELECT 1 FROM ojs_jobs_listener)
    ){recorded}
    SELECT (SELECT count(*) FROM promoted) FROM rung
"""
EVENTS = """, recorded AS (
        INSERT INTO ojs_jobs_event (type, subject, queue, job_type, worker_id, attempt, time)
        SELECT 'job.enqueued', id::text, queue, type, '', attempt, statement_timestamp()
          FROM promoted
    )"""


def locked(jobs: JobQuerySet, *columns: str) -> list[Job]:
    """Lock one batch, passing over rows somebody else is changing right now."""
    skip = connection().features.has_select_for_update_skip_locked
    return list(jobs.select_for_update(skip_locked=skip).only(*columns)[:BATCH_SIZE])


def promote_due() -> int:
    """Make scheduled and retryable jobs whose time has come available (OJS core §6.3).

    None during maintenance (OJS admin API §12.1).
    """
    count = _promote_postgresql() if is_postgresql() else _promote_portable()
    if count:
        send_on_commit(jobs_promoted, Job, count=count)
    return count


def _promote_postgresql() -> int:
    statement = PROMOTE.format(
        limit=BATCH_SIZE, recorded=EVENTS if ojs_settings.RECORD_EVENTS else ""
    )
    ((count,),) = run(statement, {"head_start": HEAD_START})
    return int(count)


def _promote_portable() -> int:
    now = clock.now()
    with atomic():
        if Maintenance.objects.on().exists():
            return 0
        waiting = Job.objects.due().filter(scheduled_at__lte=Now() - HEAD_START)
        due = locked(waiting.order_by("scheduled_at"), "type", "queue", "attempt")
        if not due:
            return 0
        Job.objects.filter(pk__in=[job.pk for job in due]).transition(
            Event.TIMER, State.AVAILABLE, enqueued_at=Now()
        )
        record(job_event("job.enqueued", job, time=now) for job in due)
        wakeup.notify({job.queue for job in due})
    return len(due)


def time_out() -> int:
    """Fail one batch of jobs past their execution timeout (OJS core §5.2); their policy decides."""
    with atomic():
        overrun: list[Any] = list(
            Job.objects.overrun()
            .annotate(now=Now())
            .order_by("pk")
            .defer("args", "meta", "result")
            .select_for_update(skip_locked=connection().features.has_select_for_update_skip_locked)[
                :BATCH_SIZE
            ]
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
        outcomes = fail_locked(zip(overrun, failures, strict=True))
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


def discard_expired() -> int:
    """Discard one batch of jobs whose `expires_at` or `enqueue_ttl` passed before a worker took
    them (OJS core §5.2, timeouts §5.3)."""
    now = clock.now()
    with atomic():
        stale = locked(
            Job.objects.filter(state__in=sorted(WAITING), expires_at__lte=Now()).order_by(
                "expires_at"
            ),
            "type",
            "queue",
            "attempt",
            "attributes",
            "created_at",
            "expires_at",
            "followed",
        )
        if not stale:
            return 0
        Job.objects.filter(pk__in=[job.pk for job in stale]).transition(
            Event.EXPIRE, State.DISCARDED
        )
        late = {job.pk: error for job in stale if (error := _outwaited(job, now))}
        JobError.objects.bulk_create(late.values())
        record(
            job_event("job.ttl_expired", job, time=now, data=late[job.pk].details)
            for job in stale
            if job.pk in late
        )
        record(job_event("job.expired", job, time=now, data=_expiry(job, now)) for job in stale)
        follow([job.pk for job in stale if job.followed])
    send_on_commit(jobs_discarded, Job, count=len(stale), reason="expired")
    return len(stale)


def _expiry(job: Job, now: Any) -> dict[str, Any]:
    assert job.expires_at is not None
    return {
        "created_at": job.created_at.isoformat(),
        "expired_at": now.isoformat(),
        "ttl_ms": milliseconds(job.expires_at - job.created_at),
    }


def _outwaited(job: Job, now: datetime) -> JobError | None:
    """The error of a job that expired by its `enqueue_ttl` (OJS timeouts §8); None by another."""
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


def discard_overdrawn() -> int:
    """Discard one batch of jobs that had `total_timeout` for all their attempts, and did not end.

    Whatever attempts are left, and whoever holds them (OJS timeouts §5.2): a worker's ACK is
    refused from then on.
    """
    now = clock.now()
    with atomic():
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
        JobError.objects.bulk_create(errors.values())
        for dead_letter, ids in by_dead_letter(late):
            jobs = Job.objects.filter(pk__in=ids)
            jobs.transition(Event.EXPIRE, State.DISCARDED, dead_letter=dead_letter)
            jobs.transition(
                Event.FAIL, State.DISCARDED, dead_letter=dead_letter, finished_by=F("reserved_by")
            )
        record(event for job in late for event in _overdraft_events(job, errors[job.pk]))
        follow([job.pk for job in late if job.followed])
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


def _overdraft_events(job: Job, error: JobError) -> Iterable[Any]:
    recorded: dict[str, Any] = {"time": error.occurred_at, "worker_id": job.reserved_by}
    said = {"code": error.code, "message": error.message}
    yield job_event("job.total_timeout", job, data=error.details, **recorded)
    if job.state == State.ACTIVE:
        failed = {"error": said | {"retryable": False}, "state": "discarded"}
        yield job_event("job.failed", job, data=failed, **recorded)
    last = {"total_attempts": job.attempt, "last_error": said}
    yield job_event("job.discarded", job, data=last, **recorded)
