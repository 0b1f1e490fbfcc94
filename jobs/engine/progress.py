"""Progress of running jobs, as reported by their workers (OJS progress).

A report is also a heartbeat: it restarts the job's visibility timeout (§6.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..errors import JobNotFound
from ..models import Job, ProgressReport
from ..record.events import job_event, record
from ..spec.lifecycle import State
from ..spec.reports import measure_progress
from ..store import clock
from ..store.database import atomic

EVENTS_EVERY = timedelta(seconds=1)
"""At most one event per job in this period (OJS progress §6.2)."""


@dataclass(frozen=True)
class ProgressState:
    """A job's progress as last reported."""

    job_id: UUID
    state: str
    value: float | None = None
    data: dict[str, Any] | None = None
    message: str = ""
    updated_at: datetime | None = None


def report_progress(
    job_id: UUID,
    *,
    value: float | None = None,
    data: dict[str, Any] | None = None,
    message: str = "",
    worker_id: str | None = None,
    attempt: int | None = None,
) -> ProgressState:
    """Store a job's progress, and restart its visibility timeout; return the current state (§6).

    The number is clamped to 0…1 and never goes down within an attempt. A report about a job that
    is not active, or that another worker holds, changes nothing.

    Args:
        worker_id: the reporting worker; None if the request does not name one.

    Raises:
        JobNotFound: there is no such job.
        InvalidRequest: the data is too large.
    """
    measure_progress(data)
    held = Job.objects.active().filter(pk=job_id)
    if worker_id is not None:
        held = held.filter(reserved_by=worker_id)
    if attempt is not None:
        held = held.filter(attempt=attempt)
    with atomic():
        job = held.defer("args", "meta").select_for_update().first()
        if job is not None:
            # The sum of the time and a column is one that Citus refuses in an UPDATE.
            until = None if job.reserved_for is None else clock.now() + job.reserved_for
            Job.objects.filter(pk=job_id).update(reserved_until=until)
            note_progress(job, value=value, data=data, message=message)
    return progress_of(job_id)


def note_progress(
    job: Job,
    *,
    value: float | None = None,
    data: dict[str, Any] | None = None,
    message: str = "",
) -> None:
    """Store a job's progress; its row must be locked, so that reports about it take turns."""
    now = clock.now()
    before = ProgressReport.objects.filter(pk=job.pk, attempt=job.attempt).first()
    if value is not None:
        value = min(1.0, max(0.0, value, (before and before.value) or 0.0))
    elif before:
        value = before.value
    told_at = now
    if before and now - before.told_at < EVENTS_EVERY:
        told_at = before.told_at
    else:
        _record(job, now, progress=value, data=data, message=message or None)
    ProgressReport.objects.update_or_create(
        pk=job.pk,
        defaults={
            "attempt": job.attempt,
            "value": value,
            "data": data if data is not None or before is None else before.data,
            "message": message or (before.message if before else ""),
            "updated_at": now,
            "told_at": told_at,
        },
    )


def _record(job: Job, now: datetime, **reported: Any) -> None:
    """Record a report under the names of both documents (OJS progress §11.1, events §4.1)."""
    members = {name: item for name, item in reported.items() if item is not None}
    shown = {"progress_percent": round(100 * (members.get("progress") or 0.0), 3)}
    if "message" in members:
        shown["progress_message"] = members["message"]
    about: dict[str, Any] = {"time": now, "worker_id": job.reserved_by}
    record(
        [
            job_event("progress.updated", job, data=members, **about),
            job_event("job.progress", job, data=shown | members, **about),
        ]
    )


def progress_of(job_id: UUID) -> ProgressState:
    """
    Raises:
        JobNotFound: there is no such job.
    """
    job = Job.objects.only("state", "attempt").filter(pk=job_id).first()
    if job is None:
        raise JobNotFound(job_id)
    report = ProgressReport.objects.filter(pk=job_id).first()
    return progress_state(job, report)


def progress_state(job: Job, report: ProgressReport | None) -> ProgressState:
    """Return a job's progress: completion makes it 1, another attempt voids it (§5.3, §8)."""
    if report is None or report.attempt != job.attempt:
        return ProgressState(job.pk, job.state)
    value = 1.0 if job.state == State.COMPLETED else report.value
    return ProgressState(job.pk, job.state, value, report.data, report.message, report.updated_at)
