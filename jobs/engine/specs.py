"""Registered job specifications, and log lines of workers about their jobs (Rota)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import models

from ..models import Job, JobLog, JobSpec
from ..store import clock
from ..store.database import atomic
from ..store.rows import insert_rows

MOST_LINES = 1_000
"""Most lines kept per job: a handler in a loop must not fill the database."""


def register_specs(checksums: Mapping[str, str]) -> int:
    """Register these checksums for their types; return how many changed or are new."""
    known = dict(JobSpec.objects.filter(pk__in=checksums).values_list("type", "checksum"))
    changed = {
        name: checksum for name, checksum in checksums.items() if known.get(name) != checksum
    }
    now = clock.now()
    JobSpec.objects.bulk_create(
        [
            JobSpec(type=name, checksum=checksum, registered_at=now)
            for name, checksum in sorted(changed.items())
        ],
        update_conflicts=True,
        unique_fields=["type"],
        update_fields=["checksum", "registered_at"],
    )
    return len(changed)


def forget_specs(types: Sequence[str]) -> int:
    """Withdraw specifications: checksums no longer match jobs of these types."""
    return JobSpec.objects.filter(pk__in=types).delete()[0]


def matching_types(checksums: Mapping[str, str]) -> list[str]:
    """Return the types whose registered checksum equals the one given."""
    registered = JobSpec.objects.filter(pk__in=checksums).values_list("type", "checksum")
    return sorted(name for name, checksum in registered if checksums[name] == checksum)


@dataclass(slots=True)
class Line:
    """A log line or an alert as received."""

    job_id: UUID
    message: str
    level: str = ""
    is_alert: bool = False
    time: datetime | None = None


def write_lines(worker_id: str, lines: Sequence[Line]) -> int:
    """Store a worker's lines about jobs it holds; return how many were kept.

    Lines about jobs it does not hold (any longer) are dropped, and so are those after the first
    `MOST_LINES` of a job.
    """
    if not lines:
        return 0
    with atomic():
        return _write_lines(worker_id, lines)


def _write_lines(worker_id: str, lines: Sequence[Line]) -> int:
    named = Job.objects.held_by(worker_id).filter(pk__in={line.job_id for line in lines})
    # Locked: no key keeps a line from outliving its job (`store.references`).
    locked = named.order_by("pk").select_for_update()
    held = dict(locked.values_list("pk", "attempt"))
    written = JobLog.objects.filter(job__in=held).order_by().values_list("job")
    room = dict.fromkeys(held, MOST_LINES)
    for job_id, count in written.annotate(models.Count("pk")):
        room[job_id] -= count
    kept = []
    now = clock.now()
    for line in lines:
        if room.get(line.job_id, 0) <= 0:
            continue
        room[line.job_id] -= 1
        kept.append(
            JobLog(
                job_id=line.job_id,
                kind=JobLog.Kind.ALERT if line.is_alert else JobLog.Kind.LOG,
                level=line.level,
                message=line.message,
                worker_id=worker_id,
                attempt=held[line.job_id],
                time=line.time or now,
            )
        )
    insert_rows(kept)
    return len(kept)
