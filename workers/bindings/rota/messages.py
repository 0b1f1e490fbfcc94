"""Rota messages: what may come in, and what goes out. `docs/protocols/rota.md` has the schema."""

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
from jobs.spec.fields import Document, missing, refuse, wrong_type
from jobs.spec.timestamps import format_timestamp
from jobs.spec.validation import queue_names
from jobs.store import clock
from workers.fleet.alerts import Alert
from workers.lifecycle import WorkerState
from workers.protocol import Completion, Description, Failure, Reply

from . import PROTOCOL

STATES = {state.value: state for state in WorkerState if state != WorkerState.TERMINATED}
MOST = 10_000
"""Results, jobs, or lines in one message."""


@dataclass(slots=True)
class Registration:
    """What the first heartbeat says of the worker."""

    worker_id: str
    queues: list[str]
    specs: dict[str, str]
    description: Description
    project: str = ""
    """That of the key it came with."""
    name: str = ""
    """What the worker is stored under."""
    reports_state: bool | None = None
    """Whether it has said which state it is in; None until its first message is dealt with."""
    told: dict[str, Progress] = field(default_factory=dict)
    """What is on record of the progress of its jobs, so that saying it again costs nothing."""


class Progress(NamedTuple):
    """How far a job is, 0 to 1, and what the worker says about it."""

    value: float | None
    message: str


NO_PROGRESS = Progress(None, "")


@dataclass(slots=True)
class Message:
    """A heartbeat message: registration, status and results, each if it is there."""

    registration: Registration | None = None
    state: WorkerState | None = None
    job_ids: list[str] | None = None
    """Jobs the worker says it runs; it may leave those out that it was assigned here."""
    progress: dict[str, Progress] = field(default_factory=dict)
    stats: dict[str, Any] | None = None
    """How busy its machine is."""
    lines: list[Line] = field(default_factory=list)
    alerts: list[Alert] = field(default_factory=list)
    """About the worker itself."""
    results: list[Completion | Failure] = field(default_factory=list)
    wanted: int | None = None
    """How many jobs it wants now; None leaves it as it was."""
    received: int | None = None
    """How many assignments of this connection it has received so far."""
    sequence: int | None = None


def read(text: str | bytes, worker_id: str, timeout: timedelta) -> Message:
    """Read one message; nothing of it may be done before all of it is read.

    Args:
        worker_id: whose connection it is; empty before the registration.
        timeout: the silence a Rota worker is allowed.

    Raises:
        InvalidPayload: it is not a JSON object.
        InvalidRequest: a member is missing or wrong; `details["field"]` says which.
    """
    body = parse_json(text.encode() if isinstance(text, str) else text)
    if type(body) is not dict:
        raise InvalidPayload("The message must be a JSON object.")
    kind = fields.required_text(body, "type")
    if kind != "heartbeat":
        raise refuse("type", f"Workers send messages of type 'heartbeat', not {kind!r}.")
    message = Message(
        wanted=fields.integer(body, "wanted", most=1_000_000),
        received=fields.integer(body, "received"),
        sequence=fields.integer(body, "sequence"),
    )
    said = fields.mapping(body, "registration")
    if said is not None:
        with fields.inside("registration", aloud=True):
            message.registration = _registration(said, timeout)
        worker_id = message.registration.worker_id
    status = fields.mapping(body, "status")
    if status is not None:
        with fields.inside("status", aloud=True):
            _status(status, message)
    for index, result in enumerate(_objects(body, "results")):
        with fields.inside(f"results[{index}]", aloud=True):
            _result(result, worker_id, message)
    return message


def _objects(document: Document, name: str) -> list[Document]:
    items = fields.array(document, name) or []
    if len(items) > MOST:
        raise refuse(name, f"At most {MOST} of '{name}' in one message.", limit=MOST)
    for index, item in enumerate(items):
        if type(item) is not dict:
            raise wrong_type(f"{name}[{index}]", "object", item)
    return items


