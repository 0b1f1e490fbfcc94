"""Validates what workers send over OJS HTTP, in every dialect (OJS HTTP §10)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from jobs import engine
from jobs.conf import ojs_settings
from jobs.errors import InvalidRequest
from jobs.http.authentication import Caller
from jobs.http.parameters import OneOf, Word
from jobs.http.request import Meta
from jobs.record import tracing
from jobs.spec import fields, pools, traces, versions
from jobs.spec.fields import Document, empty, missing, refuse, wrong_type
from jobs.spec.identifiers import parse_uuid
from jobs.spec.members import (
    MILLISECOND,
    Anything,
    Array,
    Boolean,
    Choice,
    Integer,
    JobId,
    Member,
    Members,
    Moment,
    Object,
    Objects,
    Period,
    Schema,
    Text,
    Texts,
    optional,
    words,
)
from jobs.spec.reports import ErrorText, ErrorTexts, mend_members
from jobs.spec.validation import QUEUE_LENGTH, QUEUE_PATTERN, Labels, QueueNames
from jobs.spec.worker_ids import WorkerId
from jobs.store import clock
from workers.access import admission
from workers.lifecycle import WorkerState
from workers.protocol import Completion, Description, Failure

REPORTED = {
    "running": WorkerState.RUNNING,
    "quiet": WorkerState.QUIET,
    "terminate": WorkerState.TERMINATE,
    # The name in the graceful shutdown extension.
    "drain": WorkerState.QUIET,
}
LARGEST_PID = 2**32
MOST_HANDLERS = 10_000
"""Maximum number of job types that a worker names."""
MOST_QUEUES = 100
"""Maximum number of queues in one request of an autoscaler."""
MOST_ATTEMPTS = 2**31 - 1
A_QUEUE: dict[str, Any] = {
    "least": 1,
    "sentence": "The '{name}' field must name at least one queue.",
    "details": {"validation": "min_items"},
}


class Handler(Members):
    type = Text().required()
    versions = Text(
        "`*` (any), `2.0`, or bounds: `>=1.0 <3.0`.",
        longest=versions.LONGEST,
        schema={"pattern": versions.RANGE_PATTERN},
    ).default("*")


class About(Members):
    """A worker's description of itself."""

    hostname = Text()
    pid = Integer(most=LARGEST_PID)
    queues = QueueNames()
    concurrency = Integer("Jobs it runs at once.", least=1, most=1_000_000)
    labels = Labels()
    pool = Text("Its worker pool: the same as the label `pool:NAME`.")
    started_at = Moment()
    handlers = Array(
        "The versions of job types that it accepts (OJS job versioning §8.1); any version of types "
        "that are not listed.",
        of=Handler,
        most=MOST_HANDLERS,
        sentence="At most {most} handlers may be named.",
    )


class Named(Members, needs=("worker_id",)):
    worker_id = WorkerId("Chosen by the worker.", schema={"minLength": 1})


class Registration(Named, About, needs=("hostname", "pid", "queues", "concurrency")):
    """All members of §3.1 are required except labels and start time."""

    queues = QueueNames(**A_QUEUE)


class ActiveJobs(Member[list[str] | None]):
    """A number in one document, the list itself in the other."""

    number = Integer()
    ids = Texts()

    def check(self, value: Any, place: str) -> list[str] | None:
        if type(value) is list:
            return self.ids.check(value, place)
        self.number.check(value, place)
        return None

    def rules(self) -> Schema:
        return {"oneOf": [self.number.rules(), self.ids.rules()]}


class Heartbeat(Named, About, needs=("worker_id",)):
    state = Choice(REPORTED, details={"validation": "enum"})
    active_job_ids = Texts()
    active_jobs = ActiveJobs("Their number, or the list itself.")
    job_id = Text()
    visibility_timeout = Period(least=MILLISECOND)
    sequence = Integer()


class Settling(Members):
    """Members of an outcome whose job is known."""

    worker_id = WorkerId("The sender.")
    attempt = Integer(
        "Fences against an older attempt of the same worker.", least=1, most=MOST_ATTEMPTS
    )


