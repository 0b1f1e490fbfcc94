"""Rota messages, incoming and outgoing. `docs/protocols/rota.md` has the schema."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from jobs.engine import Line, Outcome
from jobs.errors import InvalidPayload, OJSError
from jobs.http.body import parse_json
from jobs.http.renderers import dumps
from jobs.spec import fields
from jobs.spec.envelope import claimed_envelope
from jobs.spec.fields import Document
from jobs.spec.members import (
    Anything,
    Boolean,
    Choice,
    Integer,
    JobId,
    Members,
    Moment,
    Number,
    Object,
    Objects,
    Text,
    words,
)
from jobs.spec.reports import ErrorText, ErrorTexts, mend_members
from jobs.spec.timestamps import format_timestamp
from jobs.spec.validation import Labels, QueueNames
from jobs.spec.worker_ids import WorkerId
from jobs.store import clock
from workers.fleet.alerts import Alert
from workers.lifecycle import WorkerState
from workers.protocol import Completion, Description, Failure, Reply

from . import PROTOCOL

STATES = {state.value: state for state in WorkerState if state != WorkerState.TERMINATED}
MOST = 10_000
"""Maximum number of results, jobs, or lines in one message."""


class Several(Objects):
    def __init__(self, of: type[Members]) -> None:
        super().__init__(
            of=of,
            most=MOST,
            sentence="At most {most} of '{name}' in one message.",
            details={"limit": MOST},
        )


class Share(Number):
    def __init__(self) -> None:
        sentence = "The '{name}' must be a number from 0 to 1."
        super().__init__(least=0, most=1, sentence=sentence, typed=False)


class SpecMembers(Members):
    id = Text().required()
    checksum = Text().required()


class RegistrationMembers(Members):
    worker_id = WorkerId().required()
    hostname = Text().required()
    os = Text()
    pid = Integer(most=2**32)
    queues = QueueNames(
        least=1, sentence="The '{name}' field must name at least one queue."
    ).required()
    concurrency = Integer(least=1, most=1_000_000)
    labels = Labels()
    started_at = Moment()
    version = Text()
    specs = Several(SpecMembers)


class JobStatus(Members):
    job_id = JobId().required()
    progress = Share()
    message = Text(longest=1_000)


class AlertMembers(Members):
    message = Text(longest=2**16).required()
    level = Text(longest=16)
    time = Moment()


class LineMembers(AlertMembers):
    job_id = JobId().required()


class StatusMembers(Members):
    state = Choice(STATES, sentence="The '{name}' must be one of {choices}.")
    cpu = Share()
    ram = Share()
    jobs = Several(JobStatus)
    logs = Several(LineMembers)
    alerts = Several(AlertMembers)


class ErrorMembers(Members):
    type = ErrorText()
    code = ErrorText()
    message = ErrorText()
    backtrace = ErrorTexts()
    details = Object()
    retryable = Boolean()


class ResultMembers(Members):
    job_id = JobId().required()
    attempt = Integer(least=1, most=2**31 - 1)
    outcome = Choice(
        words("succeeded", "failed"), sentence="The '{name}' must be 'succeeded' or 'failed'."
    ).required()
    data = Anything()
    error = Object(of=ErrorMembers)


class HeartbeatMembers(Members):
    type = Choice(
        words("heartbeat"), sentence="Workers send messages of type 'heartbeat', not {value!r}."
    ).required()
    registration = Object(of=RegistrationMembers)
    status = Object(of=StatusMembers)
    results = Several(ResultMembers)
    wanted = Integer(most=1_000_000)
    received = Integer()
    sequence = Integer()


@dataclass(slots=True)
class Registration:
    """The worker's description in its first heartbeat."""

    worker_id: str
    queues: list[str]
    specs: dict[str, str]
    description: Description
    project: str = ""
    """Project of the key it connected with."""
    name: str = ""
    """The stored id of the worker."""
    registered_at: datetime | None = None
    """Identifies the registration once it is stored."""
    reports_state: bool | None = None
    """Whether it reports its state; None until its first message has been handled."""
    reported: dict[str, Progress] = field(default_factory=dict)
    """The stored progress of its jobs, so that repeating it costs nothing."""


