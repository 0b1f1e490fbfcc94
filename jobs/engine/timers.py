"""What time alone does to jobs: due, overrun, expired. Sweeps, one batch each."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db.models.functions import Now
from django.utils import timezone

from .. import wakeup
from ..database import atomic, connection
from ..envelope import milliseconds, timeout_details
from ..events import job_event, record
from ..lifecycle import WAITING, Event, State
from ..models import Job, Maintenance
from ..querysets import JobQuerySet
from ..signals import jobs_discarded, jobs_failed, jobs_promoted, send_on_commit
from .failure import fail_locked
from .following import follow
from .outcomes import Failure

BATCH_SIZE = 1000
HEAD_START = timedelta(milliseconds=250)
"""A fetch takes due jobs itself and passes over locked rows: at the moment a job falls due, when
its fetch is likeliest, the timer must not hold it, or that fetch would come back empty."""


def locked(jobs: JobQuerySet, *columns: str) -> list[Job]:
    """Lock one batch, passing over rows somebody else is changing right now."""
    skip = connection().features.has_select_for_update_skip_locked
    return list(jobs.select_for_update(skip_locked=skip).only(*columns)[:BATCH_SIZE])


def promote_due() -> int:
    """Make scheduled and retryable jobs whose time has come available (OJS core §6.3)."""
    now = timezone.now()
    with atomic():
        if Maintenance.objects.on().exists():
            return 0  # promotion waits as well (OJS admin API §12.1)
        waiting = Job.objects.due().filter(scheduled_at__lte=Now() - HEAD_START)
        due = locked(waiting.order_by("scheduled_at"), "type", "queue", "attempt")
        if not due:
            return 0
        Job.objects.filter(pk__in=[job.pk for job in due]).transition(
            Event.TIMER, State.AVAILABLE, enqueued_at=Now()
        )
        record(job_event("job.enqueued", job, time=now) for job in due)
        wakeup.notify({job.queue for job in due})
    send_on_commit(jobs_promoted, Job, count=len(due))
    return len(due)


def time_out() -> int:
    """Fail one batch of jobs past their execution timeout (OJS core §5.2); their policy decides."""
    with atomic():
        overrun = list(
            Job.objects.overrun()
            .order_by("pk")
            .defer("args", "meta", "result")
            .select_for_update(skip_locked=connection().features.has_select_for_update_skip_locked)[
                :BATCH_SIZE
            ]
        )
        if not overrun:
            return 0
        now = timezone.now()
        failures = [_overrun(job, now) for job in overrun]
        record(
            job_event("job.timeout", job, time=now, worker_id=job.reserved_by, data=failure.details)
            for job, failure in zip(overrun, failures, strict=True)
        )
        outcomes = fail_locked(zip(overrun, failures, strict=True))
    if outcomes:
        send_on_commit(jobs_failed, Job, outcomes=outcomes)
    return len(outcomes)


def _overrun(job: Job, now: datetime) -> Failure:
    assert job.timeout is not None and job.started_at is not None
    limit = milliseconds(job.timeout)
    return Failure(
        job.pk,
        worker_id=job.reserved_by,
        type="timeout",
        code="timeout",
        message=f"The job ran longer than its timeout of {limit} ms.",
        details={"timeout_ms": limit}
        | timeout_details("execution", job.timeout, now - job.started_at),
    )


def discard_expired() -> int:
    """Discard one batch of jobs whose `expires_at` passed before a worker took them (core §5.2)."""
    now = timezone.now()
    with atomic():
        stale = locked(
            Job.objects.filter(state__in=sorted(WAITING), expires_at__lte=Now()).order_by(
                "expires_at"
            ),
            "type",
            "queue",
            "attempt",
            "created_at",
            "expires_at",
            "followed",
        )
        if not stale:
            return 0
        Job.objects.filter(pk__in=[job.pk for job in stale]).transition(
            Event.EXPIRE, State.DISCARDED
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
