"""Jobs as operators see them: the line in a list, and the full document (OJS admin API §7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ...access.redaction import redact_job, redact_quotes
from ...models import Job
from ...spec.envelope import error_entry
from ...spec.lifecycle import State
from ...spec.timestamps import format_timestamp
from ...spec.worker_ids import shown
from ..jobs import full_envelope, policy

COLUMNS = (
    "type",
    "queue",
    "state",
    "priority",
    "attempt",
    "max_attempts",
    "created_at",
    "enqueued_at",
    "scheduled_at",
    "started_at",
    "finished_at",
    "reserved_by",
    "tags",
    "dead_letter",
)
"""Members of a line: neither arguments nor results, which may be large and secret."""
LONG = ("backtrace", "details")
ENDED = {
    State.COMPLETED: "completed_at",
    State.CANCELLED: "cancelled_at",
    State.DISCARDED: "discarded_at",
}


def moment(value: datetime | None) -> str | None:
    return None if value is None else format_timestamp(value)


def times(job: Job) -> dict[str, str | None]:
    """The job's timestamps; null for what has not happened (§7.2)."""
    ended: dict[str, str | None] = dict.fromkeys(ENDED.values())
    if job.finished_at is not None:
        ended[ENDED[State(job.state)]] = moment(job.finished_at)
    waits = job.state in (State.SCHEDULED, State.RETRYABLE)
    return {
        "created_at": moment(job.created_at),
        "enqueued_at": moment(job.enqueued_at),
        "started_at": moment(job.started_at),
        "scheduled_at": moment(job.scheduled_at) if waits else None,
        **ended,
    }


def line(
    job: Job,
    errors: Sequence[Mapping[str, Any]] = (),
    *,
    is_redacted: bool = True,
    project: str = "",
) -> dict[str, Any]:
    """One job of a list (§7.1), without members that have no value or may be secret.

    Args:
        project: the project of the key that reads it.
    """
    document: dict[str, Any] = {
        "id": str(job.pk),
        "type": job.type,
        "queue": job.queue,
        "state": job.state,
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
    }
    document |= {name: when for name, when in times(job).items() if when is not None}
    if job.state == State.ACTIVE and job.reserved_by:
        document["worker_id"] = shown(job.reserved_by, project)
    if job.tags:
        document["tags"] = job.tags
    if job.state == State.DISCARDED:
        document["dead_letter"] = job.dead_letter
    if errors:
        newest = error_entry(errors[-1], project=project)
        error = {name: newest[name] for name in newest if name not in LONG}
        document["error"] = redact_quotes(error) if is_redacted else error
    return document


def whole(job: Job, *, is_redacted: bool, project: str) -> dict[str, Any]:
    """The full envelope, with history and errors (§7.2).

    Args:
        is_redacted: hide values of the keys in `REDACT_KEYS`, whether from a client or a worker.
        project: the project of the key that reads it.
    """
    known = full_envelope(job, project)
    if is_redacted:
        known = redact_job(known)
    document = {"result": None, "errors": [], "meta": {}} | known
    document |= {"retry_policy": policy(job), "metadata": times(job)}
    worker_id = job.reserved_by if job.state == State.ACTIVE else ""
    if worker_id or job.finished_by:
        document["worker_id"] = shown(worker_id or job.finished_by, project)
    return document


def reply(job: Job, *, is_redacted: bool, project: str, **more: Any) -> dict[str, Any]:
    """A job at the top level, as in this document, and as `job`, as in the others."""
    document = whole(job, is_redacted=is_redacted, project=project)
    return document | {"job": document} | more