class Progress(NamedTuple):
    """A job's progress, 0 to 1, and the worker's message about it."""

    value: float | None
    message: str


NO_PROGRESS = Progress(None, "")


@dataclass(slots=True)
class Message:
    """A heartbeat message: registration, status and results, each if present."""

    registration: Registration | None = None
    state: WorkerState | None = None
    job_ids: list[str] | None = None
    """Jobs that the worker reports; it may omit those that were assigned on this connection."""
    progress: dict[str, Progress] = field(default_factory=dict)
    stats: dict[str, Any] | None = None
    """The load of its machine."""
    lines: list[Line] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    """Lines about the worker itself."""
    results: list[Completion | Failure] = field(default_factory=list)
    wanted: int | None = None
    """How many jobs it wants now; None: unchanged."""
    received: int | None = None
    """How many assignments of this connection it has received."""
    sequence: int | None = None


def read(text: str | bytes, worker_id: str, timeout: timedelta) -> Message:
    """Read one message; nothing is carried out before all of it has been read.

    Args:
        worker_id: the worker of the connection; empty before the registration.
        timeout: the silence that a Rota worker is allowed.

    Raises:
        InvalidPayload: it is not a JSON object.
        InvalidRequest: a member is missing or invalid; `details["field"]` names it.
    """
    body = parse_json(text.encode() if isinstance(text, str) else text, _mend_errors)
    if type(body) is not dict:
        raise InvalidPayload("The message must be a JSON object.")
    HeartbeatMembers.type.read(body)
    message = Message(
        wanted=HeartbeatMembers.wanted.read(body),
        received=HeartbeatMembers.received.read(body),
        sequence=HeartbeatMembers.sequence.read(body),
    )
    document = HeartbeatMembers.registration.read(body)
    if document is not None:
        with fields.inside("registration", aloud=True):
            message.registration = _registration(document, timeout)
        worker_id = message.registration.worker_id
    status = HeartbeatMembers.status.read(body)
    if status is not None:
        with fields.inside("status", aloud=True):
            _status(status, message)
    for index, result in enumerate(HeartbeatMembers.results.read(body) or ()):
        with fields.inside(f"results[{index}]", aloud=True):
            _result(result, worker_id, message)
    return message


def _mend_errors(body: Any) -> None:
    results = body.get(HeartbeatMembers.results.name) if type(body) is dict else None
    for result in results if type(results) is list else ():
        mend_members(result, ResultMembers.error.name)


def _registration(document: Document, timeout: timedelta) -> Registration:
    worker_id = RegistrationMembers.worker_id.read(document)
    hostname = RegistrationMembers.hostname.read(document)
    queues = RegistrationMembers.queues.read(document)
    specs: dict[str, str] = {}
    for index, spec in enumerate(RegistrationMembers.specs.read(document) or ()):
        with fields.inside(f"specs[{index}]", aloud=True):
            name, checksum = _spec(spec)
        specs[name] = checksum
    system = RegistrationMembers.os.read(document)
    description = Description(
        hostname=hostname,
        pid=RegistrationMembers.pid.read(document),
        queues=list(dict.fromkeys(queues)),
        concurrency=RegistrationMembers.concurrency.read(document),
        labels=RegistrationMembers.labels.read(document),
        started_at=RegistrationMembers.started_at.read(document, clock.now()),
        version=RegistrationMembers.version.read(document),
        protocol=PROTOCOL.name,
        heartbeat_timeout=timeout,
        specs=specs,
        details={"os": system} if system else None,
    )
    return Registration(worker_id, list(dict.fromkeys(queues)), specs, description)


def _spec(spec: Document) -> tuple[str, str]:
    return SpecMembers.id.read(spec), SpecMembers.checksum.read(spec)


