"""Validates Flare's requests. Flare has a single code for errors, `invalid_request`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from jobs.engine import NewCronJob
from jobs.http.authentication import Caller
from jobs.spec import fields, reserved
from jobs.spec.fields import Document, missing, refuse, wrong_type
from jobs.spec.identifiers import uuid7
from jobs.spec.members import (
    CENTURY,
    Array,
    Choice,
    Integer,
    Member,
    Members,
    Moment,
    Object,
    Schema,
    Text,
    Texts,
    words,
)
from jobs.spec.reports import ErrorText, mend_members
from jobs.spec.retry import MAX_ATTEMPTS
from jobs.spec.schedules import InvalidSchedule, new_schedule, read_zone
from jobs.spec.validation import (
    CLASS_PATTERN,
    PRIORITIES,
    QUEUE_LENGTH,
    QUEUE_PATTERN,
    NewJob,
    OpenQueue,
    OpenType,
    Tags,
)
from jobs.spec.worker_ids import WorkerId
from jobs.store import clock
from workers.access import admission
from workers.protocol import Completion, Description, Failure

from . import PROTOCOL, cronos, ids

LONGEST_WORKER_ID = 100
MOST_NAMES = 1_000
"""Maximum number of queues, job types or schedules in one request."""
MOST_TYPE = 140
"""Maximum length of a scheduled type, which is part of the name of its schedule."""


class Names(Texts):
    """Names in order, without repetition."""

    def __init__(self, about: str = "", **words: Any) -> None:
        sentence = "The '{name}' field must hold {least} to {most} names."
        super().__init__(about, most=MOST_NAMES, sentence=sentence, **words)

    def check(self, value: Any, place: str) -> list[str]:
        found = super().check(value, place)
        if "" in found:
            raise refuse(place, f"The '{place}' field must not hold an empty name.")
        return list(dict.fromkeys(found))

    def items_schema(self) -> Schema:
        return {"minLength": 1} | super().items_schema()


class Worker(Members):
    worker_id = WorkerId(longest=LONGEST_WORKER_ID).required()


class ServedQueues(Names):
    def check(self, value: Any, place: str) -> list[str]:
        names = super().check(value, place)
        reserved.refuse_queues(names, place)
        return names


class Serving(Worker):
    queues = ServedQueues(pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH, least=1).required()


class Running(Members):
    """Execution options of both jobs and schedules of jobs."""

    queue = OpenQueue().default("default")
    max_attempts = Integer(least=1, most=MAX_ATTEMPTS)
    # Not an execution timeout: with heartbeats a Flare job may run longer.
    timeout_seconds = Integer(least=1, most=CENTURY)


class Schedule(Running):
    job_type = OpenType(pattern=CLASS_PATTERN, longest=MOST_TYPE).required()
    cron_expression = Text().required()
    timezone = Text(longest=64, filled=True)


class Registration(Serving):
    job_types = Names().required()
    hostname = Text()
    sdk_version = Text()
    recurring_schedules = Array(
        of=Schedule, most=MOST_NAMES, sentence="At most {most} schedules in one request."
    )


class Poll(Serving):
    capacity = Integer(least=1, most=50).default(1)
    job_types = Names()


class OfJob(Worker):
    job_id = Text().required()


class ErrorMembers(Members):
    type = ErrorText("Cut after 255 characters.")
    message = ErrorText("Cut after 1,048,576 characters.")
    stack_trace = ErrorText("Cut after 50 lines or 10,000 characters.")


class Ack(OfJob):
    status = Choice(words("succeeded", "failed")).required()
    duration_ms = Integer()
    error = Object(of=ErrorMembers)


class Share(Member[float | None]):
    """A number; one outside [0, 1] counts as absent."""

    def check(self, value: Any, place: str) -> float | None:
        if type(value) not in (int, float):
            raise wrong_type(place, "number", value)
        return float(value) if 0 <= value <= 1 else None

    def rules(self) -> Schema:
        return {"type": "number"}


class Heartbeat(OfJob):
    progress = Share("0 to 1; anything else is ignored.")


class JobRequest(Running):
    job_type = OpenType(
        "Dotted words, `email.send`, or a class within a class: `Billing.Invoices+Send`.",
        pattern=CLASS_PATTERN,
    ).required()
    payload = Object()
    priority = Integer(least=PRIORITIES[0], most=PRIORITIES[1]).default(0)
    scheduled_at = Moment()
    parent_id = Text("The job waits until that job has succeeded.")
    tags = Tags()


def worker_id(body: Document, caller: Caller) -> str:
    """
    Raises:
        PermissionDenied: the key is bound to another worker.
    """
    given = Worker.worker_id.read(body)
    return admission.speak_for(caller, given) or given


def queues(body: Document) -> list[str]:
    """The queues a worker serves, at least one."""
    return Serving.queues.read(body)


def job_types(body: Document) -> list[str] | None:
    """The types that a worker asks for; None if it does not list any."""
    return Poll.job_types.read(body)


def registration(body: Document, caller: Caller) -> Description:
    return Description(
        hostname=Registration.hostname.read(body),
        queues=queues(body),
        job_types=Registration.job_types.read(body),
        version=Registration.sdk_version.read(body),
        protocol=PROTOCOL.name,
        project=caller.project or None,
    )


def schedules(body: Document, caller: Caller) -> list[NewCronJob]:
    """Read `recurring_schedules`: cron jobs named `rjob_{job_type}`, or `rjob_{job_type}@{project}`
    for a project, which has its own types.
    """
    items = Registration.recurring_schedules.read(body) or []
    found: list[NewCronJob] = []
    places: dict[str, str] = {}
    for index, item in enumerate(items):
        place = f"recurring_schedules[{index}]"
        if type(item) is not dict:
            raise wrong_type(place, "object", item)
        with fields.inside(place, aloud=True):
            schedule = _schedule(item, caller.project)
            # The name contains only the type, so the second would silently replace the first.
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
    kind = Schedule.job_type.read(item)
    attempts = Schedule.max_attempts.read(item)
    seconds = Schedule.timeout_seconds.read(item)
    options: dict[str, Any] = {"queue": Schedule.queue.read(item)}
    if attempts is not None:
        options["max_attempts"] = attempts
    if seconds is not None:
        options["visibility_timeout"] = seconds
    given = Schedule.cron_expression.read(item)
    zone = Schedule.timezone.read(item) or "UTC"
    field = "timezone"
    try:
        read_zone(zone)
        field = "cron_expression"
        expression = cronos.translated(given)
        new_schedule(expression, zone)
    except InvalidSchedule as problem:
        raise refuse(field, str(problem)) from None
    return NewCronJob(
        name=f"rjob_{kind}@{project}" if project else f"rjob_{kind}",
        expression=expression,
        timezone=zone,
        template={"type": kind, "args": [{}], "options": options},
        # Flare has no such member: one that an operator disabled stays disabled.
        enabled=None,
        project=project,
    )


def capacity(body: Document) -> int:
    return Poll.capacity.read(body)


def job_id(body: Document) -> UUID:
    return ids.read(OfJob.job_id.read(body))


def mend_error(body: Any) -> None:
    mend_members(body, Ack.error.name)


def outcome(body: Document, sender: str) -> Completion | Failure:
    status = Ack.status.read(body)
    duration = Ack.duration_ms.read(body)
    error = Ack.error.read(body)
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
        trace = ErrorMembers.stack_trace.read(error)
        return Failure(
            UUID(int=0),
            worker_id=sender,
            type=ErrorMembers.type.read(error) or "handler_error",
            message=ErrorMembers.message.read(error) or "",
            backtrace=trace.splitlines() if trace else None,
        )


def progress(body: Document) -> float | None:
    """The progress that a worker reports; None for one outside [0, 1], which is ignored."""
    return Heartbeat.progress.read(body)


def new_job(body: Document) -> tuple[NewJob, UUID | None]:
    """Read a job to enqueue, and the job it waits for."""
    attempts = JobRequest.max_attempts.read(body)
    seconds = JobRequest.timeout_seconds.read(body)
    parent = JobRequest.parent_id.read(body)
    if parent is not None and body.get("scheduled_at") is not None:
        raise refuse("scheduled_at", "A job waits for its parent or for its time, not for both.")
    job = NewJob(
        type=JobRequest.job_type.read(body),
        args=[JobRequest.payload.read(body) or {}],
        id=uuid7(),
        queue=JobRequest.queue.read(body),
        priority=JobRequest.priority.read(body),
        max_attempts=attempts or 3,
        retry=None if attempts is None else {"max_attempts": attempts},
        visibility_timeout=None if seconds is None else timedelta(seconds=seconds),
        scheduled_at=JobRequest.scheduled_at.read(body, clock.now()),
        tags=JobRequest.tags.read(body) or [],
    )
    return job, None if parent is None else ids.read(parent)
