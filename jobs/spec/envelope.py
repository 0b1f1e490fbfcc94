"""Job → OJS JSON envelope (OJS JSON format §3, HTTP §9). Parsing lives in `validation`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from ..store import clock
from .lifecycle import State
from .timestamps import format_timestamp, is_delay, wire_timestamp
from .worker_ids import shown

ERROR_FIELDS = (
    "attempt",
    "type",
    "code",
    "message",
    "occurred_at",
    "backtrace",
    "details",
    "retryable",
    "worker_id",
)
TIMEOUT_TYPES = (
    "timeout",
    "total_timeout",
    "enqueue_ttl_expired",
    "visibility_timeout",
    "worker_death",
)
TIMEOUT_FIELDS = ("timeout_kind", "limit_seconds", "elapsed_seconds")
ERRORS_SHOWN = 50
"""Errors kept of a long history, the newest ones; the documents ask for ten (errors §6.2)."""
RESULT_TTL = timedelta(days=7)
"""How long results are kept by default (OJS results §6.1)."""
NOT_FOR_WORKERS = ("timeout",)
"""Public JavaScript workers read `timeout` as milliseconds; `timeout_ms` is unambiguous."""

Errors = Iterable[Mapping[str, Any]]


def wire_time(moment: datetime | str) -> str:
    """Format a time; a claim's times are text in wire format already."""
    return moment if isinstance(moment, str) else format_timestamp(moment)


def milliseconds(value: timedelta) -> int:
    return value // timedelta(milliseconds=1)


def limit_milliseconds(value: timedelta) -> int:
    """Return a time limit in milliseconds: at least 1 if there is one, since 0 means none."""
    return max(milliseconds(value), 1) if value else 0


def result_expires_at(job: Any) -> datetime | None:
    """When the result may be deleted (OJS results §6.2); None for a job that has not finished."""
    if job.finished_at is None:
        return None
    ttl: timedelta = RESULT_TTL if job.result_ttl is None else job.result_ttl
    moment: datetime = job.finished_at + ttl
    return moment


def is_pruned(job: Any) -> bool:
    """Whether the result has expired, swept or not (OJS results §5.3)."""
    if getattr(job, "result_ttl", None) is None:
        return False
    expires_at = result_expires_at(job)
    return expires_at is not None and expires_at <= clock.now()


def timeout_details(kind: str, limit: timedelta, elapsed: timedelta) -> dict[str, Any]:
    """Details of a timeout, in the error and in the event (OJS timeouts §8, §11.1)."""
    return {
        "timeout_kind": kind,
        "limit_seconds": _seconds(limit),
        "elapsed_seconds": _seconds(elapsed),
    }


def _seconds(value: timedelta) -> int | float:
    seconds = round(value.total_seconds(), 3)
    return int(seconds) if seconds.is_integer() else seconds


def error_entry(row: Mapping[str, Any], *, project: str = "") -> dict[str, Any]:
    """One element of `errors` (OJS errors §6.1, retry §10.1).

    Args:
        project: the project of the key that reads it.
    """
    entry = {name: row[name] for name in ERROR_FIELDS if row.get(name) not in (None, "")}
    entry["code"] = row.get("code") or row["type"]
    entry["message"] = row.get("message") or ""
    # The history in a claim has the format of PostgreSQL.
    entry["occurred_at"] = entry["timestamp"] = wire_timestamp(row["occurred_at"])
    if project and "worker_id" in entry:
        entry["worker_id"] = shown(entry["worker_id"], project)
    if row["type"] in TIMEOUT_TYPES:
        details = entry.get("details") or {}
        entry |= {name: details[name] for name in TIMEOUT_FIELDS if name in details}
    return entry


def claimed_envelope(job: Any, *, project: str = "") -> dict[str, Any]:
    """The envelope that a worker receives for a job from `engine.claim`; orjson can write it.

    Args:
        project: the project of the worker's key.
    """
    return envelope(job, job.errors, for_worker=True, project=project)


