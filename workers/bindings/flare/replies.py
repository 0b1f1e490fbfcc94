"""Flare's responses: its names for states, its form of a job."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import orjson

from jobs.conf import ojs_settings
from jobs.spec.envelope import wire_time
from jobs.spec.lifecycle import State
from jobs.spec.timestamps import format_timestamp
from workers.protocol import Outcome

from . import ids

STATUS = {
    State.PENDING: "awaiting",
    State.SCHEDULED: "scheduled",
    State.AVAILABLE: "pending",
    State.ACTIVE: "processing",
    State.RETRYABLE: "retrying",
    State.COMPLETED: "succeeded",
    State.CANCELLED: "cancelled",
    State.DISCARDED: "failed",
}
DEAD_LETTER = "dead_letter"


def seconds(period: timedelta) -> int:
    return max(1, math.ceil(period.total_seconds()))


def payload(args: Any) -> dict[str, Any]:
    """A job's arguments as the single object of Flare; a job enqueued over Flare has just that."""
    known: Any = orjson.loads(orjson.dumps(args)) if isinstance(args, orjson.Fragment) else args
    if len(known) == 1 and type(known[0]) is dict:
        only: dict[str, Any] = known[0]
        return only
    return {"args": known}


def polled(job: Any, timeout: timedelta) -> dict[str, Any]:
    return {
        "id": ids.write(job.id),
        "job_type": job.type,
        "payload": payload(job.args),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "timeout_seconds": seconds(timeout),
        "enqueued_at": wire_time(job.enqueued_at),
    }


def acknowledged(outcome: Outcome, children: int | None) -> dict[str, Any]:
    if outcome.state == State.COMPLETED:
        return {"action": "succeeded", "retry_at": None, "children_activated": children or 0}
    if outcome.retry_at is not None:
        action = "retry"
    else:
        action = DEAD_LETTER if outcome.dead_letter else "failed"
    retry_at = outcome.retry_at and format_timestamp(outcome.retry_at)
    return {"action": action, "retry_at": retry_at, "children_activated": None}


def status(job: Any) -> str:
    return status_in(State(job.state), dead_letter=getattr(job, "dead_letter", False))


def status_in(state: State, *, dead_letter: bool) -> str:
    if state == State.DISCARDED and dead_letter:
        return DEAD_LETTER
    return STATUS[state]


def job(job: Any, *, progress: float | None = None, error: Any = None) -> dict[str, Any]:
    """Everything about a job, as in `GET /flare/v1/jobs/{id}`."""
    timeout = job.timeout or job.visibility_timeout or ojs_settings.VISIBILITY_TIMEOUT
    times = {
        name: moment and wire_time(moment)
        for name, moment in (
            ("created_at", job.created_at),
            ("enqueued_at", job.enqueued_at),
            ("scheduled_at", job.scheduled_at),
            ("started_at", job.started_at),
            ("finished_at", job.finished_at),
        )
    }
    return {
        "id": ids.write(job.id),
        "job_type": job.type,
        "payload": payload(job.args),
        "queue": job.queue,
        "status": status(job),
        "priority": job.priority,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "timeout_seconds": seconds(timeout),
        "progress": progress,
        "tags": job.tags,
        "error": error,
    } | times


def last_error(job: Any) -> dict[str, Any] | None:
    newest = job.errors.order_by("-id").first()
    if newest is None or job.state == State.COMPLETED:
        return None
    return {
        "type": newest.type,
        "message": newest.message,
        "stack_trace": "\n".join(newest.backtrace or ()),
    }
