"""Formats log lines as JSON that names their job (OJS logging §5). For a site's `LOGGING`:

    "formatters": {"json": {"()": "workers.json_log.JSONFormatter"}}

Every line that a handler logs, with any logger, names its job and carries its trace (§7).
Arguments and results are never included (§9).
"""

from __future__ import annotations

import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import Any

import orjson

from jobs.spec.error_texts import class_name, legible, message_of
from jobs.spec.timestamps import format_timestamp
from jobs.spec.traces import parent_of

SEVERITIES = (
    (logging.CRITICAL, "FATAL", 21),
    (logging.ERROR, "ERROR", 17),
    (logging.WARNING, "WARN", 13),
    (logging.INFO, "INFO", 9),
    (logging.DEBUG, "DEBUG", 5),
    (logging.NOTSET, "TRACE", 1),
)
"""Lowest `logging` level of each severity, and the numbers of OpenTelemetry (§5.4)."""
OF_WORKERS = ("workers.runtime", "workers.job")
"""Loggers of worker processes. The other loggers of this package are the server's."""
DEEPEST = 50
"""Levels of nesting that are kept of what JSON cannot carry."""
ABOUT = ("job_id", "job_type", "queue", "attempt", "state", "worker_id")


class JSONFormatter(logging.Formatter):
    """One line of JSON for each record."""

    def format(self, record: logging.LogRecord) -> str:
        name, number = next(
            (name, number) for level, name, number in SEVERITIES if record.levelno >= level
        )
        about = _about(record)
        document: dict[str, Any] = {
            "timestamp": format_timestamp(datetime.fromtimestamp(record.created, UTC)),
            "severity": name,
            "severity_number": number,
            "message": _message(record),
            "component": _component(record),
            "logger": record.name,
        }
        parts = {
            "category": _category(record),
            "ojs": about,
            "trace": _trace(record),
            "error": _error(record),
            "attributes": getattr(record, "attributes", None),
        }
        document |= {part: said for part, said in parts.items() if said}
        try:
            return orjson.dumps(document, default=str).decode()
        except TypeError:
            # No line may be lost (§8.2), whatever it quotes.
            return orjson.dumps(_carried(document)).decode()


def is_used() -> bool:
    """Whether this process logs JSON: then its commands print nothing else."""
    return any(
        isinstance(handler.formatter, JSONFormatter) for handler in logging.getLogger().handlers
    )


def _component(record: logging.LogRecord) -> str:
    is_worker = _current_job() is not None or record.name.startswith(OF_WORKERS)
    return "worker" if is_worker else "server"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as problem:
        return f"{_text(record.msg)} ({class_name(type(problem))}: {message_of(problem)})"


def _carried(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """Return `value` as JSON can carry it: what it cannot is text, in which escapes stand for half
    a character.

    Args:
        inside: the ids of the values that it is a part of; one may contain itself.
    """
    if isinstance(value, str):
        return legible(value)
    if id(value) not in inside and len(inside) < DEEPEST:
        within = (*inside, id(value))
        if isinstance(value, dict):
            return {_text(name): _carried(each, within) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [_carried(each, within) for each in value]
    try:
        return orjson.Fragment(orjson.dumps(value, default=str))
    except TypeError:
        return _text(value)


def _text(value: Any) -> str:
    try:
        return legible(str(value))
    except Exception:
        return f"<{type(value).__qualname__} str() failed>"


def _category(record: logging.LogRecord) -> str:
    """What kind of line it is (§6); empty for lines of other software."""
    if hasattr(record, "category"):
        return str(record.category)
    if record.exc_info and record.exc_info[1] is not None:
        return "error"
    return "worker" if record.name == "workers" or record.name == OF_WORKERS[0] else ""


def _about(record: logging.LogRecord) -> dict[str, Any]:
    """The job given in the record, or else the one that this thread or task runs."""
    found = {name: getattr(record, name) for name in ABOUT if hasattr(record, name)}
    job = _current_job()
    if job is not None and found.get("job_id", str(job.id)) == str(job.id):
        found = {
            "job_id": str(job.id),
            "job_type": job.type,
            "queue": job.queue,
            "attempt": job.attempt,
            "worker_id": job.worker_id,
            **found,
        }
        if isinstance(job.meta.get("correlation_id"), str):
            found["correlation_id"] = job.meta["correlation_id"]
        workflow_id = job.job.get("workflow_id")
        if workflow_id:
            found["workflow_id"] = workflow_id
    return found


def _current_job() -> Any:
    """The job this thread or task runs. Logging is configured before any app may be imported; if
    nothing has imported the worker, no job runs."""
    execution = sys.modules.get("workers.runtime.execution")
    return execution.current_job.get() if execution is not None else None


def _trace(record: logging.LogRecord) -> dict[str, str]:
    """The current span, if this process has OpenTelemetry, else the trace of the job (§7.2)."""
    named = getattr(record, "traceparent", None)
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None and named is None:
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            return {
                "trace_id": trace.format_trace_id(span.trace_id),
                "span_id": trace.format_span_id(span.span_id),
            }
    job = _current_job()
    if named is None and job is not None:
        named = job.meta.get("traceparent")
    parent = parent_of(named)
    return {} if parent is None else {name: parent[name] for name in ("trace_id", "span_id")}


def _error(record: logging.LogRecord) -> dict[str, str]:
    """The exception of a line, or the error that its `extra` gives."""
    problem = record.exc_info[1] if record.exc_info else None
    if problem is None:
        given: dict[str, str] = getattr(record, "error", {})
        return given if isinstance(given, dict) else {}
    return {
        "type": class_name(type(problem)),
        "message": message_of(problem),
        "backtrace": "".join(traceback.format_exception(problem)),
    }
