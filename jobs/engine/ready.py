"""Pending jobs become ready when what they waited for is over: other jobs, or earlier runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import DateTimeField
from django.db.models.functions import Now

from ..models import Job
from ..record.events import first_enqueued, first_scheduled, record
from ..signals import jobs_promoted, send_on_commit
from ..spec.lifecycle import Event, State
from ..spec.timestamps import is_delay, parse_when
from ..store import clock, wakeup
from ..store.expressions import Among, Each

COLUMNS = ("type", "queue", "attempt", "priority", "scheduled_at", "attributes")
"""What must be read of the jobs."""


def make_ready(jobs: Sequence[Job]) -> None:
    """Let pending jobs that the caller has locked enter their queues; those before their time wait.

    An operator's activation is another thing: it makes a job available at once (OJS HTTP §7.8).
    """
    now = clock.now()
    later: dict[UUID | str, Any] = {
        job.pk: at for job in jobs if (at := _due_at(job, now)) is not None and at > now
    }
    ready = [job for job in jobs if job.pk not in later]
    if later:
        Job.objects.filter(Among("pk", later)).transition(
            Event.READY,
            State.SCHEDULED,
            enqueued_at=Now(),
            scheduled_at=Each(later, DateTimeField()),
        )
        record(first_scheduled(job, later[job.pk], time=now) for job in jobs if job.pk in later)
    if ready:
        Job.objects.these(ready).transition(Event.READY, State.AVAILABLE, enqueued_at=Now())
        record(first_enqueued(job, time=now) for job in ready)
        wakeup.notify({job.queue for job in ready})
        send_on_commit(jobs_promoted, Job, count=len(ready))


def _due_at(job: Job, now: datetime) -> datetime | None:
    """Return the earliest time of a job; if it was sent as a delay, that begins now."""
    sent = (job.attributes or {}).get("scheduled_at", "")
    return parse_when(sent, now) if is_delay(sent) else job.scheduled_at
