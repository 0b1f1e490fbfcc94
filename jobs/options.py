"""Types of the Python API: the options of a job, and the values that it returns.

They are for type checkers and editors; the rules are checked when a job is enqueued.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Literal, TypeAlias, TypedDict
from uuid import UUID

from .spec.fields import refuse

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
"""Arguments and results of a job, once they have been stored."""

JobState = Literal[
    "pending",
    "scheduled",
    "available",
    "active",
    "completed",
    "retryable",
    "cancelled",
    "discarded",
]
WorkflowStateName = Literal[
    "pending", "running", "completed", "failed", "cancelled", "compensating", "compensated"
]
OverlapPolicyName = Literal["skip", "allow", "cancel_previous", "enqueue"]
Backoff = Literal["none", "constant", "linear", "exponential", "polynomial"]
Exhaustion = Literal["discard", "dead_letter"]

Period: TypeAlias = timedelta | float
"""A timedelta, or seconds."""
Moment: TypeAlias = datetime | timedelta | str
"""A moment, a timedelta from now, or a timestamp."""


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry policy (OJS retry §2): `Retry(max_attempts=8, backoff="exponential", jitter=True)`.

    Fields that are not given have the server's defaults.
    """

    max_attempts: int | None = None
    """All executions, including the first."""
    backoff: Backoff | None = None
    """How the interval grows from retry to retry."""
    initial_interval: Period | None = None
    max_interval: Period | None = None
    backoff_coefficient: float | None = None
    jitter: bool | None = None
    """Randomize each interval by half."""
    non_retryable_errors: Sequence[str] | None = None
    """Error types after which there is no retry: `"ValueError"`, `"shop.errors.*"`."""
    on_exhaustion: Exhaustion | None = None
    """What happens to the job after the last attempt; by default, the dead letter keeps it."""

    def policy(self) -> dict[str, object]:
        """Return the policy as a dictionary, in the words of OJS retry §2.

        Raises:
            InvalidRequest: an interval is not a duration.
        """
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        policy: dict[str, object] = {
            name: value for name, value in given.items() if value is not None
        }
        if "backoff" in policy:
            policy["strategy"] = policy.pop("backoff")
        for name in ("initial_interval", "max_interval"):
            seconds = policy.get(name)
            if isinstance(seconds, int | float) and not isinstance(seconds, bool):
                policy[name] = _interval(name, seconds)
        errors = self.non_retryable_errors
        if isinstance(errors, Iterable) and not isinstance(errors, str):
            policy["non_retryable_errors"] = list(errors)
        return policy


def _interval(name: str, seconds: float) -> timedelta:
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        place = f"retry.{name}"
        raise refuse(place, f"The '{place}' field is not a duration: {seconds!r}.") from None


RetryPolicy: TypeAlias = Retry | Mapping[str, object]
"""A `Retry`, or a dictionary in the words of OJS retry §2; its intervals may be timedeltas."""


class StepOptions(TypedDict, total=False):
    """The options of a job in a workflow or a schedule; see `jobs.job()`.

    An option that is None is not set.
    """

    queue: str | None
    priority: int | None
    scheduled_at: Moment | None
    expires_at: Moment | None
    retry: RetryPolicy | None
    max_attempts: int | None
    unique: Mapping[str, object] | None
    meta: Mapping[str, object] | None
    tags: Sequence[str] | None
    timeout: Period | None
    visibility_timeout: Period | None
    total_timeout: Period | None
    enqueue_ttl: Period | None
    grace_period: Period | None
    heartbeat_timeout: Period | None
    schema: str | None
    rate_limit: Mapping[str, object] | None
    version: str | int | None


class JobOptions(StepOptions, total=False):
    """The options of a job; see `jobs.enqueue()`. An option that is None is not set."""

    pending: bool | None
    id: UUID | str | None
