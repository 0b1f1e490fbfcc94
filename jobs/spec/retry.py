"""Retry policies: how long to wait after a failure, and which failures are final (OJS retry).

Pure functions of a policy document. The engine decides whether attempts are left, and what
happens to the job.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from random import random as uniform
from typing import Any, Protocol, TypeVar
from uuid import UUID

from .durations import LONGEST, format_duration, parse_duration
from .fields import refuse
from .members import DURATION, Member, Members, Schema

T = TypeVar("T")

# The document sets no upper bounds. These are far beyond any sensible policy; they keep values
# within an integer column and within ordinary floating-point arithmetic.
MAX_ATTEMPTS = 10_000
MAX_COEFFICIENT = 1_000_000
MOST_ERRORS, LONGEST_ERROR = 1_000, 256
"""Entries of `non_retryable_errors`. An error's type has 255 characters, and a pattern a `*`."""
ERRORS = ("non_retryable_errors", "nonRetryableErrors")

# The gRPC binding and the examples of core §13.2 write "1s" and "300s". RET-19 requires malformed
# durations to be refused, so exactly this form is accepted besides ISO 8601, and only here.
SHORT_FORM = re.compile(r"[0-9]+s")

# The factor by which the first interval is multiplied before retry `n`, for coefficient `c` (§3,
# Appendix A). math.pow, unlike **, never builds an enormous integer: it raises OverflowError.
GROWTH: dict[str, Callable[[int, float], float]] = {
    "none": lambda n, c: 1.0,
    "linear": lambda n, c: float(n),
    "exponential": lambda n, c: math.pow(c, n - 1),
    "polynomial": lambda n, c: math.pow(n, c),
}

STRATEGIES = {**{name: name for name in GROWTH}, "constant": "none"}
EXHAUSTIONS = {"discard": "discard", "dead_letter": "dead_letter"}


class InvalidRetryPolicy(ValueError):
    """A retry policy is invalid by §11.1 (`validation.retry_policy_invalid`).

    `field` is the key as the client spelled it; the text of the error begins with it.
    """

    def __init__(self, field: str, problem: str):
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.field} {self.problem}"


