"""Validates enqueue requests: from a JSON document to a `NewJob`, or a refusal.

Both `POST /ojs/v1/jobs` and the Python API use it. Enqueue options may be in `options` or at the
top level; `options` wins (OJS HTTP §9.1; the Ruby SDK sends the flat form).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID

import orjson

from ..conf import ojs_settings
from ..errors import InvalidRequest, InvalidRetryPolicyRequest, MetadataTooLarge, Unsupported
from . import fields, rate_policy, reserved
from .durations import LONGEST
from .fields import Document, refuse
from .identifiers import UUID7_PATTERN, uuid7
from .lifecycle import State
from .lineage import PARENT, ROOT
from .members import (
    CENTURY,
    MILLISECOND,
    Array,
    Boolean,
    Integer,
    Member,
    Members,
    Moment,
    Object,
    Period,
    Schema,
    Text,
    Texts,
)
from .retry import MAX_ATTEMPTS, InvalidRetryPolicy, Policy, RetryPolicy, in_force
from .time_limits import TimeLimits, expire_unstarted
from .timestamps import is_delay
from .unique_policy import Unique, UniquePolicy, read_policy
from .versions import VERSION_PATTERN, Version, split_type

# The public cases use hyphens, which core §5.1 does not have.
WIRE_TYPE_PATTERN = re.compile(r"[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*")
"""Types as a client of OJS HTTP names them (OJS core §5.1)."""
TYPE_PATTERN = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*(\.[a-zA-Z][a-zA-Z0-9_-]*)*")
"""Types as a site names them in Python, after functions and classes of its own."""
CLASS_PATTERN = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*([.+][a-zA-Z][a-zA-Z0-9_-]*)*")
"""Types as .NET names them, for protocols that use such names: `Billing.Invoices+Send` is a nested
class. OJS types do not contain `+`, so an OJS client cannot enqueue one."""
QUEUE_PATTERN = re.compile(r"[a-z0-9][a-z0-9\-.]*")
QUEUE_LENGTH = 128
MOST_QUEUES = 1_000
"""Queues of one fetch, which searches them one after the other."""
MOST_TAGS = 1_000
MOST_LABELS = 1_000
"""Labels of a worker; also its capabilities."""
TYPE_LENGTH = 255
META_SIZE = 65_536
"""Bytes of JSON (OJS payload limits §4.3)."""
PRIORITIES = (-100, 100)
LEVELS = {"HIGH": 10, "NORMAL": 0, "LOW": -10}
"""Named priorities (OJS core §5.2)."""
URI_PATTERN = re.compile(
    r"[A-Za-z][A-Za-z0-9+.-]*:([A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+"
)
SPEC_VERSION = re.compile(r"1(\.0(\.\d+)?(-rc\.\d+)?)?")
NEVER = datetime.min

SYSTEM_MANAGED = frozenset(
    {
        "state",
        "previous_state",
        "attempt",
        "worker_id",
        "deduplicated",
        "redacted",
        "created_at",
        "activated_at",
        "enqueued_at",
        "re_enqueued_at",
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
        "warnings",
        "workflow_id",
        ROOT,
        "parent_results",
        "progress",
        "progress_data",
        "progress_message",
        "checkpoint",
        "last_checkpoint",
        "previous_priority",
        "retry_delay_ms",
        "next_attempt_at",
        "next_retry_at",
    }
)
"""Set by the server; a client's value is ignored (OJS core §5.3)."""


class QueueNames(Texts):
    """The queues that a worker serves (OJS core §5.1)."""

    def __init__(self, about: str = "", **words: Any) -> None:
        super().__init__(
            about, pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH, most=MOST_QUEUES, **words
        )

    def measure(self, value: Sequence[Any], place: str) -> None:
        if len(value) > MOST_QUEUES:
            raise refuse(
                place,
                f"The '{place}' field may name at most {MOST_QUEUES} queues, not {len(value)}.",
                validation="max_items",
                limit=MOST_QUEUES,
            )
        super().measure(value, place)

    def check(self, value: Any, place: str) -> list[str]:
        names = super().check(value, place)
        reserved.refuse_queues(names, place)
        return names


class Labels(Texts):
    """The labels of a worker."""

    def __init__(self, about: str = "") -> None:
        super().__init__(
            about,
            most=MOST_LABELS,
            sentence="The '{name}' field may name at most {most} labels, not {size}.",
            details={"validation": "max_items", "limit": MOST_LABELS},
        )


