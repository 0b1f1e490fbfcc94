"""What a producer may ask for: from a JSON document to a `NewJob`, or a refusal that says where.

Both doors use it, `POST /ojs/v1/jobs` and the Python API. Enqueue options may stand in `options`
or at the top level; `options` wins (OJS HTTP §9.1; the flat form is what the Ruby SDK sends).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

import orjson

from ..errors import InvalidRequest, InvalidRetryPolicyRequest, MetadataTooLarge, Unsupported
from . import fields, rate_policy
from .fields import Document, refuse, wrong_type
from .identifiers import UUID7_PATTERN, uuid7
from .lifecycle import State
from .retry import InvalidRetryPolicy, RetryPolicy
from .time_limits import TIME_LIMITS, take_time_limits
from .unique_policy import UniquePolicy, read_policy
from .versions import split_type, take_version

# Core §5.1 has lower case only; the conformance document and the JSON schema take both, and the
# public cases use hyphens.
TYPE_PATTERN = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*(\.[a-zA-Z][a-zA-Z0-9_-]*)*")
CLASS_PATTERN = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*([.+][a-zA-Z][a-zA-Z0-9_-]*)*")
"""Types as .NET names them, where a protocol has them: `Billing.Invoices+Send` is a class within
a class. OJS has no `+` in a type, so a client of OJS cannot enqueue one."""
QUEUE_PATTERN = re.compile(r"[a-z0-9][a-z0-9\-.]*")
QUEUE_LENGTH = 128
TYPE_LENGTH = 255
META_SIZE = 65_536
"""Bytes of JSON (OJS payload limits §4.3)."""
LARGEST_INTEGER = 2**53 - 1
PRIORITIES = (-100, 100)
SPEC_VERSION = re.compile(r"1(\.0(\.\d+)?(-rc\.\d+)?)?")
NEVER = datetime.min

SYSTEM_MANAGED = frozenset(
    {
        "state",
        "attempt",
        "created_at",
        "enqueued_at",
        "started_at",
        "completed_at",
        "cancelled_at",
        "discarded_at",
        "error",
        "errors",
        "result",
        "result_stored_at",
        "result_expires_at",
        "result_size_bytes",
        "workflow_id",
        "parent_results",
        "progress",
        "retry_delay_ms",
        "next_attempt_at",
        "next_retry_at",
    }
)
"""Ours to say; a client's value is ignored (OJS core §5.3)."""

OPTION_NAMES = frozenset(
    {
        "queue",
        "priority",
        "timeout_ms",
        "timeout",
        "delay_until",
        "scheduled_at",
        "expires_at",
        "retry",
        "max_attempts",
        "unique",
        "tags",
        "visibility_timeout_ms",
        "visibility_timeout",
        *TIME_LIMITS,
        "pending",
        "result_ttl",
        "rate_limit",
        "version",
    }
)
ENVELOPE_NAMES = frozenset({"specversion", "id", "type", "args", "meta", "options"})
META_NAMES = ("metadata", "meta")
KEPT_AS_SENT = ("schema", "unique", "timeout", "visibility_timeout", "rate_limit", *TIME_LIMITS)
"""Echoed exactly as the client wrote them."""


def queue_names(document: Document, field: str = "queues") -> list[str] | None:
    """Read an array of queue names (OJS core §5.1)."""
    return fields.texts(document, field, pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH)