# Anything, because one that is not valid is ignored (W3C Trace Context §3.2).
TRACEPARENT = Anything(
    "W3C trace context of the worker's span. Without it, a report that comes alone takes the "
    "header of that name. One that is not valid is ignored.",
    schema={"type": "string"},
)


class JobAck(Settling):
    result = Anything()
    traceparent = optional(TRACEPARENT)


class Trace(Member[list[str] | None]):
    """A backtrace, as a list of lines or one text."""

    lines = ErrorTexts()

    def check(self, value: Any, place: str) -> list[str]:
        return self.lines.check(value.splitlines() if type(value) is str else value, place)

    def rules(self) -> Schema:
        return {"oneOf": [self.lines.rules(), {"type": "string"}]}


class ErrorMembers(Members, component="JobFailure", needs=("message",), either=("type", "code")):
    # HTTP §10.3 requires `code`, core §8.1 `type`; both require `message`.
    type = ErrorText("Cut after 255 characters.")
    code = ErrorText("Cut after 255 characters.")
    message = ErrorText("Cut after 1,048,576 characters.")
    retryable = Boolean("`false` makes the failure final, whatever the job's policy is.")
    details = Object("Of more than 1 MB of JSON, each text is cut.")
    backtrace = Trace()
    stack_trace = Trace(hidden=True)
    rate_limit_until = Moment()


class JobNack(Settling):
    error = Anything(
        "What went wrong: an object, or a text.",
        schema={"oneOf": [ErrorMembers.reference(), ErrorMembers.message.rules()]},
    )
    traceparent = optional(TRACEPARENT)
    requeue = Boolean("Return the job unfinished; `error` is then optional.").default(False)
    retry_in = Period()


class Ack(JobAck, component="Ack"):
    job_id = JobId("A job's id.").required()


class Nack(JobNack, component="Nack"):
    job_id = JobId("A job's id.").required()


class Outcomes(Objects):
    def __init__(self, of: type[Members]) -> None:
        super().__init__(
            of=of,
            most=lambda: ojs_settings.MAX_BATCH,
            sentence="At most {most} outcomes in one request.",
        )


class Acks(JobAck, either=("job_id", "acks")):
    """One outcome, or a list of them."""

    job_id = optional(Ack.job_id)
    acks = Outcomes(of=Ack)


class Nacks(JobNack, either=("job_id", "nacks")):
    job_id = optional(Nack.job_id)
    nacks = Outcomes(of=Nack)


class Weighted(Members):
    name = Text(pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH).required()
    weight = Integer(least=1, most=1_000_000).default(1)


class WeightedQueues(Member[dict[str, int] | None]):
    """Queues with their weights, given as names or as objects (OJS priority §7.3)."""

    plain = QueueNames(**A_QUEUE)

    def check(self, value: Any, place: str) -> dict[str, int]:
        if type(value) is not list or not any(type(item) is dict for item in value):
            return dict.fromkeys(self.plain.check(value, place), 1)
        self.plain.measure(value, place)
        weights = {}
        for index, item in enumerate(value):
            named = item if type(item) is dict else {"name": item}
            with fields.inside(f"{place}[{index}]", aloud=True):
                name = Weighted.name.read(named)
                weights[name] = Weighted.weight.read(named)
        return weights

    def rules(self) -> Schema:
        schema = self.plain.rules()
        return schema | {"items": {"oneOf": [schema["items"], Weighted.json_schema()]}}


class Weights(Member[dict[str, int] | None]):
    """Weights by the names of queues (OJS fair scheduling §5.2)."""

    def check(self, value: Any, place: str) -> dict[str, int]:
        if type(value) is not dict:
            raise wrong_type(place, "object", value)
        return {
            name: Weighted.weight.check(weight, f"{place}.{name[:80]}")
            for name, weight in value.items()
        }

    def rules(self) -> Schema:
        return {"type": "object", "additionalProperties": Weighted.weight.rules()}


