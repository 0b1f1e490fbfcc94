"""Queue configuration: one validated document for all of its spellings.

The queue configuration document specifies `max_size` and `overflow_policy`, the backpressure
document `backpressure.max_depth` and `strategy`; both mean the same. A job's own value always
overrides its queue's (OJS queue configuration §7.3). Unsupported members are refused, never
ignored.
"""

from __future__ import annotations

import fnmatch
import re
from datetime import timedelta
from typing import Any

from ..errors import Unsupported
from . import rate_policy, retry
from .durations import SPAN, format_duration, parse_duration, parse_span
from .fields import Document, refuse
from .members import (
    AGE,
    CENTURY,
    Boolean,
    Choice,
    Duration,
    Integer,
    Member,
    Members,
    Number,
    Object,
    Schema,
    Texts,
    words,
)
from .retry import InvalidRetryPolicy, Policy, RetryPolicy
from .validation import OpenQueue

STRATEGIES = words("reject", "block", "drop_oldest")
WARNING_THRESHOLD = 0.8
MOST = 2**31 - 1
TYPE_WILDCARD = re.compile(r"[a-zA-Z*][a-zA-Z0-9_.*-]*")
MOST_TYPES = 1000
LEAST_WEIGHT, MOST_WEIGHT = 0.1, 1000
"""Of a tenant's turns: one of the least weight has one in ten rounds."""
MOST_TENANTS = 1000
NOT_SUPPORTED = frozenset({"max_size_bytes", "producers"})
DEAD_LETTER_SINCE = "dead_letter_since"
"""Member of a stored configuration: when its `dead_letter_queue` was set. Jobs that died before
stay where they are. Clients do not see it."""


class Setting(Member[dict[str, Any]]):
    """A member of the configuration; reading it returns what is stored, in our own spelling."""

    rule: Member[Any]
    kept_as = ""
    """The stored name, if different."""

    def __init__(self, about: str = "") -> None:
        super().__init__(about, nullable=True)

    @property
    def key(self) -> str:
        return self.kept_as or self.name

    @property
    def removed(self) -> dict[str, Any]:
        """What null does."""
        return {self.key: None}

    def check(self, value: Any, place: str) -> dict[str, Any]:
        return {self.key: self.rule.check(value, place)}

    def rules(self) -> Schema:
        return self.rule.rules()


