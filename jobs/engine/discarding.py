"""Discarding jobs that wait: no room, a limit, a queue that goes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from ..models import Job, JobError
from ..record.events import job_event
from ..spec.lifecycle import Event, State


def discard_waiting(jobs: Sequence[Job], *, code: str, message: str, now: datetime) -> list[Any]:
    """Discard jobs that wait and are locked; return the event of each, in their order.

    The caller records the events, and hands the jobs to `follow()`.
    """
    waiting = Job.objects.filter(pk__in=[job.pk for job in jobs])
    waiting.transition(Event.EXPIRE, State.DISCARDED)
    JobError.objects.bulk_create(
        JobError(job=job, attempt=job.attempt, type=code, message=message, occurred_at=now)
        for job in jobs
    )
    error = {"code": code, "message": message}
    return [
        job_event(
            "job.discarded",
            job,
            time=now,
            data={"last_error": error, "total_attempts": job.attempt},
        )
        for job in jobs
    ]
