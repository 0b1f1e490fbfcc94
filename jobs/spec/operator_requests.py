"""Requests of operators about queues, the dead letter, schemas and the server itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from ..conf import ojs_settings
from . import queue_config, retry
from .bulk_requests import States
from .fields import Document, inside, missing, refuse
from .lifecycle import State
from .members import (
    MOMENT,
    Anything,
    Array,
    Boolean,
    Choice,
    Member,
    Members,
    Moment,
    Object,
    OlderThan,
    Period,
    Schema,
    Text,
    Texts,
    words,
)
from .queue_config import QueueConfig
from .rate_policy import QueueLimits
from .retry import InvalidRetryPolicy, Policy, RetryPolicy, in_force
from .unique_policy import Within
from .validation import (
    CLASS_PATTERN,
    QUEUE_LENGTH,
    QUEUE_PATTERN,
    TYPE_LENGTH,
    TYPE_PATTERN,
    URI_PATTERN,
    OpenQueue,
    Priority,
)
from .versions import VERSION_PATTERN, Version

MOST_VERSIONS = 1_000
"""Schemas of one job type, and versions that one of them may declare itself compatible with."""


class SchemaVersion(Version):
    """The version of a schema, as it was sent."""

    def check(self, value: Any, place: str) -> Any:
        super().check(value, place)
        return value


class Reason(Members, closed=True):
    reason = Text("Why, for the audit.", longest=2000).default("")


class ShortReason(Members, closed=True):
    reason = Text("Why, for the audit.", longest=1000).default("")


class Confirmed(Members, closed=True, needs=("confirm",)):
    confirm = Boolean("Must be true.", schema={"enum": [True]}).default(False)


# Queues


class NewQueue(Members, closed=True):
    name = Text(pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH).required()
    config = Object(of=QueueConfig)
    # The public command line sends these beside `config`.
    concurrency = Anything(hidden=True)
    max_size = Anything(hidden=True)


def read_new_queue(body: Document) -> tuple[str, dict[str, Any]]:
    """Return the name of a new queue, and its configuration in our own spelling.

    Raises:
        InvalidRequest: a member is invalid, or given twice.
    """
    name, config = NewQueue.name.read(body), NewQueue.config.read(body) or {}
    for member in (NewQueue.concurrency, NewQueue.max_size):
        value = member.read(body)
        if value is None:
            continue
        if member.name in config:
            raise refuse(member.name, f"The '{member.name}' field is in 'config', too.")
        config = config | {member.name: value}
    return name, queue_config.parse(config)


class Pause(Reason):
    until = Moment("It ends automatically then.", ahead=True)


class DeleteQueue(Members, closed=True):
    strategy = Choice(
        words("reject", "discard", "move"), sentence="'{name}' must be one of {choices}."
    ).default("reject")
    target_queue = OpenQueue(filled=True)


class Purge(ShortReason, Confirmed, needs=("states", "confirm")):
    states = Texts(
        schema={
            "items": {"type": "string", "enum": [s for s in State.values if s != State.ACTIVE]},
            "minItems": 1,
        }
    )
    older_than = OlderThan("Finished before then, or longer ago: `7d`.")


class LimitsOverride(QueueLimits, component="RateLimitOverride"):
    expires_at = Moment(ahead=True)
    held_until = Moment(
        "No job starts before then; `null` ends such a hold.", ahead=True, nullable=True
    )


# The Admin API


class Prioritize(Reason):
    priority = Priority().required()


class MomentText(Text):
    """A timestamp that is parsed later, as in a query."""

    def rules(self) -> Schema:
        return dict(MOMENT)


class AgeText(MomentText):
    """The same, or how long ago that was."""

    def rules(self) -> Schema:
        return OlderThan().rules()


class StateWords(Text):
    """One state, or several separated by commas, as in a query."""

    several = Texts()

    def check(self, value: Any, place: str) -> str:
        if type(value) is list:
            value = ",".join(self.several.check(value, place))
        return super().check(value, place)

    def rules(self) -> Schema:
        return States().rules()


class AdminFilter(Members, closed=True, rules={"minProperties": 1}):
    queue = Text(filled=True)
    type = Text("`email.*` matches a prefix.", filled=True)
    state = StateWords("One state, or several.", filled=True)
    since = MomentText(filled=True)
    until = MomentText(filled=True)
    error_type = Text(filled=True)
    worker_id = Text(filled=True)


class AdminChange(Reason):
    filter = Object(of=AdminFilter).required()
    dry_run = Boolean("Count only.").default(False)
    confirm = Boolean("Must be true, but for a dry run.").default(False)


class DeadFilter(Members):
    """Filters of a purge of the dead letter, in the body or in the query."""

    queue = Text()
    type = Text("`email.*` matches a prefix.")
    error_type = Text("Of the last error.")
    since = MomentText("Discarded then or later.")
    until = MomentText("Discarded before.")
    older_than = AgeText("The same as `until`, or how long ago that is: `7d`.")


class PurgeDead(Reason, DeadFilter, Confirmed, needs=("confirm",)):
    filter = Object(of=AdminFilter)


class OverrideMembers(Members, closed=True):
    queue = OpenQueue(filled=True)
    priority = Priority()
    args = Array("In place of the arguments that it had.")
    meta = Object("Added to what it had.")
    retry = Object("In place of the policy that it had.", of=Policy)


class RetryDead(Members, closed=True):
    override = Object("What shall be changed before (OJS dead letter §6.3).", of=OverrideMembers)


class RetryDeadFor(Reason, RetryDead):
    pass


@dataclass(frozen=True)
class Override:
    """What is changed about a job that is taken out of the dead letter."""

    columns: dict[str, Any]
    meta: dict[str, Any]


def read_override(body: Document) -> Override | None:
    """
    Raises:
        InvalidRequest: a member of `override` breaks its rule, or there is no such member.
    """
    given = RetryDead.override.read(body)
    if not given:
        return None
    with inside("override"):
        for name in given:
            if name not in OverrideMembers.names:
                known = ", ".join(OverrideMembers.members)
                raise refuse(name, f"'{name}' cannot be changed; {known} can.")
        read = {name: getattr(OverrideMembers, name).read(given) for name in OverrideMembers.names}
        columns = {name: value for name, value in read.items() if value is not None}
        meta = columns.pop("meta", {})
        if "retry" in columns:
            retry.refuse_misspelt(columns["retry"])
            try:
                columns["max_attempts"] = RetryPolicy.new(columns["retry"]).attempts
            except InvalidRetryPolicy as problem:
                raise refuse(f"retry.{problem.field}", str(problem)) from None
            columns["retry"] = in_force(columns["retry"])
    return Override(columns, meta)


class SwitchMaintenance(Reason):
    enabled = Boolean().required()
    until = Moment("It ends automatically then.", ahead=True)
    estimated_duration = Period(least=timedelta(seconds=1))
    # As the public admin UI calls it: `1h`.
    duration = Within(hidden=True)
    refuse_jobs = Boolean("Refuse new jobs as well.").default(False)


class CompatibleWith(Reason):
    compatible_with = Texts(
        most=MOST_VERSIONS,
        sentence="At most {most} versions may be named.",
        schema={"items": {"type": "string", "pattern": f"^{VERSION_PATTERN}$"}},
    )


class RegisterSchema(CompatibleWith):
    type = Text("The same as in the path.", longest=TYPE_LENGTH)
    version = SchemaVersion("The same as in the path.")
    schema = Object("JSON Schema of the arguments.")
    args_schema = Object("The same, by the document's name.")


class NewSchema(CompatibleWith, either=("job_type", "type")):
    job_type = Text(pattern=TYPE_PATTERN, longest=TYPE_LENGTH, filled=True)
    type = Text("The same.", pattern=TYPE_PATTERN, longest=TYPE_LENGTH, filled=True)
    version = SchemaVersion("Major, minor and patch; what is left out is 0.").required()
    schema = Object(
        "JSON Schema 2020-12 of the arguments; of an object: of the only argument."
    ).required()
    uri = Text(
        "By which jobs may name it; by default `urn:ojs:schema:TYPE:vVERSION`.",
        longest=600,
        pattern=URI_PATTERN,
    )


def _or_empty(pattern: re.Pattern[str]) -> re.Pattern[str]:
    return re.compile(f"({pattern.pattern})?")


TYPE = Text("Empty: any type.", pattern=_or_empty(CLASS_PATTERN), longest=TYPE_LENGTH)
QUEUE = Text("Empty: any queue.", pattern=_or_empty(QUEUE_PATTERN), longest=QUEUE_LENGTH)


class SetValidation(Reason):
    type = TYPE.default("")
    queue = QUEUE.default("")
    mode = Choice(
        words("strict", "warn", "off"),
        "`null`: it has no mode of its own any more.",
        nullable=True,
        sentence="The '{name}' field must be one of {choices}.",
    )


# Job specs


class Checksums(Member[dict[str, Any] | None]):
    """Type → checksum."""

    whole = Object()
    type = Text(pattern=TYPE_PATTERN, filled=True)
    checksum = Text(filled=True)

    def check(self, value: Any, place: str) -> dict[str, Any]:
        found = self.whole.check(value, place)
        if not found:
            raise missing(place)
        limit = ojs_settings.MAX_BATCH
        if len(found) > limit:
            raise refuse(place, f"At most {limit} {place} in one request.", limit=limit)
        for name, checksum in found.items():
            self.type.check(name, place)
            if checksum is None:
                raise missing(f"{place}.{name}")
            self.checksum.check(checksum, f"{place}.{name}")
        return found

    def rules(self) -> Schema:
        names = self.type.rules()
        return {
            "type": "object",
            "minProperties": 1,
            "propertyNames": {"pattern": names["pattern"], "maxLength": names["maxLength"]},
            "additionalProperties": self.checksum.rules(),
        }


class RegisterSpecs(Members, closed=True):
    specs = Checksums("Type → checksum.").required()
