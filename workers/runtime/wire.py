"""A worker's requests and replies over HTTP, as JSON (OJS HTTP §10)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson

from jobs.errors import ResultTooLarge
from jobs.spec.envelope import milliseconds
from jobs.spec.timestamps import format_timestamp
from jobs.spec.versions import Versions
from workers.protocol import Description

from .client import Exchange
from .context import JobContext


def description(worker_id: str, given: Description) -> dict[str, Any]:
    body: dict[str, Any] = {
        "worker_id": worker_id,
        "hostname": given.hostname,
        "pid": given.pid,
        "queues": given.queues,
        "concurrency": given.concurrency,
        "labels": given.labels,
    }
    if given.started_at is not None:
        body["started_at"] = format_timestamp(given.started_at)
    if given.job_versions:
        body["handlers"] = [
            {"type": name, "versions": str(Versions(*bounds))}
            for name, bounds in given.job_versions.items()
        ]
    return body


def context(job: dict[str, Any], worker_id: str) -> JobContext:
    limit = job.get("timeout_ms")
    return JobContext(
        id=UUID(job["id"]),
        type=job["type"],
        queue=job.get("queue") or "default",
        args=job.get("args") or [],
        meta=job.get("meta") or {},
        attempt=job.get("attempt") or 1,
        max_attempts=job.get("max_attempts") or 1,
        worker_id=worker_id,
        timeout=timedelta(milliseconds=limit) if isinstance(limit, int) else None,
        grace_period=job.get("grace_period"),
        document=lambda: job,
        checkpoint=job.get("checkpoint") if isinstance(job.get("checkpoint"), dict) else None,
    )


def progress(report: Any) -> dict[str, Any]:
    given = {"progress": report.value, "data": report.data}
    return {name: value for name, value in given.items() if value is not None}


def document(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def ack(report: Any) -> dict[str, Any]:
    body = _settled(report)
    return body if report.result is None else body | {"result": report.result}


def nack(report: Any) -> dict[str, Any]:
    body = _settled(report)
    if report.retry_in is not None:
        body["retry_in_ms"] = milliseconds(report.retry_in)
    if report.release:
        return body | {"requeue": True}
    error: dict[str, Any] = {
        "code": report.code or report.type,
        "type": report.type,
        "message": report.message,
    }
    for name in ("backtrace", "details", "retryable"):
        if getattr(report, name) is not None:
            error[name] = getattr(report, name)
    return body | {"error": error}


def _settled(report: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"job_id": str(report.job_id), "attempt": report.attempt}
    return body | {"traceparent": report.traceparent} if report.traceparent else body


def note_refusals(answers: list[dict[str, Any]], done: Exchange) -> None:
    """Read the outcomes of reports that were sent with a fetch."""
    for answer in answers:
        error = answer.get("error")
        if not error:
            continue
        job_id = UUID(answer["job_id"])
        if error.get("code") == ResultTooLarge.code:
            done.too_large[job_id] = error["message"]
        else:
            state = error.get("details", {}).get("current_state", "")
            done.refused.append((job_id, error["message"], state))
