"""Responses to workers over OJS HTTP (OJS HTTP §10, worker protocol §3.3, §4.4)."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from typing import Any

from jobs.conf import ojs_settings
from jobs.http.errors import error_document, status_of
from jobs.spec.envelope import milliseconds
from jobs.spec.lifecycle import State
from jobs.spec.timestamps import format_timestamp
from jobs.store import clock
from workers.fleet import directory
from workers.lifecycle import WorkerState
from workers.protocol import Outcome, Reply

COMPLETED = State.COMPLETED.value
# Everything that one statement settles has the same time.
_moment = lru_cache(maxsize=16)(format_timestamp)


def seconds(value: timedelta) -> float:
    """A whole number if possible: typed clients read an integer."""
    total = value.total_seconds()
    return int(total) if total.is_integer() else total


def registered(worker_id: str) -> dict[str, Any]:
    return {
        "ok": True,
        "worker_id": worker_id,
        "server_time": format_timestamp(clock.now()),
        "heartbeat_interval": seconds(ojs_settings.HEARTBEAT_INTERVAL),
        "heartbeat_timeout": seconds(ojs_settings.HEARTBEAT_TIMEOUT),
        "visibility_timeout_default": seconds(ojs_settings.VISIBILITY_TIMEOUT),
    }


def heartbeat(reply: Reply) -> dict[str, Any]:
    document = {
        "state": str(reply.state),
        "directive": str(reply.state),
        "acknowledged": True,
        "jobs_extended": reply.jobs_extended,
        "jobs_lost": reply.jobs_lost,
        "server_time": format_timestamp(clock.now()),
        "visibility_timeout": seconds(ojs_settings.VISIBILITY_TIMEOUT),
    }
    if reply.stale:
        document["stale"] = True
    return document


def health(worker: Any, worker_id: str, active_jobs: int) -> dict[str, Any]:
    """How a worker is, by its last heartbeat."""
    is_active = directory.is_active(worker)
    state = str(worker.desired_state) if is_active else str(WorkerState.TERMINATED)
    heard = worker.last_heartbeat_at
    return {
        "worker_id": worker_id,
        "id": worker_id,
        "status": "healthy" if is_active else "unhealthy",
        "ready": is_active and state == WorkerState.RUNNING,
        "state": state,
        "active_jobs": active_jobs,
        "last_heartbeat_at": format_timestamp(heard) if heard else None,
        "server_time": format_timestamp(clock.now()),
    }


def completed(outcome: Outcome) -> dict[str, Any]:
    assert outcome.at is not None
    return {
        "acknowledged": True,
        "job_id": outcome.job_id,
        "id": outcome.job_id,
        "state": COMPLETED,
        "attempt": outcome.attempt,
        "completed_at": _moment(outcome.at),
    }


def failed(outcome: Outcome) -> dict[str, Any]:
    job_id = str(outcome.job_id)
    document: dict[str, Any] = {
        "acknowledged": True,
        "job_id": job_id,
        "id": job_id,
        "state": str(outcome.state),
        "attempt": outcome.attempt,
        "max_attempts": outcome.max_attempts,
    }
    if outcome.retry_at is not None and outcome.retry_delay is not None:
        document["next_attempt_at"] = format_timestamp(outcome.retry_at)
        document["next_retry_at"] = document["next_attempt_at"]
        document["retry_delay_ms"] = milliseconds(outcome.retry_delay)
    elif outcome.at is not None and outcome.state == "discarded":
        document["discarded_at"] = document["completed_at"] = format_timestamp(outcome.at)
    return document


def about_one(document: dict[str, Any]) -> dict[str, Any]:
    """The answer about one job, with `job` as other answers about a job have it."""
    document["job"] = {name: document[name] for name in ("id", "state", "attempt")}
    return document


def each(outcomes: list[Outcome], render: Any, request_id: str) -> list[dict[str, Any]]:
    """One entry for each outcome of a list, in order; a refused one has its own status."""
    return [
        {"status": 200, **render(outcome)}
        if outcome.error is None
        else {
            "status": status_of(outcome.error),
            "acknowledged": False,
            "job_id": str(outcome.job_id),
            "id": str(outcome.job_id),
            "error": error_document(outcome.error, request_id, retryable=False),
        }
        for outcome in outcomes
    ]
