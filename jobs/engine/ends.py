"""Ending jobs from outside: no room, a limit, a deleted queue, a cancellation.

Dependents and workflows are not handled here: the caller passes the ended jobs to `flow`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from ..models import Event as EventRow
from ..models import Job, JobError
from ..record.events import PREVIOUS, job_event, record
from ..signals import jobs_cancelled, send_on_commit
from ..spec.lifecycle import Event, State, sources
from ..store import clock
from ..store.database import atomic
from ..store.expressions import Among
from ..store.rows import insert_rows


def discard_waiting(
    jobs: Sequence[Job], *, code: str, message: str, now: datetime
) -> list[EventRow]:
    """Discard locked waiting jobs; return the event of each, in their order.

    The caller records the events.
    """
    waiting = Job.objects.these(jobs)
    waiting.transition(Event.EXPIRE, State.DISCARDED)
    insert_rows(
        JobError(job=job, attempt=job.attempt, type=code, message=message, occurred_at=now)
        for job in jobs
    )
    error = {"code": code, "message": message}
    return [
        job_event(
            "job.discarded",
            job,
            time=now,
            data={
                "last_error": error,
                "total_attempts": job.attempt,
                PREVIOUS: str(job.state),
            },
        )
        for job in jobs
    ]


def cancel_unfinished(
    job_ids: Collection[UUID], *, cancelled_by: str = "", reason: str = ""
) -> tuple[list[UUID], list[UUID]]:
    """Cancel the unfinished jobs among these (OJS core §7.6).

    Returns their ids, and the ids of those with dependents or a workflow.
    """
    if not job_ids:
        return [], []
    who = {"cancelled_by": cancelled_by, "reason": reason}
    data: dict[str, Any] = {name: value for name, value in who.items() if value}
    now = clock.now()
    with atomic():
        unfinished = Job.objects.filter(state__in=sources(Event.CANCEL, State.CANCELLED))
        rows = unfinished.filter(Among("pk", job_ids)).order_by("pk").select_for_update()
        columns = ("type", "queue", "state", "attempt", "reserved_by", "followed")
        jobs = list(rows.only(*columns))
        ids = [job.pk for job in jobs]
        Job.objects.these(jobs).transition(Event.CANCEL, State.CANCELLED)
        record(
            job_event(
                "job.cancelled",
                job,
                time=now,
                worker_id=job.reserved_by,
                data=data | {PREVIOUS: str(job.state)},
            )
            for job in jobs
        )
    if ids:
        send_on_commit(jobs_cancelled, Job, job_ids=ids)
    return ids, [job.pk for job in jobs if job.followed]