class Parts:
    """A configuration that is put together from members, of which several may say the same."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.places: dict[str, str] = {}

    def add(self, part: dict[str, Any], place: str) -> None:
        """
        Raises:
            InvalidRequest: an earlier member says something else.
        """
        for key, value in part.items():
            earlier = self.places.setdefault(key, place)
            if self.config.setdefault(key, value) != value:
                raise refuse(place, f"'{place}' contradicts '{earlier}'.", other=earlier)


class Depth(Setting):
    rule = Integer(most=MOST)
    kept_as = "max_depth"

    def check(self, value: Any, place: str) -> dict[str, Any]:
        # 0 means unbounded (OJS backpressure §6.2).
        return {"max_depth": self.rule.check(value, place) or None}


class Strategy(Setting):
    rule = Choice(STRATEGIES, sentence="The '{name}' field must be one of {choices}.")
    kept_as = "strategy"


class Threshold(Setting):
    rule = Number(least=0, most=1)
    kept_as = "warning_threshold"


class Concurrency(Setting):
    rule = Integer(most=MOST)


class WholeSeconds(Setting):
    rule = Integer(least=1, most=CENTURY)


class BackpressureMembers(Members, closed=True):
    max_depth = Depth("0: unbounded.")
    max_size = Depth("0: unbounded.")
    strategy = Strategy()
    warning_threshold = Threshold()


class Backpressure(Setting):
    rule = Object(of=BackpressureMembers)

    @property
    def removed(self) -> dict[str, Any]:
        return dict.fromkeys(BOUND)

    def check(self, value: Any, place: str) -> dict[str, Any]:
        parts = Parts()
        for key, inner in self.rule.check(value, place).items():
            if key == "max_size_bytes" and inner in (0, None):
                continue
            path = f"{place}.{key}"
            if key == "max_size_bytes":
                raise Unsupported("This server bounds queues by depth, not by bytes.", field=path)
            member = BackpressureMembers.members.get(key)
            if not isinstance(member, Setting):
                raise refuse(path, f"There is no member '{key}' in '{place}'.")
            if inner is not None:
                parts.add(member.check(inner, path), path)
        return parts.config


class RateLimit(Setting):
    def check(self, value: Any, place: str) -> dict[str, Any]:
        policy = rate_policy.queue_policy(value, place)
        config: dict[str, Any] = {}
        if "concurrency" in policy:
            config["concurrency"] = policy.pop("concurrency")
        return config | {"rate_limit": policy or None}

    def rules(self) -> Schema:
        return rate_policy.QueueLimits.reference()


class RetentionMembers(Members, closed=True):
    completed = Duration(nullable=True)
    discarded = Duration(nullable=True)
    cancelled = Duration(nullable=True)


class Retention(Setting):
    rule = Object(of=RetentionMembers)
    one = Duration("Of all three. From the command line also `24h`.")

    def check(self, value: Any, place: str) -> dict[str, Any]:
        if type(value) in (str, int):
            period = format_duration(self._of_all(value, place))
            return {self.key: dict.fromkeys(RetentionMembers.members, period)}
        kept: dict[str, str] = {}
        for state, period in self.rule.check(value, place).items():
            member = RetentionMembers.members.get(state)
            if not isinstance(member, Duration):
                raise refuse(f"{place}.{state}", f"There is no retention of '{state}' jobs.")
            if period is not None:
                kept[state] = format_duration(member.check(period, state))
        return {self.key: kept}

    def _of_all(self, value: Any, place: str) -> timedelta:
        if type(value) is not str or not SPAN.fullmatch(value):
            return self.one.check(value, place)
        try:
            return parse_span(value)
        except ValueError as problem:
            raise refuse(place, f"The '{place}' field: {problem}", validation="range") from None

    def rules(self) -> Schema:
        return {"anyOf": [super().rules(), self.one.rules(), AGE]}


class QueueName(Setting):
    rule = OpenQueue()


class Length(Setting):
    rule = Duration(least=timedelta(seconds=1))

    def check(self, value: Any, place: str) -> dict[str, Any]:
        return {self.key: format_duration(self.rule.check(value, place))}


class Many(Setting):
    rule = Integer(most=MOST)


class DeadRetentionMembers(Members, closed=True):
    max_age = Duration(nullable=True, least=timedelta(seconds=1))
    max_count = Integer(most=MOST, nullable=True)


class DeadLetterMembers(Members, closed=True):
    retention = Object(of=DeadRetentionMembers)


class DeadLetter(Setting):
    """`dead_letter_ttl` and `dead_letter_max_size`, as OJS dead letter §5.3 spells them."""

    rule = Object(of=DeadLetterMembers)

    @property
    def removed(self) -> dict[str, Any]:
        return dict.fromkeys(("dead_letter_ttl", "dead_letter_max_size"))

    def check(self, value: Any, place: str) -> dict[str, Any]:
        whole = self.rule.check(value, place)
        for key in whole:
            if key != "retention":
                raise refuse(f"{place}.{key}", f"There is no member '{key}' in '{place}'.")
        path = f"{place}.retention"
        limits = DeadLetterMembers.retention.under(whole, place) or {}
        config: dict[str, Any] = {}
        for key in limits:
            if key not in DeadRetentionMembers.names:
                raise refuse(f"{path}.{key}", f"There is no member '{key}' in '{path}'.")
            if key == "max_age":
                age = DeadRetentionMembers.max_age.under(limits, path)
                config["dead_letter_ttl"] = age and format_duration(age)
            else:
                count = DeadRetentionMembers.max_count.under(limits, path)
                config["dead_letter_max_size"] = count
        return config


class Retry(Setting):
    rule = Object(of=Policy)

    def check(self, value: Any, place: str) -> dict[str, Any]:
        policy = self.rule.check(value, place)
        retry.refuse_misspelt(policy, place)
        try:
            RetryPolicy.new(policy)
        except InvalidRetryPolicy as problem:
            raise refuse(f"{place}.{problem.field}", str(problem)) from None
        return {self.key: policy}


class Types(Setting):
    rule = Texts(
        pattern=TYPE_WILDCARD,
        most=MOST_TYPES,
        sentence="The '{name}' field may name at most {most} types.",
    )

    def check(self, value: Any, place: str) -> dict[str, Any]:
        patterns = self.rule.check(value, place)
        return {self.key: None if "*" in patterns else patterns}


class TenantFairnessMembers(Members, closed=True):
    enabled = Boolean().default(True)
    strategy = Choice(words("fair-share"), "Tenants with waiting jobs take turns.")
    weights = Object("Tenant → its weight, in place of that of the tenant itself.")
    default_weight = Number("Of tenants that have none.", least=LEAST_WEIGHT, most=MOST_WEIGHT)


class TenantFairness(Setting):
    """`tenant_fairness` of OJS fair scheduling §9.2; tenants may be written as `tenant:ID`."""

    rule = Object(of=TenantFairnessMembers)
    weight = Number(least=LEAST_WEIGHT, most=MOST_WEIGHT)

    def check(self, value: Any, place: str) -> dict[str, Any]:
        policy = self.rule.check(value, place)
        for key in policy:
            if key not in TenantFairnessMembers.names:
                raise refuse(f"{place}.{key}", f"There is no member '{key}' in '{place}'.")
        config: dict[str, Any] = {
            "strategy": TenantFairnessMembers.strategy.under(policy, place) or "fair-share"
        }
        weights = TenantFairnessMembers.weights.under(policy, place) or {}
        if len(weights) > MOST_TENANTS:
            raise refuse(f"{place}.weights", f"At most {MOST_TENANTS} weights may be given.")
        config["weights"] = {
            name.removeprefix("tenant:"): self.weight.check(weight, f"{place}.weights.{name}")
            for name, weight in weights.items()
        }
        default = TenantFairnessMembers.default_weight.under(policy, place)
        config["default_weight"] = 1.0 if default is None else default
        if not TenantFairnessMembers.enabled.under(policy, place):
            return {self.key: None}
        return {self.key: config}


class QueueConfig(Members, component="QueueConfig", closed=True, about="`null` removes a member."):
    max_size = Depth("0: unbounded.")
    max_depth = Depth("0: unbounded.")
    overflow_policy = Strategy()
    strategy = Strategy()
    warning_threshold = Threshold()
    backpressure = Backpressure()
    concurrency = Concurrency("The number of jobs that may be active at once.")
    rate_limit = RateLimit()
    retention = Retention()
    dead_letter_queue = QueueName("Where the jobs of this queue that died are enqueued again.")
    dead_letter_ttl = Length("How long this queue's dead letter keeps a job.")
    dead_letter_max_size = Many("How many jobs this queue's dead letter keeps.")
    dead_letter = DeadLetter()
    visibility_timeout = WholeSeconds("Seconds.")
    default_timeout = WholeSeconds("Seconds.")
    default_retry = Retry()
    allowed_job_types = Types()
    tenant_fairness = TenantFairness("Tenants take turns (OJS fair scheduling §9).")


def parse(document: Document) -> dict[str, Any]:
    """Return the configuration in our own spelling; null removes a member.

    Raises:
        InvalidRequest: a member is invalid, or contradicts another; `details["field"]` names it.
        Unsupported: the documents have this member, but this server does not support it.
    """
    parts = Parts()
    for name, value in document.items():
        if name in NOT_SUPPORTED:
            raise Unsupported(f"This server does not support '{name}' for queues.", field=name)
        member = QueueConfig.members.get(name)
        if not isinstance(member, Setting):
            known = ", ".join(sorted(QueueConfig.names))
            raise refuse(name, f"There is no queue option '{name}'; there are {known}.")
        parts.add(member.removed if value is None else member.check(value, name), name)
    return parts.config


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return `old` changed by `new`: other members remain, null removes one."""
    return {name: value for name, value in (old | new).items() if value is not None}