class OpenQueue(Text):
    """The queue of a new job: any but those of this server's own jobs."""

    def __init__(self, about: str = "", **words: Any) -> None:
        super().__init__(about, pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH, **words)

    def check(self, value: Any, place: str) -> str:
        name = super().check(value, place)
        if name in reserved.QUEUES:
            raise reserved.refused_queue(name, place)
        return name


class OpenType(Text):
    """The type of a new job: any but those of this server's own jobs."""

    def check(self, value: Any, place: str) -> str:
        name = super().check(value, place)
        if name in reserved.TYPES:
            raise reserved.refused_type(name, place)
        return name


ID = Text(longest=64)
SPEC_VERSION_TEXT = Text(longest=32)


class ClientId(Member[UUID | None]):
    """The UUIDv7 that a client chose for its job."""

    def check(self, value: Any, place: str) -> UUID:
        text = ID.check(value, place)
        if not UUID7_PATTERN.fullmatch(text):
            raise refuse(
                place,
                f"The '{place}' field must be a UUIDv7 in lower case, not {text!r}.",
                validation="format",
            )
        return UUID(text)

    def rules(self) -> Schema:
        return {"type": "string", "format": "uuid", "pattern": f"^{UUID7_PATTERN.pattern}$"}


class SpecVersion(Member[str | None]):
    """The version of the envelope."""

    def check(self, value: Any, place: str) -> str:
        version = SPEC_VERSION_TEXT.check(value, place)
        if not SPEC_VERSION.fullmatch(version):
            raise Unsupported(
                f"This server speaks OJS 1.0, not {version!r}.", field=place, supported=["1.0"]
            )
        return version

    def rules(self) -> Schema:
        return {"type": "string", "enum": ["1.0", "1.0.0"]}


class Args(Array):
    """The arguments; null is refused, not treated as absent."""

    def read(self, document: Document) -> list[Any]:
        if self.name not in document:
            raise fields.missing(self.name)
        return self.check(document[self.name], self.name)


class Tags(Texts):
    """The tags of a job."""

    def __init__(self, about: str = "", **words: Any) -> None:
        super().__init__(about, most=MOST_TAGS, details={"validation": "max_items"}, **words)


class Priority(Integer):
    """A number, or the name of a level (OJS core §5.2)."""

    def __init__(self, about: str = "", **words: Any) -> None:
        super().__init__(about, least=PRIORITIES[0], most=PRIORITIES[1], **words)

    def check(self, value: Any, place: str) -> int:
        if type(value) is not str:
            return super().check(value, place)
        if value not in LEVELS:
            raise refuse(
                place,
                f"The '{place}' field must be a number from {self.least} to {self.most} or one of "
                f"{', '.join(LEVELS)}, not {value[:80]!r}.",
                validation="enum",
                expected="integer",
                allowed=list(LEVELS),
            )
        return LEVELS[value]

    def rules(self) -> Schema:
        return {"anyOf": [super().rules(), {"type": "string", "enum": list(LEVELS)}]}


class Options(TimeLimits):
    """Options of a job, beside `type` and `args` or in `options`."""

    queue = OpenQueue().default("default")
    priority = Priority("Higher first; `HIGH` is 10, `NORMAL` 0, `LOW` -10.").default(0)
    timeout = Period(
        in_milliseconds="The longest execution; 0: no limit for this job.",
        echoed=True,
    )
    visibility_timeout = Period(least=MILLISECOND, echoed=True)
    delay_until = Moment()
    scheduled_at = Moment()
    expires_at = Moment()
    retry = Object(of=Policy)
    max_attempts = Integer(least=0, most=MAX_ATTEMPTS)
    unique = Object(of=Unique, echoed=True)
    tags = Tags()
    rate_limit = Object(of=rate_policy.JobLimits, echoed=True)
    pending = Boolean("Wait for `…/activate`.").default(False)
    result_ttl = Integer(
        "Seconds to keep the result; -1: forever.", least=-1, most=CENTURY, echoed=True
    )
    result_size_limit = Integer(
        'Bytes of JSON. All results have one limit, `OJS["MAX_RESULT_SIZE"]`: less is refused.',
        least=1,
        echoed=True,
    )
    version = Version(
        "Of the arguments (OJS job versioning §5): only workers that accept it get the job. "
        "It takes precedence over the version in `type`.",
        echoed=True,
    )


class NestedOptions(Options, component="JobOptions"):
    metadata = Object("Merged into `meta`.")
    meta = Object(hidden=True)


