"""Workers whose heartbeats are about a job: alive as long as the reservations they hold.

Such a protocol has no heartbeat for the worker itself. Any call is a sign of life, and a worker
that is silent while it runs a long job is not dead before that job's time is up.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from jobs import engine
from jobs.access import projects
from jobs.conf import ojs_settings
from jobs.engine import ClaimedJob
from jobs.errors import InvalidTransition, ReservationLost
from jobs.spec.lifecycle import State
from jobs.spec.time_limits import grace_period
from jobs.store import clock

from .. import protocol
from ..lifecycle import WorkerState
from ..models import Worker
from ..protocol import Reply
from .heartbeats import Description

MARGIN = timedelta(seconds=2)
"""Added so that the end of a job's time is treated as such, and not as its worker's silence, and an
expired reservation not as its worker's death."""


def seen(worker_id: str, description: Description) -> Reply:
    """Record a sign of life: the worker may be silent as long as its reservations last."""
    allowed = ojs_settings.HEARTBEAT_TIMEOUT
    ends = engine.last_reservation(worker_id)
    if ends is not None:
        allowed = max(allowed, ends - clock.now() + MARGIN)
    renewed = replace(description, heartbeat_timeout=allowed)
    return protocol.beat(
        worker_id,
        state=WorkerState.RUNNING,
        description=renewed,
        project=description.project or "",
    )


def types_of(worker_id: str) -> list[str] | None:
    """The types that a worker can run; None if unknown."""
    return Worker.objects.filter(pk=worker_id).values_list("job_types", flat=True).first()


def reserve_for_execution(jobs: list[ClaimedJob], worker_id: str) -> dict[UUID, timedelta]:
    """Reserve each job for as long as it may run; return each job's time, without its grace.

    That is the job's execution timeout. It is enforced like anyone's, so the reservation outlasts
    it and the grace period. A job without one keeps the reservation it was claimed with: its own
    visibility timeout, else the server's.
    """
    default = ojs_settings.VISIBILITY_TIMEOUT
    limits = {job.id: job.timeout for job in jobs if job.timeout is not None}
    if limits:
        periods = {
            job.id: limits[job.id] + (grace_period(job) or timedelta(0)) + MARGIN
            for job in jobs
            if job.id in limits
        }
        engine.reserve(periods, worker_id=worker_id)
    return {job.id: job.visibility_timeout or default for job in jobs} | limits


def keep_alive(
    job_id: UUID,
    worker_id: str,
    *,
    share: float,
    at_least: timedelta,
    progress: float | None,
    project: str = "",
) -> bool:
    """Record the heartbeat of a job; False if the job was cancelled and is to be aborted.

    Raises:
        JobNotFound: there is no such job, or it is another project's.
        ReservationLost: another worker holds it.
        InvalidTransition: it is not active.
    """
    if engine.keep_alive(
        job_id,
        worker_id=worker_id,
        share=share,
        at_least=at_least,
        progress=progress,
        project=project,
    ):
        return True
    job = projects.find(job_id, project)
    if job.state == State.CANCELLED:
        return False
    details = {"job_id": str(job_id), "current_state": str(job.state)}
    if job.state == State.ACTIVE:
        raise ReservationLost(f"Job '{job_id}' is held by another worker.", **details)
    raise InvalidTransition(f"Job '{job_id}' is in state '{job.state}'.", **details)