@dataclass
class NewJob:
    """A valid job that does not exist yet."""

    # Without slots: a batch copies it a thousand times, and a dictionary is copied at once.

    type: str
    args: list[Any]
    id: UUID
    queue: str = "default"
    meta: dict[str, Any] = field(default_factory=dict)
    priority: int = 0
    pending: bool = False
    max_attempts: int = 3
    retry: dict[str, Any] | None = None
    timeout: timedelta | None = None
    total_timeout: timedelta | None = None
    """For all attempts together, from its creation on."""
    grace_period: timedelta | None = None
    visibility_timeout: timedelta | None = None
    scheduled_at: datetime | None = None
    expires_at: datetime | None = None
    tags: list[str] = field(default_factory=list)
    version_number: int | None = None
    """Of its arguments, as a number (`versions`); the attributes have it as it was sent."""
    attributes: dict[str, Any] = field(default_factory=dict)
    project: str = ""
    """Whose it will be: never the client's to say, but its key's."""
    client_id: bool = False
    """The id is the client's, so it may exist already."""
    result_ttl: timedelta | None = None
    workflow_id: UUID | None = None
    workflow_index: int | None = None
    followed: bool = False
    """Something waits for its end."""
    parent_results: list[Any] | None = None
    rate_limit: dict[str, Any] | None = None
    """The policy of its rate limit, key included (OJS rate limiting §6)."""
    unique: UniquePolicy | None = None
    existing: Any = None
    """The job that is there already, when a unique policy ignored this one."""

    # Filled in when the job is stored.
    state: State = State.AVAILABLE
    created_at: datetime = NEVER
    enqueued_at: datetime = NEVER
    pressure: tuple[int, int] | None = None
    """Depth and bound of its queue, where that is nearly full (OJS backpressure §7.3)."""

    @property
    def needs(self) -> list[str] | None:
        """What a worker must be able to do to get the job: `meta.capabilities`, a list.

        Meta is the client's own (OJS core §5.4): whatever is no list of words asks for nothing.
        """
        named = self.meta.get("capabilities") if self.meta else None
        if type(named) is not list or not named or not all(type(word) is str for word in named):
            return None
        return sorted(set(named))

    # What no new job has; an envelope asks for it all the same.
    attempt: ClassVar[int] = 0
    retry_delay: ClassVar[None] = None
    started_at: ClassVar[None] = None
    finished_at: ClassVar[None] = None
    result: ClassVar[None] = None

    @property
    def rate_key(self) -> str:
        return self.rate_limit["key"] if self.rate_limit else ""


def new_job(
    document: Document, now: datetime, *, type_pattern: re.Pattern[str] = TYPE_PATTERN
) -> NewJob:
    """Check one enqueue request (OJS core §5, JSON format §3, HTTP §9.1).

    Args:
        type_pattern: wider for a document that another protocol's request was turned into.

    Raises:
        InvalidRequest: a field breaks its rule; `details["field"]` names it.
        Unsupported: the envelope is of another major version.
        MetadataTooLarge: its meta exceeds 64 KB.
    """
    if type(document) is not dict:
        raise refuse("", "A job must be a JSON object.", received=fields.json_name(document))
    _check_version(document)
    options = _options(document)
    try:
        return _checked(document, options, now, type_pattern)
    except InvalidRequest as refusal:
        name = re.split(r"[.\[]", refusal.details.get("field", ""))[0]
        if name not in ENVELOPE_NAMES and (document.get("options") or {}).get(name) is not None:
            fields.within("options", refusal)
        raise


def _checked(
    document: Document, options: Document, now: datetime, type_pattern: re.Pattern[str]
) -> NewJob:
    named, version = split_type(document)
    job = NewJob(
        type=fields.required_text(named, "type", pattern=type_pattern, longest=TYPE_LENGTH),
        args=read_args(document),
        id=uuid7(),
    )
    _take_id(job, document)
    job.meta = _meta(document, options)
    job.queue = (
        fields.text(options, "queue", "default", pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH)
        or "default"
    )
    job.priority = (
        fields.integer(options, "priority", 0, least=PRIORITIES[0], most=PRIORITIES[1]) or 0
    )
    job.pending = fields.boolean(options, "pending")
    job.tags = fields.texts(options, "tags") or []
    # 0 means "no timeout of its own" (core §5.2).
    job.timeout = fields.period(options, "timeout") or None
    job.visibility_timeout = fields.period(
        options, "visibility_timeout", least=timedelta(milliseconds=1)
    )
    _take_times(job, options, now)
    take_time_limits(job, options, now)
    _take_retry(job, options)
    _take_result_ttl(job, options)
    take_version(job, options, version)
    if options.get("rate_limit") is not None:
        job.rate_limit = rate_policy.job_policy(options["rate_limit"], job.queue)
    unique = fields.mapping(options, "unique")
    if unique is not None:
        job.unique = read_policy(
            unique,
            type=job.type,
            queue=job.queue,
            args=job.args,
            meta=job.meta,
            version=job.version_number,
        )
    _keep_the_rest(job, document, options)
    return job