class Retried(Protocol):
    """A job, as far as its retry policy is concerned."""

    id: Any
    retry: Any


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A complete policy: every field has a value (§2.1, §8). Read untrusted ones with `parse`."""

    max_attempts: int = 3
    """All executions, including the first; 0 means the same as 1: no retry (§2.2)."""
    initial_interval: timedelta = timedelta(seconds=1)
    backoff_coefficient: float = 2.0
    max_interval: timedelta = timedelta(minutes=5)
    jitter: bool = True
    non_retryable_errors: tuple[str, ...] = ()
    on_exhaustion: str = "discard"
    strategy: str = "exponential"
    """A key of GROWTH. Never inferred from the coefficient: §3 makes exponential the default."""
    explicit_exhaustion: bool = False
    """Whether the document contains `on_exhaustion`, rather than relying on the default."""

    @property
    def attempts(self) -> int:
        """How often the job runs at most: its first attempt is not in question."""
        return max(self.max_attempts, 1)

    @property
    def keeps_dead_letter(self) -> bool:
        """Whether an exhausted job is kept for an operator (OJS dead letter §4.1).

        It is, unless the policy is `discard`. The documents disagree about the default: core §6.1
        keeps every discarded job in the dead letter, the retry document keeps none. Losing fewer
        jobs is the better surprise.
        """
        return self.on_exhaustion == "dead_letter" or not self.explicit_exhaustion

    @classmethod
    def parse(cls, document: dict[str, Any] | None) -> RetryPolicy:
        """Merge a partial document with the default policy and validate it (OJS retry §8.1, §11.1).

        A null counts as absent. Unknown keys are ignored: a newer client may send them.
        The standard spelling of a key wins over its aliases.

        Raises:
            InvalidRetryPolicy: a rule is broken; its `field` names the offending key.
        """
        if document is None:
            return DEFAULT
        if not isinstance(document, dict):
            raise InvalidRetryPolicy("retry", "must be an object")
        given: dict[str, Any] = {}
        spelled: dict[str, str] = {}
        for key, rule in READERS.items():
            value = document.get(key)
            if value is not None:
                read = rule.check(value, key)
                given.setdefault(rule.field, read)
                spelled.setdefault(rule.field, key)
        if not given:
            return DEFAULT
        _settle_max_interval(given, spelled)
        return cls(**given, explicit_exhaustion="on_exhaustion" in given)

    @classmethod
    def new(cls, document: dict[str, Any] | None) -> RetryPolicy:
        """Parse a policy that a client sends. Those that are stored already have no such limits.

        Raises:
            InvalidRetryPolicy: as in `parse`, or its `non_retryable_errors` are too many or too
                long.
        """
        policy = cls.parse(document)
        errors = policy.non_retryable_errors
        if len(errors) > MOST_ERRORS or any(len(entry) > LONGEST_ERROR for entry in errors):
            raise InvalidRetryPolicy(
                next(key for key in ERRORS if (document or {}).get(key) is not None),
                f"may have at most {MOST_ERRORS} entries, of {LONGEST_ERROR} characters each",
            )
        return policy

    def delay(self, retry_number: int, random: Callable[[], float] = uniform) -> timedelta:
        """How long to wait before retry `retry_number`; attempt 2 is retry 1 (OJS retry §3, §5).

        Args:
            random: draws uniformly from [0, 1); used only with jitter.
        """
        longest = self.max_interval.total_seconds()
        seconds = min(self._backoff(max(retry_number, 1)), longest)
        if self.jitter:
            # Capped again after jitter, which may add 50% (§5.3); never negative (§5.1).
            seconds = max(0.0, min(seconds * (0.5 + random()), longest))
        return timedelta(seconds=seconds)

    def is_retryable(self, error_type: str, code: str = "") -> bool:
        """Whether no entry of `non_retryable_errors` names this failure (OJS retry §6.2).

        Either name may match: clients of the HTTP binding send a `code` where this document has a
        `type`.
        """
        return not any(
            _matches(entry, name)
            for entry in self.non_retryable_errors
            for name in (error_type, code)
        )

    def _backoff(self, retry_number: int) -> float:
        try:
            growth = GROWTH[self.strategy](retry_number, self.backoff_coefficient)
        except OverflowError:
            return math.inf
        return self.initial_interval.total_seconds() * growth


def in_force(document: dict[str, Any]) -> dict[str, Any]:
    """Return a valid policy as it is applied and shown: without the keys that another spelling of
    the same overrules, and with at least one attempt, which public workers insist on.
    """
    counted: dict[str, str] = {}
    for key, rule in READERS.items():
        if document.get(key) is not None:
            counted.setdefault(rule.field, key)
    found = {
        key: value
        for key, value in document.items()
        if key not in READERS or counted.get(READERS[key].field, key) == key
    }
    limit = counted.get("max_attempts")
    return found if limit is None else found | {limit: max(found[limit], 1)}


def _matches(entry: str, name: str) -> bool:
    return name == entry or (entry.endswith(".*") and name.startswith(entry[:-1]))


def _settle_max_interval(given: dict[str, Any], spelled: dict[str, str]) -> None:
    """Check `max_interval` against the effective `initial_interval`, or supply it (§11.1)."""
    initial = given.get("initial_interval", DEFAULT.initial_interval)
    if "max_interval" not in given:
        # A client that sets ten minutes without a maximum does not want the default of five.
        given["max_interval"] = max(initial, DEFAULT.max_interval)
    elif given["max_interval"] < initial:
        problem = f"must be at least initial_interval, which is {format_duration(initial)}"
        raise InvalidRetryPolicy(spelled["max_interval"], problem)


# Each validates one value by its exact type, because `true` is an integer for isinstance() but not
# in JSON, and returns the value that the policy keeps.


class Rule(Member[T]):
    """A member of a policy, which raises `InvalidRetryPolicy`.

    Args:
        field: the policy's field, if its name differs from the member's.
    """

    def __init__(self, about: str = "", *, field: str = "", **words: Any) -> None:
        super().__init__(about, **words)
        self.field = field

    def __set_name__(self, owner: type, name: str) -> None:
        super().__set_name__(owner, name)
        self.field = self.field or name


class Attempts(Rule[int]):
    def check(self, value: Any, place: str) -> int:
        if type(value) is not int:
            raise InvalidRetryPolicy(place, "must be an integer")
        if value < 0:
            raise InvalidRetryPolicy(place, "must not be negative")
        if value > MAX_ATTEMPTS:
            raise InvalidRetryPolicy(place, f"must be at most {MAX_ATTEMPTS}")
        return value

    def rules(self) -> Schema:
        return {"type": "integer", "minimum": 0, "maximum": MAX_ATTEMPTS}


class Coefficient(Rule[float]):
    def check(self, value: Any, place: str) -> float:
        if type(value) not in (int, float):
            raise InvalidRetryPolicy(place, "must be a number")
        if value < 1:
            raise InvalidRetryPolicy(place, "must be at least 1.0")
        # Written this way, the comparison also refuses NaN.
        if not value <= MAX_COEFFICIENT:
            raise InvalidRetryPolicy(place, f"must be a number of at most {MAX_COEFFICIENT}")
        return float(value)

    def rules(self) -> Schema:
        return {"type": "number", "minimum": 1, "maximum": MAX_COEFFICIENT}


class Interval(Rule[timedelta]):
    def check(self, value: Any, place: str) -> timedelta:
        if type(value) is not str:
            raise InvalidRetryPolicy(
                place, "must be a string with an ISO 8601 duration, such as PT30S"
            )
        text = f"PT{value[:-1]}S" if SHORT_FORM.fullmatch(value) else value
        try:
            interval = parse_duration(text)
        except ValueError as error:
            raise InvalidRetryPolicy(place, f"is not a valid duration: {error}") from None
        return _positive(place, interval)

    def rules(self) -> Schema:
        return dict(DURATION)


class Milliseconds(Rule[timedelta]):
    def check(self, value: Any, place: str) -> timedelta:
        if type(value) is not int:
            raise InvalidRetryPolicy(place, "must be an integer number of milliseconds")
        # Compared as integers, because the value may be too large for a timedelta.
        if abs(value) > LONGEST // timedelta(milliseconds=1):
            raise InvalidRetryPolicy(place, "must be at most 100 years")
        return _positive(place, timedelta(milliseconds=value))

    def rules(self) -> Schema:
        return {"type": "integer", "minimum": 1, "maximum": LONGEST // timedelta(milliseconds=1)}


def _positive(place: str, interval: timedelta) -> timedelta:
    if interval <= timedelta(0):
        raise InvalidRetryPolicy(place, "must be greater than zero")
    return interval


class Flag(Rule[bool]):
    def check(self, value: Any, place: str) -> bool:
        if type(value) is not bool:
            raise InvalidRetryPolicy(place, "must be true or false")
        return value

    def rules(self) -> Schema:
        return {"type": "boolean"}


class ErrorTypes(Rule[tuple[str, ...]]):
    def check(self, value: Any, place: str) -> tuple[str, ...]:
        if type(value) is not list or not all(type(entry) is str and entry for entry in value):
            raise InvalidRetryPolicy(place, "must be an array of non-empty strings")
        return tuple(value)

    def rules(self) -> Schema:
        entry = {"type": "string", "minLength": 1, "maxLength": LONGEST_ERROR}
        return {"type": "array", "items": entry, "maxItems": MOST_ERRORS}


class OneOf(Rule[str]):
    def __init__(self, choices: dict[str, str], about: str = "", **words: Any) -> None:
        super().__init__(about, **words)
        self.choices = choices

    def check(self, value: Any, place: str) -> str:
        if type(value) is not str or value not in self.choices:
            raise InvalidRetryPolicy(place, f"must be one of {', '.join(self.choices)}")
        return self.choices[value]

    def rules(self) -> Schema:
        return {"type": "string", "enum": list(self.choices)}


class Policy(Members, component="RetryPolicy", about="OJS retry §2. All members are optional."):
    max_attempts = Attempts("All executions, including the first.")
    initial_interval = Interval()
    initial_interval_ms = Milliseconds(field="initial_interval", hidden=True)
    backoff_coefficient = Coefficient()
    max_interval = Interval()
    max_interval_ms = Milliseconds(field="max_interval", hidden=True)
    jitter = Flag()
    strategy = OneOf(STRATEGIES)
    non_retryable_errors = ErrorTypes()
    on_exhaustion = OneOf(EXHAUSTIONS)


# Every key that a client may send, the standard spelling before its aliases: milliseconds come
# from the Go SDK, camelCase from the JavaScript SDK's workflow steps and from gRPC.
READERS: dict[str, Rule[Any]] = {
    "max_attempts": Policy.max_attempts,
    "maxAttempts": Policy.max_attempts,
    "initial_interval": Policy.initial_interval,
    "initialInterval": Policy.initial_interval,
    "initial_interval_ms": Policy.initial_interval_ms,
    "initial_delay_ms": Policy.initial_interval_ms,
    "backoff_coefficient": Policy.backoff_coefficient,
    "backoffCoefficient": Policy.backoff_coefficient,
    "max_interval": Policy.max_interval,
    "maxInterval": Policy.max_interval,
    "max_interval_ms": Policy.max_interval_ms,
    "jitter": Policy.jitter,
    "non_retryable_errors": Policy.non_retryable_errors,
    "nonRetryableErrors": Policy.non_retryable_errors,
    "on_exhaustion": Policy.on_exhaustion,
    "onExhaustion": Policy.on_exhaustion,
    "backoff_strategy": Policy.strategy,
    "backoff_type": Policy.strategy,
    "strategy": Policy.strategy,
}


def refuse_misspelt(policy: Mapping[str, Any], path: str = "retry") -> None:
    """Refuse a policy with a key that no policy has.

    Not that of a client's job, which may be newer than this server: in the site's own code, and
    from an operator, it is a misspelling.

    Raises:
        InvalidRequest: `details["field"]` names the key.
    """
    unknown = sorted(str(key) for key in policy.keys() - READERS.keys())
    if unknown:
        name = unknown[0][:80]
        raise refuse(
            f"{path}.{name}", f"There is no {name!r} in a policy; there are {', '.join(READERS)}."
        )


DEFAULT = RetryPolicy()
"""The policy of a job without one (§8); shared, because it is immutable."""


def by_dead_letter(jobs: Iterable[Retried]) -> Iterator[tuple[bool, list[UUID]]]:
    """Divide exhausted jobs by whether they are kept, for one UPDATE of each kind."""
    kept = {job.id: RetryPolicy.parse(job.retry).keeps_dead_letter for job in jobs}
    for dead_letter in (True, False):
        ids = [job_id for job_id, is_kept in kept.items() if is_kept is dead_letter]
        if ids:
            yield dead_letter, ids