class Fetch(Members, either=("queues", "pool")):
    queues = WeightedQueues()
    weights = Weights("Weights of the queues, by name, for the strategy `weighted`.")
    pool = Text(
        "A worker pool: its queues and its strategy, instead of those in the request (OJS fair "
        "scheduling §5.2)."
    )
    strategy = Choice(
        words("strict", "weighted", "round-robin", "least-loaded"),
        "The order in which its queues are searched (OJS priority §7).",
        sentence="'{name}' must be one of {choices}.",
    ).default("strict")
    worker_id = Settling.worker_id
    count = Integer("`1` where it is absent.", least=1, most=2**31)
    # What other clients call it.
    batch_size = Integer(least=1, most=2**31, hidden=True)
    max_jobs = Integer(least=1, most=2**31, hidden=True)
    types = Texts(
        "Only jobs of these types.",
        most=MOST_HANDLERS,
        sentence="The '{name}' field may name at most {most} types, not {size}.",
        details={"validation": "max_items", "limit": MOST_HANDLERS},
    )
    wait_ms = Integer("How long to wait for a job.").default(0)
    visibility_timeout = Heartbeat.visibility_timeout
    acks = Acks.acks
    nacks = Nacks.nacks


class Checkpoint(Settling):
    state = Anything("At most 1 MB.").required()


class DurableCheckpoint(Checkpoint):
    """What the handlers of public SDKs save that replay their steps."""

    step_index = Integer("The step that is done.")
    metadata = Object("The client's own, such as the results of its steps.")


class Measure(Member[float | None]):
    """The progress of a job.

    Args:
        whole: the value at completion.
    """

    def __init__(self, about: str, *, whole: float) -> None:
        super().__init__(about)
        self.whole = whole

    def check(self, value: Any, place: str) -> float:
        if type(value) not in (int, float):
            raise wrong_type(place, "number", value)
        if not math.isfinite(value):
            raise InvalidRequest(f"The '{place}' field must be a finite number.", field=place)
        return float(value) / self.whole

    def rules(self) -> Schema:
        return {"type": "number"}


class ReportProgress(Settling):
    progress = Measure("0 to 1.", whole=1)
    percentage = Measure("0 to 100, for older clients.", whole=100)
    checkpoint = Object("What the next attempt needs to continue from here.")
    message = Text(longest=10_000)
    data = Object("At most 64 KB of JSON.")


class MetricsQuery(Members):
    # The public command line and many configurations of scrapers send it.
    format = OneOf(("prometheus",), "The text format, whatever the request accepts.")


class AutoscalingQuery(Members):
    queues = Word(f"At most {MOST_QUEUES} names, separated by commas.").required()


class ReportOfJob(ReportProgress):
    job_id = JobId("A job's id.").required()


def worker_id(body: Document, caller: Caller) -> str | None:
    """The sender: the body's `worker_id`, else the one the key is bound to; None if neither.

    Raises:
        PermissionDenied: the key is bound to another worker.
    """
    return admission.speak_for(caller, Settling.worker_id.read(body))


def required_worker_id(body: Document, caller: Caller) -> str:
    found = worker_id(body, caller)
    if found is None:
        raise missing("worker_id")
    return found


def settling_worker_id(body: Document, caller: Caller) -> str | None:
    """The sender of an outcome; required only with `REQUIRE_WORKER_ID` (§5.6)."""
    found = worker_id(body, caller)
    if found is None and ojs_settings.REQUIRE_WORKER_ID:
        raise missing("worker_id")
    return found


def agent(meta: Meta) -> str:
    """The name of the worker's program, recorded as the version of the worker."""
    found: str = meta.get("HTTP_USER_AGENT", "")
    return found


def description(body: Document, caller: Caller, version: str) -> Description:
    found = Description(
        hostname=About.hostname.read(body),
        pid=About.pid.read(body),
        queues=About.queues.read(body),
        concurrency=About.concurrency.read(body),
        labels=_labels(body),
        started_at=About.started_at.read(body, clock.now()),
        version=version[:255] or None,
        job_versions=job_versions(body),
        project=caller.project or None,
    )
    return found


def _labels(body: Document) -> list[str] | None:
    """Labels, and the worker's pool as one of them; None if there are neither."""
    labels, pool = About.labels.read(body), About.pool.read(body)
    if not pool:
        return labels
    return [*(labels or ()), pools.LABEL + pool]