class Envelope(
    Members,
    component="NewJob",
    about="An enqueue request (OJS HTTP §9.1). The members of `options` may also be at the top "
    "level. Unknown members are stored and returned.",
):
    specversion = SpecVersion("`1.0`")
    id = ClientId("A UUIDv7; if it is left out, the server generates one.")
    type = OpenType(
        "Dotted words, `email.send`, and perhaps the version of the arguments: `email.send@2.0`.",
        pattern=WIRE_TYPE_PATTERN,
        longest=TYPE_LENGTH,
        schema={"pattern": f"^{WIRE_TYPE_PATTERN.pattern}(@{VERSION_PATTERN})?$"},
    ).required()
    args = Args().required()
    meta = Object("The client's own; `meta.capabilities` names what a worker must be able to do.")
    schema = Text(
        "A URI, such as `urn:ojs:schema:email.send:v1`.",
        longest=2048,
        pattern=URI_PATTERN,
        echoed=True,
    )
    version = Options.version
    parent_id = ClientId("The job that enqueues it (OJS execution history §5).")
    options = Object(of=NestedOptions)


class SiteEnvelope(Members):
    """Of a job that a site's own code describes, and of AGQ's."""

    type = OpenType(pattern=TYPE_PATTERN, longest=TYPE_LENGTH).required()


class ClassEnvelope(Members):
    """Of a document converted from another protocol's request."""

    type = OpenType(pattern=CLASS_PATTERN, longest=TYPE_LENGTH).required()


TYPES = {
    WIRE_TYPE_PATTERN: Envelope.type,
    TYPE_PATTERN: SiteEnvelope.type,
    CLASS_PATTERN: ClassEnvelope.type,
}
OPTION_NAMES = Options.names
ENVELOPE_NAMES = Envelope.names - OPTION_NAMES
IN_META = (NestedOptions.metadata, NestedOptions.meta)
"""Later ones take precedence."""
QUEUES = QueueNames()
SPELLINGS = (
    Options.timeout.names,
    Options.visibility_timeout.names,
    (Options.delay_until.name, Options.scheduled_at.name),
)
"""Names for the same; earlier ones take precedence."""
KEPT_AS_SENT = tuple(name for name, member in Options.members.items() if member.is_echoed)
"""Returned with the job exactly as the client wrote them."""
TAKEN = OPTION_NAMES | Envelope.names | SYSTEM_MANAGED
TAKEN_OPTIONS = NestedOptions.names | SYSTEM_MANAGED
"""All other members are the client's own, and are stored."""


def queue_names(document: Document, field: str = "queues") -> list[str] | None:
    """Read an array of queue names (OJS core §5.1)."""
    given = document.get(field)
    return None if given is None else QUEUES.check(given, field)


def needs_of(meta: Document) -> list[str] | None:
    """What a worker must be able to do: `meta.capabilities`, if that is a list of words."""
    named = meta.get("capabilities") if meta else None
    if type(named) is not list or not named or not all(type(word) is str for word in named):
        return None
    return sorted(set(named))


@dataclass
class NewJob:
    """A valid job that is not stored yet."""

    # Without slots: a batch copies it a thousand times, and a dictionary is copied faster.

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
    """For all attempts together, from its creation."""
    grace_period: timedelta | None = None
    visibility_timeout: timedelta | None = None
    scheduled_at: datetime | None = None
    delay: str = ""
    """`scheduled_at` as it was sent, if that is relative."""
    expires_at: datetime | None = None
    tags: list[str] = field(default_factory=list)
    version_number: int | None = None
    """Version of its arguments, as a number (`versions`); the attributes have it as sent."""
    attributes: dict[str, Any] = field(default_factory=dict)
    project: str = ""
    """The project it will belong to: that of the key, or its tenant."""
    fallback_tenant: str = ""
    """Its tenant if it has none: its queue is shared out by tenant, or the default tenant has
    limits."""
    client_id: bool = False
    """The id is the client's, so a job with it may exist already."""
    result_ttl: timedelta | None = None
    workflow_id: UUID | None = None
    workflow_index: int | None = None
    followed: bool = False
    """Something waits for it to end."""
    parent_results: list[Any] | None = None
    rate_limit: dict[str, Any] | None = None
    """The policy of its rate limit, including the key (OJS rate limiting §6)."""
    unique: UniquePolicy | None = None
    existing: Any = None
    """The existing job, if a unique policy ignored this one."""
    warnings: list[str] | None = None
    """What its schema finds wrong, if that only warns; also among the attributes."""

    # Filled in when the job is stored.
    state: State = State.AVAILABLE
    created_at: datetime = NEVER
    enqueued_at: datetime = NEVER
    finished_at: datetime | None = None
    """When a later job of the same batch replaced it."""
    pressure: tuple[int, int] | None = None
    """Depth and bound of its queue, if that is nearly full (OJS backpressure §7.3)."""

    @property
    def needs(self) -> list[str] | None:
        """The abilities that a worker needs to get the job: `meta.capabilities`, a list.

        Meta is the client's own (OJS core §5.4): anything but a list of words requires nothing.
        """
        return needs_of(self.meta)

    def hold(self) -> None:
        """Make it wait as pending; a delay begins only when it no longer does."""
        self.pending = True
        if self.delay:
            self.attributes["scheduled_at"] = self.delay

    # New jobs never have these, but an envelope reads them.
    attempt: ClassVar[int] = 0
    retry_delay: ClassVar[None] = None
    started_at: ClassVar[None] = None
    result: ClassVar[None] = None

    @property
    def rate_key(self) -> str:
        return self.rate_limit["key"] if self.rate_limit else ""


