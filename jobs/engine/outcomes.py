"""Outcomes of workers' reports about their jobs (OJS worker protocol §5.6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..errors import Conflict, InvalidTransition, JobNotFound, OJSError, ReservationLost
from ..models import Event, Job, RefusedFinish
from ..signals import finish_refused, send_on_commit
from ..spec.lifecycle import State
from ..spec.reports import Completion, Failure
from ..store import clock
from ..store.database import atomic
from ..store.rows import insert_rows


@dataclass(slots=True)
class Outcome:
    """The outcome of one ACK or FAIL."""

    job_id: UUID
    state: State | None = None
    attempt: int = 0
    max_attempts: int = 0
    at: datetime | None = None
    """When the job was completed, discarded or released."""
    retry_at: datetime | None = None
    retry_delay: timedelta | None = None
    released: bool = False
    """Released, not failed: snoozed, or the worker had no capacity for it."""
    dead_letter: bool = False
    """Discarded, and kept for an operator to inspect."""
    job_type: str = ""
    queue: str = ""
    failure: Failure | None = field(default=None, repr=False)
    """What a failed job's worker reported."""
    error: OJSError | None = None
    """Why it was refused, in which case nothing changed."""
    events: list[Event] = field(default_factory=list, repr=False)


def explain(
    items: Sequence[Completion] | Sequence[Failure],
    outcomes: Sequence[Outcome],
    operation: str,
    *,
    spare: Collection[int] = (),
) -> None:
    """Set the error of each refused outcome, and record the refusal (§10.4).

    Args:
        spare: places of outcomes that were refused for another reason.
    """
    refused = [
        index
        for index, outcome in enumerate(outcomes)
        if outcome.state is None and index not in spare
    ]
    if not refused:
        return
    jobs = Job.objects.only("state", "attempt", "reserved_by").in_bulk(
        [items[index].job_id for index in refused]
    )
    records, now = [], clock.now()
    for index in refused:
        item, job = items[index], jobs.get(items[index].job_id)
        if job is None:
            outcomes[index].error = JobNotFound(item.job_id)
            continue
        outcomes[index].error = _refusal(item, job, operation)
        records.append(
            RefusedFinish(
                job_id=job.pk,
                operation=operation,
                worker_id=item.worker_id or "",
                attempt=item.attempt,
                held_by=job.reserved_by,
                state=job.state,
                refused_at=now,
            )
        )
    insert_rows(records)
    for refusal in records:
        send_on_commit(
            finish_refused,
            Job,
            job_id=refusal.job_id,
            operation=operation,
            worker_id=refusal.worker_id,
        )


def refuse(item: Completion | Failure) -> Outcome:
    """Refuse an outcome that one worker sent in the name of another, and record the refusal."""
    outcome = Outcome(item.job_id)
    with atomic():
        if isinstance(item, Completion):
            explain([item], [outcome], "ack")
        else:
            explain([item], [outcome], "fail")
    return outcome


def _refusal(item: Completion | Failure, job: Job, operation: str) -> Conflict:
    details: dict[str, Any] = {
        "job_id": str(job.pk),
        "current_state": str(job.state),
        "expected_state": str(State.ACTIVE),
        "attempt": job.attempt,
    }
    verb = "acknowledge" if operation == "ack" else "fail"
    if job.state == State.ACTIVE and (item.worker_id is not None or item.attempt is not None):
        return ReservationLost(
            f"Cannot {verb} job '{job.pk}': its reservation is not yours (any more).",
            hint="The reservation expired, or the worker was declared dead, and the job was "
            "given to another. Drop the outcome and go on.",
            **details,
        )
    return InvalidTransition(
        f"Cannot {verb} job not in 'active' state. Current state: '{job.state}'.", **details
    )