def _status(status: Document, message: Message) -> None:
    message.state = StatusMembers.state.read(status)
    measured = {"cpu": StatusMembers.cpu.read(status), "ram": StatusMembers.ram.read(status)}
    usage = {name: share for name, share in measured.items() if share is not None}
    message.stats = usage or None
    jobs = []
    for index, job in enumerate(StatusMembers.jobs.read(status) or ()):
        with fields.inside(f"jobs[{index}]", aloud=True):
            jobs.append(_job_status(job))
    if status.get("jobs") is not None:
        message.job_ids = [job_id for job_id, _ in jobs]
    message.progress = {job_id: document for job_id, document in jobs if document != NO_PROGRESS}
    for member, is_alert in ((StatusMembers.logs, False), (StatusMembers.alerts, True)):
        for index, line in enumerate(member.read(status) or ()):
            with fields.inside(f"{member.name}[{index}]", aloud=True):
                if is_alert and line.get("job_id") is None:
                    message.alerts.append(_alert(line))
                else:
                    message.lines.append(_line(line, is_alert))


def _job_status(job: Document) -> tuple[str, Progress]:
    note = JobStatus.message.read(job) or ""
    return str(JobStatus.job_id.read(job)), Progress(JobStatus.progress.read(job), note)


def _line(line: Document, is_alert: bool) -> Line:
    time = LineMembers.time.read(line, clock.now())
    return Line(
        LineMembers.job_id.read(line),
        LineMembers.message.read(line),
        level=LineMembers.level.read(line) or "",
        is_alert=is_alert,
        time=time,
    )


def _alert(line: Document) -> Alert:
    return Alert(
        AlertMembers.message.read(line),
        level=AlertMembers.level.read(line) or "",
        time=AlertMembers.time.read(line, clock.now()),
    )


def _result(result: Document, worker_id: str, message: Message) -> None:
    job_id = ResultMembers.job_id.read(result)
    attempt = ResultMembers.attempt.read(result)
    if ResultMembers.outcome.read(result) == "succeeded":
        data = ResultMembers.data.read(result)
        message.results.append(Completion(job_id, worker_id, attempt, data))
        return
    error = ResultMembers.error.read(result) or {}
    failure = Failure(job_id, worker_id, attempt)
    with fields.inside("error", aloud=True):
        _error(error, failure)
    message.results.append(failure)


def _error(error: Document, failure: Failure) -> None:
    failure.type = ErrorMembers.type.read(error) or failure.type
    failure.code = ErrorMembers.code.read(error) or ""
    failure.message = ErrorMembers.message.read(error) or ""
    failure.backtrace = ErrorMembers.backtrace.read(error)
    failure.details = ErrorMembers.details.read(error)
    failure.retryable = ErrorMembers.retryable.read(error)


# Outgoing


def assignment(job: Any, project: str) -> str:
    """A job for a worker. Asks for logs about it (Rota, Status), whatever happens to them.

    Args:
        project: the project of the worker's key.
    """
    about = claimed_envelope(job, project=project)
    return dumps({"type": "assignment", "job": about, "logs": True}).decode()


def answer(reply: Reply, outcomes: list[Outcome], **more: Any) -> str:
    document: dict[str, Any] = {
        "type": "heartbeat",
        "state": str(reply.state),
        "server_time": format_timestamp(clock.now()),
        "jobs_extended": reply.jobs_extended,
        "jobs_lost": reply.jobs_lost,
    }
    if outcomes:
        document["results"] = [_told(outcome) for outcome in outcomes]
    return dumps(document | more).decode()


def _told(outcome: Outcome) -> dict[str, Any]:
    if outcome.error is not None:
        return {"job_id": str(outcome.job_id), "ok": False, "error": problem(outcome.error)}
    return {"job_id": str(outcome.job_id), "ok": True, "state": str(outcome.state)}


def problem(error: OJSError) -> dict[str, Any]:
    found: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.details:
        found["details"] = error.details
    return found


def refusal(error: OJSError) -> str:
    return dumps({"type": "error", "error": problem(error)}).decode()
