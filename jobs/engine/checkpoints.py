"""Checkpoints: state a job keeps for its next attempt (OJS durable execution §4 to §6).

The specification deletes a checkpoint when its job ends, yet keeps it for a retry from the dead
letter; the conformance cases read it after completion. Here it stays until its job is deleted.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from django.db.models import QuerySet

from ..errors import CheckpointTooLarge, Conflict, InvalidTransition, JobNotFound, ReservationLost
from ..models import Checkpoint, Job
from ..spec.lifecycle import State
from ..store import clock
from ..store.stores import store

LARGEST = 1_048_576
"""Bytes of state (OJS durable execution §9.1)."""


class Saved(NamedTuple):
    """The server's reply about a stored checkpoint."""

    sequence: int
    at: datetime


def save_checkpoint(
    job_id: UUID, state: Any, *, worker_id: str | None = None, attempt: int | None = None
) -> Saved:
    """Keep `state` for the job's next attempt, replacing the previous checkpoint (§4.1).

    Part of the caller's transaction: rolled back with the work it describes.

    Args:
        state: any JSON value of at most 1 MB.
        worker_id: the reporting worker, which must hold the job; None skips the check.
        attempt: fences off an older attempt of the same worker.

    Raises:
        CheckpointTooLarge: the state exceeds 1 MB.
        JobNotFound: there is no such job.
        ReservationLost: another worker or attempt has the job (§4.2).
        InvalidTransition: the job has ended, or is not active.
    """
    text = orjson.dumps(state)
    if len(text) > LARGEST:
        raise CheckpointTooLarge(
            f"A checkpoint may have at most {LARGEST} bytes.",
            field="checkpoint",
            max_bytes=LARGEST,
            actual_bytes=len(text),
        )
    now = clock.now()
    sequence = store().save_checkpoint(
        job_id, text.decode(), now, worker_id=worker_id, attempt=attempt
    )
    if sequence is None:
        raise _refusal("save a", job_id, worker_id, attempt)
    return Saved(sequence, now)


def _refusal(
    what: str, job_id: UUID, worker_id: str | None, attempt: int | None
) -> JobNotFound | Conflict:
    job = Job.objects.only("state", "attempt").filter(pk=job_id).first()
    if job is None:
        return JobNotFound(job_id)
    details: dict[str, Any] = {
        "job_id": str(job_id),
        "current_state": str(job.state),
        "expected_state": str(State.ACTIVE),
        "attempt": job.attempt,
    }
    if job.state == State.ACTIVE and (worker_id is not None or attempt is not None):
        return ReservationLost(
            f"Cannot {what} checkpoint of job '{job_id}': its reservation is not yours (any more).",
            **details,
        )
    return InvalidTransition(
        f"Cannot {what} checkpoint of a job not in 'active' state. Current state: '{job.state}'.",
        **details,
    )


def find_checkpoint(job_id: UUID, *, worker_id: str | None = None) -> Checkpoint | None:
    """Return the job's last checkpoint, or None if it has none (§4.3).

    Args:
        worker_id: the requesting worker, which must hold the job; None skips the check.

    Raises:
        JobNotFound: there is no such job.
        ReservationLost: another worker has the job.
        InvalidTransition: `worker_id` is given, and the job is not active.
    """
    kept = _kept(job_id, worker_id).first()
    if kept is None:
        _must_exist(job_id, worker_id)
    return kept


def clear_checkpoint(job_id: UUID, *, worker_id: str | None = None) -> bool:
    """Clear the job's checkpoint; return whether there was one (§4.4).

    Args:
        worker_id: the requesting worker, which must hold the job; None skips the check.

    Raises:
        JobNotFound: there is no such job.
        ReservationLost: another worker has the job.
        InvalidTransition: `worker_id` is given, and the job is not active.
    """
    # The row stays: the next sequence number continues from it.
    cleared = _kept(job_id, worker_id).update(is_cleared=True, state=None)
    if not cleared:
        _must_exist(job_id, worker_id)
    return bool(cleared)


def _kept(job_id: UUID, worker_id: str | None) -> QuerySet[Checkpoint]:
    kept = Checkpoint.objects.filter(pk=job_id, is_cleared=False)
    if worker_id is None:
        return kept
    return kept.filter(pk__in=Job.objects.held_by(worker_id).filter(pk=job_id).values("pk"))


def _must_exist(job_id: UUID, worker_id: str | None) -> None:
    jobs = Job.objects.all() if worker_id is None else Job.objects.held_by(worker_id)
    if not jobs.filter(pk=job_id).exists():
        raise _refusal("use the", job_id, worker_id, None)