def job_versions(body: Document) -> dict[str, list[int | None]] | None:
    """Versions in `handlers`: those that a worker accepts, by job type (OJS versioning §8.1)."""
    given = About.handlers.read(body)
    if given is None:
        return None
    found: dict[str, list[int | None]] = {}
    seen = set()
    for index, handler in enumerate(given):
        place = f"handlers[{index}]"
        if type(handler) is not dict:
            raise wrong_type(place, "object", handler)
        with fields.inside(place, aloud=True):
            kind = Handler.type.read(handler)
            text = Handler.versions.read(handler) or "*"
            if kind in seen:
                raise refuse("type", f"The type {kind!r} is named twice.", validation="unique")
            try:
                read = versions.read_versions(text)
            except ValueError as problem:
                raise refuse("versions", str(problem), validation="format") from None
        seen.add(kind)
        if read != versions.ALL:
            found[kind] = list(read)
    return found


def registration(body: Document, caller: Caller, version: str) -> Description:
    Registration.demand(body)
    found = description(body, caller, version)
    Registration.queues.measure(found.queues or (), "queues")
    return found


def reported_state(body: Document) -> WorkerState | None:
    return Heartbeat.state.read(body)


def active_job_ids(body: Document) -> list[str] | None:
    """The jobs that a worker reports: ids, in either form of the list (§4.2, HTTP §10.4)."""
    ids = Heartbeat.active_job_ids.read(body)
    listed = Heartbeat.active_jobs.read(body)
    if ids is not None:
        return ids
    if listed is not None:
        return listed
    one = Heartbeat.job_id.read(body)
    return [one] if one else None


def requested_extension(body: Document) -> timedelta | None:
    return Heartbeat.visibility_timeout.read(body)


def queues(body: Document) -> list[str]:
    """The queues to fetch from, in the order in which they are searched (§6.3).

    Raises:
        NotFound: there is no such pool.
    """
    strategy = Fetch.strategy.read(body)
    weights = Fetch.queues.read(body)
    by_name = Fetch.weights.read(body)
    pool = Fetch.pool.read(body)
    if pool:
        return engine.pools.order_of(pool)
    if weights is None:
        raise missing("queues")
    for name, weight in (by_name or {}).items():
        if name not in weights:
            raise refuse(f"weights.{name[:80]}", f"'queues' has no queue '{name[:80]}'.")
        weights[name] = weight
    return list(weights) if strategy == "strict" else engine.pools.search_order(weights, strategy)


def count(body: Document) -> int:
    """How many jobs to fetch: `count`, or its name in other clients."""
    for member in (Fetch.count, Fetch.batch_size, Fetch.max_jobs):
        found = member.read(body)
        if found is not None:
            return min(found, ojs_settings.MAX_FETCH)
    return 1


def wait(body: Document) -> float:
    """Seconds that a fetch may wait for work (`wait_ms`), at most `MAX_WAIT`."""
    asked = Fetch.wait_ms.read(body) / 1000
    return min(asked, ojs_settings.MAX_WAIT.total_seconds())


def several(body: Document, name: str) -> list[Document] | None:
    """The outcomes in a list, or None if there is no such list."""
    items: list[Document] | None = LISTS[name].read(body)
    return items


LISTS = {"acks": Acks.acks, "nacks": Nacks.nacks}


def completions(
    items: list[Document], name: str, caller: Caller, sender: str | None
) -> list[Completion]:
    is_named = sender is not None or not ojs_settings.REQUIRE_WORKER_ID
    found = []
    for index, item in enumerate(items):
        plain = _plain_completion(item, sender) if is_named else None
        if plain is None:
            with fields.inside(f"{name}[{index}]", aloud=True):
                plain = completion(_signed(item, sender), caller)
        found.append(plain)
    return found


def _plain_completion(item: Document, sender: str | None) -> Completion | None:
    """The result of `completion` for a plain item of a long list; None if it needs validation."""
    job_id, attempt = parse_uuid(item.get("job_id")), item.get("attempt")
    if job_id is None or "worker_id" in item:
        return None
    if attempt is not None and (type(attempt) is not int or not 1 <= attempt <= MOST_ATTEMPTS):
        return None
    return Completion(job_id, sender, attempt, item.get("result"))


def mend_errors(body: Any) -> None:
    """Make the errors in a request legible, one or a list of them."""
    mend_members(body, Nack.error.name)
    listed = body.get(Nacks.nacks.name) if type(body) is dict else None
    for item in listed if type(listed) is list else ():
        mend_members(item, Nack.error.name)


