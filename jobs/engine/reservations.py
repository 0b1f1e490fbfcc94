"""Reservations last as long as heartbeats extend them (OJS worker §5.4)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import models
from django.db.models import F, Max, Value
from django.db.models.functions import Coalesce, Now
from django.db.models.lookups import LessThan

from ..access.projects import own
from ..conf import ojs_settings
from ..models import Job
from ..record.events import job_event, record
from ..store import clock
from ..store.database import atomic, connection
from .progress import note_progress

# What `extend` decides, for the statements that write heartbeats; `greatest` passes over NULL.
EXTENDED_UNTIL = """statement_timestamp() + greatest(
                   CASE WHEN {requested} IS NULL THEN job.reserved_for
                        ELSE greatest(job.visibility_timeout, {requested}) END,
                   CASE WHEN {terminating} THEN %(grace)s::interval END)"""


def extend(
    job_ids: Collection[UUID],
    *,
    worker_id: str,
    requested: timedelta | None = None,
    at_least: timedelta | None = None,
) -> set[UUID]:
    """Restart the visibility timeout of the jobs `worker_id` holds; return which (§5.4).

    As long as `requested` asks for (OJS HTTP §10.4), but never shorter than a job's own visibility
    timeout; without a request the period of its reservation starts again. Jobs fetched without a
    worker id are adopted by the worker that says it runs them.

    Args:
        at_least: shortest period, so that a terminating worker's reservations last its grace
            period even if it sends no more heartbeats.
    """
    if not job_ids:
        return set()
    period: Any = F("reserved_for")
    if requested is not None:
        period = _longest(Coalesce(F("visibility_timeout"), _duration(requested)), requested)
    if at_least is not None:
        period = _longest(period, at_least)
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
            tell_of_heartbeat(held)
    return set(held)


def tell_of_heartbeat(job_ids: Collection[UUID]) -> None:
    """Record that a sign of life extended these jobs, where that is wanted (OJS events §4.1)."""
    if not ojs_settings.RECORD_HEARTBEATS:
        return
    now = clock.now()
    columns = ("type", "queue", "attempt", "reserved_by", "reserved_until")
    record(
        job_event(
            "job.heartbeat",
            job,
            time=now,
            worker_id=job.reserved_by,
            data={"visible_until": job.reserved_until and job.reserved_until.isoformat()},
        )
        for job in Job.objects.filter(pk__in=job_ids).only(*columns)
    )


def keep_alive(
    job_id: UUID,
    *,
    worker_id: str,
    share: float = 1,
    at_least: timedelta = timedelta(0),
    progress: float | None = None,
    project: str = "",
) -> bool:
    """Restart one job's reservation and note how far it is; whether `worker_id` holds it.

    For protocols whose heartbeats are about a job (Flare: liveness; AGQ: JOB.UPDATE).

    Args:
        share: how much of the reservation's period a worker may be silent after a heartbeat.
        at_least: shortest silence.
        progress: 0 to 1; the highest value of an attempt stays (OJS progress §5.1).
        project: whose the job must be; empty means anybody's.
    """
    with atomic():
        held = Job.objects.active().filter(pk=job_id, reserved_by=worker_id)
        job = own(held, project).defer("args", "meta").select_for_update().first()
        if job is None:
            return False
        period = max((job.reserved_for or timedelta(0)) * share, at_least)
        held.update(reserved_until=Now() + period)
        tell_of_heartbeat([job_id])
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
    """When the last of the reservations `worker_id` holds will end; None if it holds none."""
    ends: Any = Job.objects.held_by(worker_id).aggregate(last=Max("reserved_until"))["last"]
    return ends


def _longest(period: Any, least: timedelta) -> Any:
    if connection().vendor == "postgresql":
        return models.functions.Greatest(period, _duration(least))
    # Two-argument MAX() of SQLite loses the type of a duration.
    return models.Case(
        models.When(LessThan(period, _duration(least)), then=_duration(least)), default=period
    )


def _duration(value: timedelta) -> Value:
    return Value(value, output_field=models.DurationField())
