"""The tidy claim, for databases where one statement cannot do it all (see `claim`).

The same tests run against both; this is what lets a site try the app without PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from django.db import models
from django.db.models import Case, F, Value, When
from django.db.models.functions import Cast, Coalesce, Now

from ..access.projects import own
from ..models import Checkpoint, Job, JobError, Maintenance, Queue
from ..record.events import job_event, record
from ..spec.envelope import ERROR_FIELDS, ERRORS_SHOWN
from ..spec.lifecycle import Event, State
from ..store import clock
from ..store.database import atomic, connection
from .claimed import Asked, ClaimedJob, from_row

ROW = (
    "id",
    "type",
    "queue",
    Cast("args", models.TextField()),
    Cast("meta", models.TextField()),
    Cast("tags", models.TextField()),
    "priority",
    "attempt",
    "max_attempts",
    "created_at",
    "enqueued_at",
    "started_at",
    Cast("retry", models.TextField()),
    "retry_delay",
    "timeout",
    "visibility_timeout",
    "scheduled_at",
    "expires_at",
    Cast("attributes", models.TextField()),
    Value(None, output_field=models.TextField()),
    "workflow_id",
    Cast("parent_results", models.TextField()),
    Value(None, output_field=models.TextField()),
)
ATTRIBUTES, CHECKPOINT = 18, 22


def take(asked: Asked) -> list[ClaimedJob]:
    """Claim available jobs of the queues, then due ones; see `claim()`."""
    with atomic():
        ids: list[UUID] = []
        wanted = open_queues(asked.queues)
        # Those with a rate limit are claimed by `limits` alone.
        suiting = Job.objects.unexpired().suiting(asked.types, asked.able, asked.versions)
        fetchable = own(suiting, asked.project).filter(rate_key="")
        fetchable = fetchable.select_for_update(
            skip_locked=connection().features.has_select_for_update_skip_locked
        )
        for order, jobs in (
            (("-priority", "enqueued_at", "id"), fetchable.filter(state=State.AVAILABLE)),
            (("scheduled_at",), fetchable.due()),
        ):
            for queue in wanted:
                room = asked.count - len(ids)
                if room > 0:
                    found = jobs.filter(queue=queue).order_by(*order)[:room]
                    ids += found.values_list("pk", flat=True)
        claimed = claim_chosen(ids, asked.worker_id, asked.period)
    place = {queue: number for number, queue in enumerate(asked.queues)}
    return sorted(
        claimed, key=lambda job: (place[job.queue], -job.priority, job.enqueued_at, job.id)
    )


def open_queues(queues: Sequence[str]) -> list[str]:
    """Those of the queues that hand out jobs now; none during maintenance."""
    if Maintenance.objects.on().exists():
        return []
    paused = set(Queue.objects.paused().filter(pk__in=queues).values_list("pk", flat=True))
    return [queue for queue in queues if queue not in paused]


def claim_chosen(
    ids: Sequence[UUID], worker_id: str, period: timedelta, at: datetime | None = None
) -> list[ClaimedJob]:
    """Claim exactly these jobs, which the caller has locked.

    Args:
        at: the moment they start; None means now.
    """
    if not ids:
        return []
    with atomic():
        chosen = Job.objects.filter(pk__in=ids)
        # Recorded as it is before the attempt is counted, as by the timer.
        was_due = dict(chosen.due().values_list("pk", "attempt"))
        if was_due:
            chosen.filter(pk__in=was_due).transition(
                Event.TIMER, State.AVAILABLE, enqueued_at=Now()
            )
        chosen.transition(Event.FETCH, State.ACTIVE, **_reservation(worker_id, period, at))
        claimed = _read(chosen, ids)
        _tell(claimed, was_due, worker_id)
    return claimed


def _reservation(worker_id: str, period: timedelta, at: datetime | None) -> dict[str, Any]:
    length = Coalesce(F("visibility_timeout"), Value(period, output_field=models.DurationField()))
    return {
        "attempt": F("attempt") + Case(When(attempt_counted=True, then=0), default=1),
        "attempt_counted": False,
        "started_at": at or Now(),
        "reserved_by": worker_id,
        "reserved_for": length,
        "reserved_until": models.ExpressionWrapper(
            Now() + length, output_field=models.DateTimeField()
        ),
    }


def _read(chosen: models.QuerySet[Job], ids: Sequence[UUID]) -> list[ClaimedJob]:
    rows = {row[0]: list(row) for row in chosen.values_list(*ROW)}
    kept = Checkpoint.objects.filter(pk__in=rows, is_cleared=False)
    for job_id, state, sequence in kept.values_list("pk", "state", "sequence"):
        rows[job_id][CHECKPOINT] = orjson.dumps({"state": state, "sequence": sequence})
    for row in rows.values():
        row[ATTRIBUTES] = None if row[ATTRIBUTES] == "{}" else row[ATTRIBUTES]
    jobs = [from_row(tuple(rows[job_id])) for job_id in ids]
    history: dict[UUID, list[Mapping[str, Any]]] = {}
    retried = [job.id for job in jobs if job.attempt > 1]
    if retried:
        for error in JobError.objects.filter(job__in=retried).values("job_id", *ERROR_FIELDS):
            history.setdefault(error["job_id"], []).append(error)
    return [
        job._replace(errors=history[job.id][-ERRORS_SHOWN:], is_plain=False)
        if job.id in history
        else job
        for job in jobs
    ]


def _tell(claimed: Sequence[ClaimedJob], was_due: Mapping[UUID, int], worker_id: str) -> None:
    now = clock.now()
    due = [job._replace(attempt=was_due[job.id]) for job in claimed if job.id in was_due]
    record(
        [job_event("job.enqueued", job, time=now) for job in due]
        + [job_event("job.started", job, time=now, worker_id=worker_id) for job in claimed]
    )