def failures(items: list[Document], name: str, caller: Caller, sender: str | None) -> list[Failure]:
    found = []
    for index, item in enumerate(items):
        with fields.inside(f"{name}[{index}]", aloud=True):
            found.append(failure(_signed(item, sender), caller))
    return found


def _signed(item: Document, sender: str | None) -> Document:
    """One outcome of a list with its sender: an empty `worker_id` counts as absent."""
    return item if item.get("worker_id") not in (None, "") else {**item, "worker_id": sender}


def about(job: UUID, body: dict[str, Any]) -> dict[str, Any]:
    """Add the job that the URL names to the body.

    Raises:
        InvalidRequest: the body names another job, or several.
    """
    if body.get("job_id") is not None and Ack.job_id.read(body) != job:
        raise refuse("job_id", f"The address of the request names the job '{job}'.")
    for name in ("acks", "nacks"):
        if body.get(name) is not None:
            raise refuse(name, "The address of the request names a job; send a list without one.")
    return body | {"job_id": str(job)}


def trace(reports: Sequence[Completion | Failure], items: Sequence[Document], meta: Meta) -> None:
    """Read the trace contexts in which a worker sent its reports, if this process needs them.

    Args:
        meta: the headers, which hold for a report that comes alone.
    """
    if tracing.recorder is None:
        return
    for report, item in zip(reports, items, strict=True):
        context = traces.context_of(item.get) or (
            traces.of_headers(meta) if len(reports) == 1 else {}
        )
        report.traceparent = context.get(traces.TRACEPARENT, "")


def durable_state(body: Document) -> Document:
    """The state of a checkpoint, with what an SDK saves beside it."""
    return {
        name: getattr(DurableCheckpoint, name).read(body)
        for name in ("state", "step_index", "metadata")
    }


def durable_attempt(body: Document) -> int | None:
    """The attempt that saves a checkpoint; the SDKs name it in `metadata`."""
    given = (DurableCheckpoint.metadata.read(body) or {}).get("attempt")
    if type(given) is str and re.fullmatch(r"[1-9][0-9]{0,8}", given):
        return int(given)
    return DurableCheckpoint.attempt.read(body)


def completion(body: Document, caller: Caller) -> Completion:
    return Completion(
        Ack.job_id.read(body),
        worker_id=settling_worker_id(body, caller),
        attempt=Ack.attempt.read(body),
        result=Ack.result.read(body),
    )


def failure(body: Document, caller: Caller) -> Failure:
    """Read a FAIL: HTTP's `error.code`, core's `error.type`, or plain text."""
    found = Failure(
        Nack.job_id.read(body),
        worker_id=settling_worker_id(body, caller),
        attempt=Nack.attempt.read(body),
        release=Nack.requeue.read(body),
        retry_in=Nack.retry_in.read(body),
    )
    error = Nack.error.read(body)
    if error is None:
        if not found.release:
            raise missing("error")
        return found
    if type(error) is str:
        found.message = ErrorMembers.message.check(error, "error")
        return found
    if type(error) is not dict:
        raise wrong_type("error", "object or a string", error)
    with fields.inside("error", aloud=True):
        _read_error(found, error)
    return found


def _read_error(found: Failure, error: Document) -> None:
    found.code = ErrorMembers.code.read(error) or ""
    found.message = ErrorMembers.message.read(error) or ""
    found.retryable = ErrorMembers.retryable.read(error)
    found.details = ErrorMembers.details.read(error)
    found.rate_limit_until = ErrorMembers.rate_limit_until.read(error, clock.now())
    named = ErrorMembers.type.read(error)
    if not (named or found.code):
        given = [name for name in ("type", "code") if error.get(name) is not None]
        raise empty(given[0]) if given else missing("code")
    ErrorMembers.demand(error)
    inner = (found.details or {}).get("error_class")
    found.type = named or (inner if type(inner) is str else "") or found.code or found.type
    for member in (ErrorMembers.backtrace, ErrorMembers.stack_trace):
        trace = member.read(error)
        if trace is not None:
            found.backtrace = trace
        if found.backtrace:
            break
