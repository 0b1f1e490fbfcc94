"""Reservations: how long they last, and how heartbeats extend them (OJS worker protocol §5.4).

A fetch reserves a job for the job's own visibility timeout (at its enqueue, that of its queue if it
has none, or its heartbeat timeout); without one, for what the fetch asked for; else for
`OJS["VISIBILITY_TIMEOUT"]`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import F, Max
from django.db.models.functions import Now

from ..access.projects import scope_to
from ..conf import ojs_settings
from ..models import Job
from ..store.database import atomic
from ..store.portable import record_heartbeats
from ..store.stores import store
from .progress import note_progress


def default_period(requested: timedelta | None) -> timedelta:
    """Return how long a fetch reserves jobs that have no visibility timeout of their own."""
    return requested or ojs_settings.VISIBILITY_TIMEOUT


def extend(
    job_ids: Collection[UUID],
    *,
    worker_id: str,
    requested: timedelta | None = None,
    at_least: timedelta | None = None,
) -> set[UUID]:
    """Restart the visibility timeout of the jobs `worker_id` holds; return their ids (§5.4).

    It lasts as long as `requested` (OJS HTTP §10.4), but never less than a job's own visibility
    timeout; without a request the period of the reservation starts again. Jobs fetched without a
    worker id are adopted by the worker that reports running them.

    Args:
        at_least: shortest period, so that a terminating worker's reservations last its grace
            period even if it sends no more heartbeats.
    """
    if not job_ids:
        return set()
    return store().extend(job_ids, worker_id=worker_id, requested=requested, at_least=at_least)


def keep_alive(
    job_id: UUID,
    *,
    worker_id: str,
    share: float = 1,
    at_least: timedelta = timedelta(0),
    progress: float | None = None,
    project: str = "",
) -> bool:
    """Restart one job's reservation and store its progress; return whether `worker_id` holds it.

    For protocols whose heartbeats are about a job (Flare: liveness; AGQ: JOB.UPDATE).

    Args:
        share: fraction of the job's execution timeout, else of the reservation's period, that a
            worker may be silent after a heartbeat.
        at_least: shortest silence allowed.
        progress: 0 to 1; the highest value of an attempt stays (OJS progress §5.1).
        project: the project the job must belong to; empty means any project.
    """
    with atomic():
        held = Job.objects.active().filter(pk=job_id, reserved_by=worker_id)
        job = scope_to(held, project).defer("args", "meta").select_for_update().first()
        if job is None:
            return False
        # A reservation for an execution timeout is longer, by its grace.
        whole = job.timeout or job.reserved_for or timedelta(0)
        period = max(whole * share, at_least)
        held.update(reserved_until=Now() + period)
        record_heartbeats([job_id])
        if progress is not None:
            note_progress(job, value=progress)
    return True


def reserve(periods: Mapping[UUID, timedelta], *, worker_id: str) -> None:
    """Give jobs just claimed by `worker_id` reservations of other lengths, from their start."""
    for job_id, period in periods.items():
        Job.objects.held_by(worker_id).filter(pk=job_id).update(
            reserved_for=period, reserved_until=F("started_at") + period
        )


def last_reservation(worker_id: str) -> datetime | None:
    """Return when the last reservation of `worker_id` will end; None if it holds none."""
    ends = Job.objects.held_by(worker_id).aggregate(last=Max("reserved_until"))
    last: datetime | None = ends["last"]
    return last