def envelope(
    job: Any, errors: Errors = (), *, for_worker: bool = False, project: str = ""
) -> dict[str, Any]:
    """Return the whole envelope of `job`; `errors` are its failed attempts, oldest first.

    The job may be a row, a claimed job or a new one: any object with the columns' names as
    attributes. The client's own members come last, and never replace one of the standard's.

    Args:
        project: the project of the key that reads it; it has its own worker ids (`worker_ids`).
    """
    document = _common(job, str(job.id) if isinstance(job.id, UUID) else job.id)
    if job.timeout is not None:
        document["timeout_ms"] = limit_milliseconds(job.timeout)
    if job.visibility_timeout is not None:
        document["visibility_timeout_ms"] = limit_milliseconds(job.visibility_timeout)
    if job.retry is not None:
        document["retry"] = job.retry
    if job.retry_delay is not None:
        document["retry_delay_ms"] = milliseconds(job.retry_delay)
    if job.started_at is not None:
        document["started_at"] = wire_time(job.started_at)
    if job.result is not None and not is_pruned(job):
        document["result"] = job.result
    if job.workflow_id is not None:
        document["workflow_id"] = str(job.workflow_id)
    if job.parent_results is not None:
        document["parent_results"] = job.parent_results
    if for_worker and getattr(job, "checkpoint", None) is not None:
        document["checkpoint"] = job.checkpoint
        # Named as in OJS progress §6.4; a claim has text, which is passed on without parsing.
        document["last_checkpoint"] = orjson.loads(orjson.dumps(job.checkpoint))["state"]
    _add_times(document, job)
    _add_errors(document, job, errors, project)
    for name, value in (job.attributes or {}).items():
        # An operator's retry removes the deadline, so its original text must be removed, too.
        if name == "expires_at" or (for_worker and name in NOT_FOR_WORKERS):
            continue
        # A delay is kept for when it begins (`NewJob.hold`); the standard's member is a timestamp.
        if not (name == "scheduled_at" and is_delay(value)):
            document.setdefault(name, value)
    return document


def _common(job: Any, identifier: Any) -> dict[str, Any]:
    """Members that every envelope has."""
    return {
        "specversion": "1.0",
        "id": identifier,
        "type": job.type,
        "queue": job.queue,
        "args": job.args,
        "meta": job.meta,
        "priority": job.priority,
        "state": str(job.state),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "tags": job.tags,
        "created_at": wire_time(job.created_at),
        "enqueued_at": wire_time(job.enqueued_at),
    }


def due_at(job: Any) -> datetime | None:
    """Return when the job, or its next attempt, is due; None if it was run before that."""
    due: datetime | None = job.scheduled_at
    if due is None or job.state in (State.SCHEDULED, State.RETRYABLE) or due <= job.enqueued_at:
        return due
    return None


def _add_times(document: dict[str, Any], job: Any) -> None:
    sent = job.attributes or {}
    if job.expires_at is not None:
        document["expires_at"] = sent.get("expires_at") or format_timestamp(job.expires_at)
    if job.scheduled_at is not None:
        due = format_timestamp(job.scheduled_at)
        if job.state == State.RETRYABLE:
            document["next_attempt_at"] = document["next_retry_at"] = due
        elif job.state == State.SCHEDULED:
            text = sent.get("scheduled_at")
            document["scheduled_at"] = text if text and not is_delay(text) else due
    if job.finished_at is None:
        return
    finished = format_timestamp(job.finished_at)
    if job.state == State.CANCELLED:
        document["cancelled_at"] = finished
        return
    if job.state == State.DISCARDED:
        document["discarded_at"] = finished
    # A job that expired before its first attempt was discarded without having run.
    if job.attempt or job.state == State.COMPLETED:
        document["completed_at"] = finished


def _add_errors(document: dict[str, Any], job: Any, errors: Errors, project: str) -> None:
    history = [error_entry(row, project=project) for row in errors]
    if history:
        document["errors"] = history
        # Cleared by success (core §7.3) and by an operator's retry.
        # A job may also be discarded before its first attempt.
        if job.state != State.COMPLETED and (job.attempt or not history[-1]["attempt"]):
            document["error"] = history[-1]