def new_job(
    document: Document,
    now: datetime,
    *,
    type_pattern: re.Pattern[str] = WIRE_TYPE_PATTERN,
    was_accepted: bool = False,
) -> NewJob:
    """Validate one enqueue request (OJS core §5, JSON format §3, HTTP §9.1).

    Args:
        type_pattern: wider for a document that does not come from a client of OJS HTTP.
        was_accepted: the document was accepted earlier, see `accepted_job`.

    Raises:
        InvalidRequest: a field is invalid; `details["field"]` names it.
        Unsupported: the envelope has another major version.
        MetadataTooLarge: its meta exceeds 64 KB.
    """
    if type(document) is not dict:
        raise refuse("", "A job must be a JSON object.", received=fields.json_name(document))
    Envelope.specversion.read(document)
    options = _options(document)
    try:
        job = _checked(document, options, now, type_pattern)
        if not was_accepted:
            _check_result_size(options)
            if job.rate_limit is not None:
                rate_policy.refuse_unserved(options["rate_limit"])
        return job
    except InvalidRequest as refusal:
        name = re.split(r"[.\[]", refusal.details.get("field", ""))[0]
        if name not in ENVELOPE_NAMES and (document.get("options") or {}).get(name) is not None:
            fields.within("options", refusal)
        raise


def accepted_job(document: Document, now: datetime) -> NewJob:
    """Make a job of a document that was accepted earlier, by any of the protocols.

    The limit of results may have grown since; that does not refuse the job.
    """
    return new_job(document, now, type_pattern=CLASS_PATTERN, was_accepted=True)


def _checked(
    document: Document, options: Document, now: datetime, type_pattern: re.Pattern[str]
) -> NewJob:
    named, version = split_type(document)
    job = NewJob(
        type=TYPES[type_pattern].read(named), args=Envelope.args.read(document), id=uuid7()
    )
    given = Envelope.id.read(document)
    if given is not None:
        job.id, job.client_id = given, True
    job.meta = _meta(document, options)
    job.queue = Options.queue.read(options)
    job.priority = Options.priority.read(options)
    job.pending = Options.pending.read(options)
    job.tags = Options.tags.read(options) or []
    # 0 means no timeout for this job (core §5.2).
    job.timeout = Options.timeout.read(options) or None
    job.visibility_timeout = Options.visibility_timeout.read(options)
    _take_times(job, options, now)
    _take_time_limits(job, options, now)
    _take_retry(job, options)
    _take_result_ttl(job, options)
    _take_version(job, options, version)
    rate_limit = options.get("rate_limit")
    if rate_limit is not None:
        job.rate_limit = rate_policy.job_policy(rate_limit, job.queue)
    unique = Options.unique.read(options)
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


def _options(document: Document) -> Document:
    nested = Envelope.options.read(document)
    flat = {name: document[name] for name in OPTION_NAMES if document.get(name) is not None}
    if not nested:
        return flat
    given = {name: value for name, value in nested.items() if value is not None}
    for names in SPELLINGS:
        if not given.keys().isdisjoint(names):
            for name in names:
                flat.pop(name, None)
    return flat | given


def read_args(document: Document) -> list[Any]:
    return Envelope.args.read(document)


def _meta(document: Document, options: Document) -> dict[str, Any]:
    meta = Envelope.meta.read(document) or {}
    for member in IN_META:
        more = member.read(options)
        if more:
            meta = meta | more
    refuse_large_meta(meta)
    return meta