def says_something_about_new_jobs(config: dict[str, Any]) -> bool:
    return any(name in config for name in ABOUT_NEW_JOBS)


ABOUT_NEW_JOBS = (
    "max_depth",
    "allowed_job_types",
    "default_timeout",
    "default_retry",
    "visibility_timeout",
    "tenant_fairness",
)


def by_tenant(config: dict[str, Any]) -> bool:
    """Whether tenants take turns in the queue (OJS fair scheduling §9)."""
    return "tenant_fairness" in config


def allows(config: dict[str, Any], job_type: str) -> bool:
    """Whether jobs of this type may enter the queue (OJS queue configuration §6.5)."""
    patterns = config.get("allowed_job_types")
    return patterns is None or any(fnmatch.fnmatchcase(job_type, each) for each in patterns)


def public(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration as returned to clients, with both spellings of the bound."""
    hidden = (*BOUND, DEAD_LETTER_SINCE)
    document = {name: value for name, value in config.items() if name not in hidden}
    if config.get("max_depth"):
        strategy = config.get("strategy", "reject")
        document["max_size"] = config["max_depth"]
        document["overflow_policy"] = strategy
        document["backpressure"] = {
            "max_depth": config["max_depth"],
            "strategy": strategy,
            "warning_threshold": config.get("warning_threshold", WARNING_THRESHOLD),
        }
    return document


BOUND = ("max_depth", "strategy", "warning_threshold")


def retention(config: dict[str, Any], state: str) -> timedelta | None:
    """How long this queue keeps jobs that ended in `state`; None for the server's default."""
    text = config.get("retention", {}).get(state)
    return None if text is None else parse_duration(text)


def dead_letter_age(config: dict[str, Any]) -> timedelta | None:
    """How long this queue's dead letter keeps a job; None for the server's default."""
    text = config.get("dead_letter_ttl")
    return None if text is None else parse_duration(text)
