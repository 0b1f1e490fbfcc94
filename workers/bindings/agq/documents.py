"""Parses AGQ's JSON: registrations, statistics, updates, and jobs to push."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import orjson

from jobs.engine import ClaimedJob
from jobs.errors import InvalidPayload, InvalidRequest
from jobs.http.body import Mend, parse_json
from jobs.http.renderers import dumps
from jobs.spec import fields
from jobs.spec.envelope import claimed_envelope
from jobs.spec.identifiers import parse_uuid
from jobs.spec.members import (
    Anything,
    Boolean,
    Integer,
    Members,
    Number,
    Object,
    Text,
    Texts,
)
from jobs.spec.reports import ErrorText, measure_progress, mend_members
from jobs.spec.validation import MOST_LABELS
from workers.protocol import Completion, Description, Failure

from . import PROTOCOL, options
from .resp import Failed
from .session import valid_worker_id

PLAN = "agq.plan"
"""Type of a pushed job whose plan does not name one; else the member of `meta` that marks it."""
Document = dict[str, Any]


class Capabilities(Members):
    tools = Texts()
    agentic_units = Texts()


class Registration(Members):
    worker_id = Text(longest=1000).required()
    hostname = Text().required()
    agw_version = Text().required()
    platform = Text()
    max_concurrent_jobs = Integer(least=1, most=1_000_000).default(1)
    tags = Object()
    capabilities = Object(of=Capabilities)


class ErrorMembers(Members):
    type = ErrorText()
    code = ErrorText()
    message = ErrorText()
    retryable = Boolean()


class Update(Members):
    worker_id = Text()
    # Text, or an object of `ErrorMembers`.
    error = ErrorText()
    progress_percent = Number(
        least=0, most=100, sentence="The '{name}' field must be 0 to 100.", typed=False
    )


class Push(Members):
    plan = Anything().required()
    meta = Object()
    capabilities = Texts()


def read(text: bytes, what: str, mend: Mend | None = None) -> Document:
    """
    Args:
        mend: as of `parse_json`.

    Raises:
        Failed: it is not a JSON object.
    """
    try:
        document = parse_json(text, mend)
    except InvalidPayload as problem:
        raise Failed(f"ERR Invalid {what} JSON: {problem.message}") from None
    if type(document) is not dict:
        raise Failed(f"ERR Invalid {what} JSON: an object is needed")
    return document


def read_update(text: bytes) -> Document:
    """
    Raises:
        Failed: it is not a JSON object.
    """
    return read(text, "update", _mend_failure)


def _mend_failure(document: Any) -> None:
    if type(document) is dict and document.get("status") == "failed":
        mend_members(document, "error", "task_results")


def registration(document: Document) -> tuple[str, Description]:
    """Read a registration (AGQ §2.2).

    Raises:
        Failed, InvalidRequest: a field is invalid.
    """
    worker_id = valid_worker_id(Registration.worker_id.read(document))
    description = Description(
        hostname=Registration.hostname.read(document),
        version=Registration.agw_version.read(document),
        concurrency=Registration.max_concurrent_jobs.read(document),
        labels=_tags(document),
        capabilities=_capabilities(document),
        protocol=PROTOCOL.name,
        heartbeat_timeout=options().HEARTBEAT_TIMEOUT,
        details=document,
    )
    Registration.platform.read(document)
    return worker_id, description


def _capabilities(document: Document) -> list[str]:
    given = document.get("capabilities")
    try:
        if type(given) is not dict or given.get("tools") is None:
            raise ValueError
        words = Capabilities.tools.read(given) or []
        words = words + (Capabilities.agentic_units.read(given) or [])
        if len(words) > MOST_LABELS or not all(words):
            raise ValueError
    except (ValueError, InvalidRequest):
        raise Failed("ERR Invalid capabilities format") from None
    return sorted(set(words))


def _tags(document: Document) -> list[str]:
    """Tags as labels: `{"gpu": true}` is `gpu:true`, which makes a pool (AGQ §10)."""
    tags = Registration.tags.read(document) or {}
    labels = [
        f"{name}:{value if type(value) is str else dumps(value).decode()}"
        for name, value in tags.items()
    ]
    if len(labels) > MOST_LABELS or any(len(label) > 255 for label in labels):
        raise fields.refuse("tags", "The 'tags' field has too many or too long entries.")
    return sorted(labels)


def pulled(job: ClaimedJob, project: str) -> bytes:
    """A job as BRPOP delivers it: `job_id`, `plan`, `inputs`, and its OJS envelope (AGQ §4.1).

    Args:
        project: the project of the worker's key.
    """
    document: Document = {"job_id": str(job.id), "plan": job.type, "inputs": job.args}
    if job.type == PLAN or orjson.loads(dumps(job.meta)).get(PLAN) is True:
        args = orjson.loads(dumps(job.args))
        if len(args) == 2:
            document["plan"], document["inputs"] = args
    # The envelope has the client's own members, too, whatever they are called.
    return dumps(claimed_envelope(job, project=project) | document)


def pushed(queue: str, document: Document) -> Document:
    """The OJS enqueue request for a pushed plan."""
    plan = Push.plan.read(document)
    taken = ("plan", "inputs", "job_id", "capabilities", "type", "meta")
    request: Document = {name: value for name, value in document.items() if name not in taken}
    request |= {
        "type": document.get("type", PLAN),
        "args": [plan, document.get("inputs", {})],
        "meta": Push.meta.read(document) or {},
        "queue": queue,
    }
    request.pop("options", None)
    if document.get("job_id") is not None:
        request["id"] = document["job_id"]
    if request["type"] != PLAN:
        request["meta"] = request["meta"] | {PLAN: True}
    if (needs := Push.capabilities.read(document)) is not None:
        request["meta"] = request["meta"] | {"capabilities": needs}
    return request


def job_id(text: bytes) -> UUID:
    found = parse_uuid(text.decode(errors="replace"))
    if found is None:
        raise Failed("ERR Job not found: " + text[:64].decode(errors="replace"))
    return found


def completion(job: UUID, worker_id: str, document: Document) -> Completion:
    """The result is `result` if present, else what the tasks returned."""
    result = document.get("result")
    if result is None and document.get("task_results") is not None:
        result = {"task_results": document["task_results"]}
    return Completion(job, worker_id=worker_id, result=result)


def failure(job: UUID, worker_id: str, document: Document) -> Failure:
    """`error` is text, or an object with `type`, `message`, `code` and `retryable`."""
    found = Failure(job, worker_id=worker_id)
    error = document.get("error")
    if type(error) is dict:
        found.type = ErrorMembers.type.read(error) or found.type
        found.code = ErrorMembers.code.read(error) or ""
        found.message = ErrorMembers.message.read(error) or ""
        found.retryable = ErrorMembers.retryable.read(error)
    else:
        found.message = Update.error.read(document) or ""
    if document.get("task_results") is not None:
        found.details = {"task_results": document["task_results"]}
    return found


def progress(document: Document) -> tuple[float | None, dict[str, Any] | None]:
    """The job's progress, 0 to 1, and its current task as progress data; None if not contained."""
    percent = Update.progress_percent.read(document)
    task = document.get("current_task")
    data = None if task is None else {"current_task": task}
    measure_progress(data, "current_task")
    return None if percent is None else percent / 100, data
