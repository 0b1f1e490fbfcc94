"""What may come in over Flare: validation only. Flare has one code for it, `invalid_request`."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from jobs.engine import NewCronJob
from jobs.http.authentication import Caller
from jobs.spec import fields
from jobs.spec.fields import Document, missing, refuse, wrong_type
from jobs.spec.identifiers import uuid7
from jobs.spec.retry import MAX_ATTEMPTS
from jobs.spec.schedules import InvalidSchedule, read_schedule, read_zone
from jobs.spec.validation import (
    CLASS_PATTERN,
    PRIORITIES,
    QUEUE_LENGTH,
    QUEUE_PATTERN,
    NewJob,
    queue_names,
)
from jobs.store import clock
from workers.access import admission
from workers.protocol import Completion, Description, Failure

from . import PROTOCOL, cronos, ids

LONGEST_WORKER_ID = 100
CAPACITY = (1, 50)
MOST_NAMES = 1_000
"""Queues, job types or schedules in one request."""
STATUSES = ("succeeded", "failed")
LONGEST_TEXT = 2**20
MOST_TYPE = 140
"""Characters of a scheduled type, which is part of the name of its schedule."""


def worker_id(body: Document, caller: Caller) -> str:
    """
    Raises:
        PermissionDenied: the key speaks for another worker only.
    """
    given = fields.required_text(body, "worker_id", longest=LONGEST_WORKER_ID)
    return admission.speak_for(caller, given) or given


def names(body: Document, field: str, *, least: int = 0) -> list[str] | None:
    """Read an array of names, each once and in order; None if there is none."""
    found = fields.texts(body, field)
    if found is None:
        return None
    if not least <= len(found) <= MOST_NAMES:
        raise refuse(field, f"The '{field}' field must hold {least or 0} to {MOST_NAMES} names.")
    if "" in found:
        raise refuse(field, f"The '{field}' field must not hold an empty name.")
    return list(dict.fromkeys(found))


def required_names(body: Document, field: str, *, least: int = 0) -> list[str]:
    found = names(body, field, least=least)
    if found is None:
        raise missing(field)
    return found


def queues(body: Document) -> list[str]:
    """The queues a worker serves, at least one."""
    queue_names(body)
    return required_names(body, "queues", least=1)


def registration(body: Document, caller: Caller) -> Description:
    return Description(
        hostname=fields.text(body, "hostname"),
        queues=queues(body),
        job_types=required_names(body, "job_types"),
        version=fields.text(body, "sdk_version"),
        protocol=PROTOCOL.name,
        project=caller.project or None,
    )


def schedules(body: Document, caller: Caller) -> list[NewCronJob]:
    """Read `recurring_schedules`: cron jobs named `rjob_{job_type}`, or `rjob_{job_type}@{project}`
    for a project's, whose types are its own affair.
    """
    items = fields.array(body, "recurring_schedules") or []
    if len(items) > MOST_NAMES:
        raise refuse("recurring_schedules", f"At most {MOST_NAMES} schedules in one request.")
    found: list[NewCronJob] = []
    places: dict[str, str] = {}
    for index, item in enumerate(items):
        place = f"recurring_schedules[{index}]"
        if type(item) is not dict:
            raise wrong_type(place, "object", item)
        with fields.inside(place, aloud=True):
            schedule = _schedule(item, caller.project)
            # The name is the type's alone, so the second would replace the first in silence.
            if schedule.name in places:
                raise refuse(
                    "job_type",
                    f"{places[schedule.name]} is a schedule of {item['job_type']!r} too, and both "
                    f"would be {schedule.name!r}; a job type has one schedule.",
                    other=places[schedule.name],
                )
        places[schedule.name] = place
        found.append(schedule)
    return found


def _schedule(item: Document, project: str) -> NewCronJob:
    kind = fields.required_text(item, "job_type", pattern=CLASS_PATTERN, longest=MOST_TYPE)
    attempts = fields.integer(item, "max_attempts", least=1, most=MAX_ATTEMPTS)
    seconds = timeout_seconds(item)
    options: dict[str, Any] = {"queue": queue(item)}
    if attempts is not None:
        options["max_attempts"] = attempts
    if seconds is not None:
        options["visibility_timeout"] = seconds
    given = fields.required_text(item, "cron_expression")
    zone = fields.text(item, "timezone", longest=64) or "UTC"
    field = "timezone"
    try:
        read_zone(zone)
        field = "cron_expression"
        expression = cronos.translated(given)
        read_schedule(expression, zone)
    except InvalidSchedule as problem:
        raise refuse(field, str(problem)) from None
    return NewCronJob(
        name=f"rjob_{kind}@{project}" if project else f"rjob_{kind}",
        expression=expression,
        timezone=zone,
        template={"type": kind, "args": [{}], "options": options},
        # Flare has no word for it: one that an operator disabled stays so, whoever registers.
        enabled=None,
        project=project,
    )


def queue(body: Document) -> str:
    return fields.text(body, "queue", pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH) or "default"


def timeout_seconds(body: Document) -> int | None:
    longest = int(fields.LONGEST.total_seconds())
    return fields.integer(body, "timeout_seconds", least=1, most=longest)


def capacity(body: Document) -> int:
    least, most = CAPACITY
    return fields.integer(body, "capacity", least=least, most=most) or 1


def job_id(body: Document) -> UUID:
    return ids.read(fields.required_text(body, "job_id"))


def outcome(body: Document, sender: str) -> Completion | Failure:
    status = fields.required_text(body, "status")
    if status not in STATUSES:
        raise refuse(
            "status", f"The 'status' field must be one of {', '.join(STATUSES)}, not {status!r}."
        )
    duration = fields.integer(body, "duration_ms")
    error = fields.mapping(body, "error")
    failed = _failure(error or {}, sender)
    if status == "succeeded":
        return Completion(job_id(body), worker_id=sender)
    if error is None:
        raise missing("error")
    failed.job_id = job_id(body)
    failed.details = None if duration is None else {"duration_ms": duration}
    return failed


def _failure(error: Document, sender: str) -> Failure:
    with fields.inside("error"):
        trace = fields.text(error, "stack_trace", longest=LONGEST_TEXT)
        return Failure(
            UUID(int=0),
            worker_id=sender,
            type=(fields.text(error, "type", longest=LONGEST_TEXT) or "handler_error")[:255],
            message=fields.text(error, "message", longest=LONGEST_TEXT) or "",
            backtrace=trace.splitlines() if trace else None,
        )


def progress(body: Document) -> float | None:
    """The progress a worker reports; None for one outside [0, 1], which is ignored."""
    value = body.get("progress")
    if value is None:
        return None
    if type(value) not in (int, float):
        raise wrong_type("progress", "number", value)
    return float(value) if 0 <= value <= 1 else None


def new_job(body: Document, caller: Caller) -> tuple[NewJob, UUID | None]:
    """Read a job to enqueue, and the job it waits for."""
    attempts = fields.integer(body, "max_attempts", least=1, most=MAX_ATTEMPTS)
    least, most = PRIORITIES
    seconds = timeout_seconds(body)
    parent = fields.text(body, "parent_id")
    if parent is not None and body.get("scheduled_at") is not None:
        raise refuse("scheduled_at", "A job waits for its parent or for its time, not for both.")
    job = NewJob(
        type=fields.required_text(body, "job_type", pattern=CLASS_PATTERN),
        args=[fields.mapping(body, "payload") or {}],
        id=uuid7(),
        queue=queue(body),
        priority=fields.integer(body, "priority", least=least, most=most) or 0,
        max_attempts=attempts or 3,
        retry=None if attempts is None else {"max_attempts": attempts},
        # Not an execution timeout: with heartbeats a Flare job may run longer.
        visibility_timeout=fields.period({"period": seconds}, "period"),
        scheduled_at=fields.when(body, "scheduled_at", clock.now()),
        tags=fields.texts(body, "tags") or [],
        project=caller.project,
    )
    return job, None if parent is None else ids.read(parent)