def refuse_large_meta(meta: dict[str, Any]) -> None:
    """
    Raises:
        MetadataTooLarge: it exceeds 64 KB.
    """
    size = len(orjson.dumps(meta)) if meta else 0
    if size > META_SIZE:
        raise MetadataTooLarge(
            f"Meta field size {size} bytes exceeds maximum of {META_SIZE} bytes.",
            field="meta",
            actual_bytes=size,
            max_bytes=META_SIZE,
        )


def _take_times(job: NewJob, options: Document, now: datetime) -> None:
    job.expires_at = Options.expires_at.read(options, now)
    for member in (Options.delay_until, Options.scheduled_at):
        job.scheduled_at = member.read(options, now)
        if job.scheduled_at is not None:
            sent = options[member.name]
            job.delay = sent if is_delay(sent) else ""
            _keep_timestamp(job, "scheduled_at", sent)
            break
    if job.expires_at is not None:
        _keep_timestamp(job, "expires_at", options["expires_at"])


def _keep_timestamp(job: NewJob, name: str, sent: str) -> None:
    """Store the client's own spelling, so that its time zone survives (OJS JSON format §5.3)."""
    if not is_delay(sent):
        job.attributes[name] = sent


def _take_time_limits(job: NewJob, options: Document, now: datetime) -> None:
    """Read the remaining limits, after `timeout` and `expires_at`."""
    if TimeLimits.names.isdisjoint(options):
        return
    job.total_timeout = Options.total_timeout.read(options)
    job.grace_period = Options.grace_period.read(options)
    # Each heartbeat extends the reservation, so the allowed silence is its length.
    silence = Options.heartbeat_timeout.read(options)
    job.visibility_timeout = job.visibility_timeout or silence
    if job.total_timeout is not None and job.total_timeout < (job.timeout or timedelta(0)):
        raise refuse("total_timeout", "The 'total_timeout' field must not be less than 'timeout'.")
    if Options.enqueue_ttl.read(options) is not None:
        job.attributes["enqueue_ttl"] = options["enqueue_ttl"]
        expire_unstarted(job, now)


def _take_result_ttl(job: NewJob, options: Document) -> None:
    """Read how long to keep the result, in seconds; -1 for forever (OJS results §7.1)."""
    seconds = Options.result_ttl.read(options)
    if seconds is not None:
        job.result_ttl = LONGEST if seconds == -1 else timedelta(seconds=seconds)


def _check_result_size(options: Document) -> None:
    """Refuse a limit that would not be kept: an ACK does not look for one of its job's own."""
    limit, most = Options.result_size_limit.read(options), ojs_settings.MAX_RESULT_SIZE
    if limit is not None and limit < most:
        raise Unsupported(
            f"The limit of all results is {most} bytes; a job cannot have a smaller one.",
            field="result_size_limit",
        )


def _take_version(job: NewJob, options: Document, named: str | None) -> None:
    """Read the version of the arguments; a member takes precedence over the type (§5.3)."""
    sent = options.get("version", named)
    if sent is not None:
        job.version_number = Options.version.check(sent, "version")
        job.attributes["version"] = sent


def _take_retry(job: NewJob, options: Document) -> None:
    retry = Options.retry.read(options)
    limit = options.get("max_attempts")
    is_alone = limit is not None and (retry or {}).get("max_attempts") is None
    if is_alone:
        retry = (retry or {}) | {"max_attempts": limit}
    if retry is None:
        return
    try:
        job.max_attempts = RetryPolicy.new(retry).attempts
    except InvalidRetryPolicy as problem:
        is_option = is_alone and problem.field == "max_attempts"
        path = problem.field if is_option else f"retry.{problem.field}"
        raise InvalidRetryPolicyRequest(
            str(problem),
            field=path,
            rule="validation.retry_policy_invalid",
            validation_errors=[{"path": f"$.{path}", "message": str(problem)}],
        ) from None
    job.retry = in_force(retry)


def _keep_the_rest(job: NewJob, document: Document, options: Document) -> None:
    """Store unknown members, and those that must be returned as sent (OJS core §5.5.4)."""
    kept = job.attributes
    schema = Envelope.schema.read(document)
    if schema is not None:
        kept["schema"] = schema
    parent = Envelope.parent_id.read(document)
    if parent is not None:
        kept[PARENT] = str(parent)
    for name in KEPT_AS_SENT:
        value = options.get(name)
        # A timeout in milliseconds takes precedence, and is in the job's own columns.
        if value is not None and options.get(f"{name}_ms") is None:
            kept[name] = value
    for source, taken in ((document, TAKEN), (options, TAKEN_OPTIONS)):
        for name, value in source.items():
            if name not in taken and value is not None:
                kept.setdefault(name, value)