def _registration(said: Document, timeout: timedelta) -> Registration:
    worker_id = fields.required_text(said, "worker_id")
    hostname = fields.required_text(said, "hostname")
    queues = queue_names(said)
    if queues is None:
        raise missing("queues")
    if not queues:
        raise refuse("queues", "The 'queues' field must name at least one queue.")
    specs: dict[str, str] = {}
    for index, spec in enumerate(_objects(said, "specs")):
        with fields.inside(f"specs[{index}]", aloud=True):
            name, checksum = _spec(spec)
        specs[name] = checksum
    system = fields.text(said, "os")
    description = Description(
        hostname=hostname,
        pid=fields.integer(said, "pid", most=2**32),
        queues=list(dict.fromkeys(queues)),
        concurrency=fields.integer(said, "concurrency", least=1, most=1_000_000),
        labels=fields.texts(said, "labels"),
        started_at=fields.when(said, "started_at", clock.now()),
        version=fields.text(said, "version"),
        protocol=PROTOCOL.name,
        heartbeat_timeout=timeout,
        specs=specs,
        details={"os": system} if system else None,
    )
    return Registration(worker_id, list(dict.fromkeys(queues)), specs, description)


def _spec(spec: Document) -> tuple[str, str]:
    return fields.required_text(spec, "id"), fields.required_text(spec, "checksum")


def _status(status: Document, message: Message) -> None:
    state = fields.text(status, "state")
    if state is not None:
        if state not in STATES:
            raise refuse("state", f"The 'state' must be one of {', '.join(STATES)}.")
        message.state = STATES[state]
    usage = {name: _share(status, name) for name in ("cpu", "ram")}
    usage = {name: share for name, share in usage.items() if share is not None}
    message.stats = usage or None
    jobs = []
    for index, job in enumerate(_objects(status, "jobs")):
        with fields.inside(f"jobs[{index}]", aloud=True):
            jobs.append(_job_status(job))
    if status.get("jobs") is not None:
        message.job_ids = [job_id for job_id, _ in jobs]
    message.progress = {job_id: said for job_id, said in jobs if said != NO_PROGRESS}
    for name, is_alert in (("logs", False), ("alerts", True)):
        for index, line in enumerate(_objects(status, name)):
            with fields.inside(f"{name}[{index}]", aloud=True):
                if is_alert and line.get("job_id") is None:
                    message.alerts.append(_alert(line))
                else:
                    message.lines.append(_line(line, is_alert))


def _share(document: Document, name: str) -> float | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise refuse(name, f"The '{name}' must be a number from 0 to 1.")
    return float(value)


def _job_status(job: Document) -> tuple[str, Progress]:
    note = fields.text(job, "message", longest=1_000) or ""
    return str(fields.job_id(job)), Progress(_share(job, "progress"), note)


def _line(line: Document, is_alert: bool) -> Line:
    time: datetime | None = fields.when(line, "time", clock.now())
    return Line(
        fields.job_id(line),
        fields.required_text(line, "message", longest=2**16),
        level=fields.text(line, "level", longest=16) or "",
        is_alert=is_alert,
        time=time,
    )


def _alert(line: Document) -> Alert:
    return Alert(
        fields.required_text(line, "message", longest=2**16),
        level=fields.text(line, "level", longest=16) or "",
        time=fields.when(line, "time", clock.now()),
    )


def _result(result: Document, worker_id: str, message: Message) -> None:
    job_id = fields.job_id(result)
    attempt = fields.integer(result, "attempt", least=1, most=2**31 - 1)
    outcome = fields.required_text(result, "outcome")
    if outcome == "succeeded":
        message.results.append(Completion(job_id, worker_id, attempt, result.get("data")))
    elif outcome == "failed":
        error = fields.mapping(result, "error") or {}
        failure = Failure(job_id, worker_id, attempt)
        with fields.inside("error", aloud=True):
            _error(error, failure)
        message.results.append(failure)
    else:
        raise refuse("outcome", "The 'outcome' must be 'succeeded' or 'failed'.")


def _error(error: Document, failure: Failure) -> None:
    failure.type = fields.text(error, "type") or failure.type
    failure.code = fields.text(error, "code") or ""
    failure.message = fields.text(error, "message", longest=2**20) or ""
    failure.backtrace = fields.texts(error, "backtrace", longest=2**20)
    failure.details = fields.mapping(error, "details")
    failure.retryable = fields.boolean_or_none(error, "retryable")


# What goes out


def assignment(job: Any, project: str) -> str:
    """A job for a worker; logs about it are wanted (Rota, Status), whatever is done with them.

    Args:
        project: that of the worker's key.
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
