"""What operators do to many jobs at once: a batch in a transaction, guarded like every change."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from django.db.models.functions import Now
from django.utils import timezone

from .. import wakeup
from ..database import atomic
from ..events import job_event, record
from ..lifecycle import Event, State, sources
from ..models import Job
from ..signals import jobs_cancelled, send_on_commit
from .following import follow


def _locked(job_ids: Collection[UUID], states: Collection[State]) -> list[Job]:
    jobs = Job.objects.filter(pk__in=job_ids, state__in=states).order_by("pk")
    columns = ("type", "queue", "attempt", "state", "reserved_by", "followed")
    return list(jobs.select_for_update().only(*columns))


def cancel_many(
    job_ids: Collection[UUID], *, cancelled_by: str = "", reason: str = ""
) -> list[UUID]:
    """Cancel those that have not finished; return which were (OJS core §7.6)."""
    who = {"cancelled_by": cancelled_by, "reason": reason}
    data = {name: value for name, value in who.items() if value}
    with atomic():
        jobs = _locked(job_ids, sources(Event.CANCEL, State.CANCELLED))
        ids = [job.pk for job in jobs]
        Job.objects.filter(pk__in=ids).transition(Event.CANCEL, State.CANCELLED)
        now = timezone.now()
        record(
            job_event("job.cancelled", job, time=now, worker_id=job.reserved_by, data=data)
            for job in jobs
        )
        followed = [job.pk for job in jobs if job.followed]
        if followed:
            follow(followed)
    if ids:
        send_on_commit(jobs_cancelled, Job, job_ids=ids)
    return ids


def run_now(job_ids: Collection[UUID]) -> list[UUID]:
    """Make scheduled, retryable and pending jobs available; return which were (OJS core §6.3)."""
    due = sources(Event.TIMER, State.AVAILABLE)
    pending = sources(Event.ACTIVATE, State.AVAILABLE)
    with atomic():
        jobs = _locked(job_ids, (*due, *pending))
        for event, states in ((Event.TIMER, due), (Event.ACTIVATE, pending)):
            chosen = [job.pk for job in jobs if job.state in states]
            Job.objects.filter(pk__in=chosen).transition(event, State.AVAILABLE, enqueued_at=Now())
        now = timezone.now()
        record(job_event("job.enqueued", job, time=now) for job in jobs)
        wakeup.notify({job.queue for job in jobs})
    return [job.pk for job in jobs]