def _check_version(document: Document) -> None:
    version = fields.text(document, "specversion", "1.0", longest=32)
    if version is not None and not SPEC_VERSION.fullmatch(version):
        raise Unsupported(
            f"This server speaks OJS 1.0, not {version!r}.", field="specversion", supported=["1.0"]
        )


def _options(document: Document) -> Document:
    nested = fields.mapping(document, "options")
    flat = {name: document[name] for name in OPTION_NAMES if document.get(name) is not None}
    if not nested:
        return flat
    return flat | {name: value for name, value in nested.items() if value is not None}


def read_args(document: Document) -> list[Any]:
    if "args" not in document:
        raise fields.missing("args")
    args = document["args"]
    if type(args) is not list:
        raise wrong_type("args", "array", args)
    return args


def _take_id(job: NewJob, document: Document) -> None:
    given = fields.text(document, "id", longest=64)
    if given is None:
        return
    lowered = given.lower()
    if not UUID7_PATTERN.fullmatch(lowered):
        raise refuse("id", f"The 'id' field must be a UUIDv7, not {given!r}.", validation="format")
    job.id = UUID(lowered)
    job.client_id = True


def _meta(document: Document, options: Document) -> dict[str, Any]:
    meta = fields.mapping(document, "meta") or {}
    for name in META_NAMES:
        more = fields.mapping(options, name)
        if more:
            meta = meta | more
    size = len(orjson.dumps(meta)) if meta else 0
    if size > META_SIZE:
        raise MetadataTooLarge(
            f"Meta field size {size} bytes exceeds maximum of {META_SIZE} bytes.",
            field="meta",
            actual_bytes=size,
            max_bytes=META_SIZE,
        )
    return meta


def _take_times(job: NewJob, options: Document, now: datetime) -> None:
    job.expires_at = fields.when(options, "expires_at", now)
    for name in ("delay_until", "scheduled_at"):
        job.scheduled_at = fields.when(options, name, now)
        if job.scheduled_at is not None:
            _keep_timestamp(job, "scheduled_at", options[name])
            break
    if job.expires_at is not None:
        _keep_timestamp(job, "expires_at", options["expires_at"])


def _keep_timestamp(job: NewJob, name: str, sent: str) -> None:
    """Keep the client's own spelling, so that its time zone survives (OJS JSON format §5.3)."""
    if not sent.startswith("+"):
        job.attributes[name] = sent


def _take_result_ttl(job: NewJob, options: Document) -> None:
    """How long to keep the result, in seconds; -1 for ever (OJS results §7.1)."""
    longest = int(fields.LONGEST.total_seconds())
    seconds = fields.integer(options, "result_ttl", least=-1, most=longest)
    if seconds is not None:
        job.result_ttl = fields.LONGEST if seconds == -1 else timedelta(seconds=seconds)
        job.attributes["result_ttl"] = seconds


def _take_retry(job: NewJob, options: Document) -> None:
    retry = fields.mapping(options, "retry")
    limit = options.get("max_attempts")
    is_alone = limit is not None and (retry or {}).get("max_attempts") is None
    if is_alone:
        retry = (retry or {}) | {"max_attempts": limit}
    if retry is None:
        return
    try:
        job.max_attempts = RetryPolicy.parse(retry).max_attempts
    except InvalidRetryPolicy as problem:
        is_option = is_alone and problem.field == "max_attempts"
        path = problem.field if is_option else f"retry.{problem.field}"
        raise InvalidRetryPolicyRequest(
            str(problem),
            field=path,
            rule="validation.retry_policy_invalid",
            validation_errors=[{"path": f"$.{path}", "message": str(problem)}],
        ) from None
    job.retry = retry


def _keep_the_rest(job: NewJob, document: Document, options: Document) -> None:
    """Preserve what we do not know, and what must be echoed as sent (OJS core §5.5.4)."""
    kept = job.attributes
    fields.text(document, "schema", longest=2048)
    for name in KEPT_AS_SENT:
        value = document.get(name) if name == "schema" else options.get(name)
        if value is not None:
            kept[name] = value
    for source, taken in ((document, ENVELOPE_NAMES), (options, frozenset(META_NAMES))):
        for name, value in source.items():
            known = name in taken or name in OPTION_NAMES or name in SYSTEM_MANAGED
            if not known and value is not None:
                kept.setdefault(name, value)
