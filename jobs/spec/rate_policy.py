"""Rate limit policies: their validation, and the arithmetic of what they allow.

Pure functions over a stored state; `jobs.engine.limits` locks around them.

* `rate`: a sliding window, divided into 60 slices of the period. A slice counts until all of it
  has left the window, so no period contains more starts than the limit, and a start may be
  delayed by up to a sixtieth of the period. `"window": "fixed"` counts within periods of the clock.
* `throttle`: a token bucket that gets one token every period/limit. It holds one token, or `burst`
  of them.
* `concurrency`: counted by the caller; nothing is stored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from ..errors import Unsupported
from .durations import format_duration, parse_duration
from .fields import Document, missing, refuse
from .members import (
    Choice,
    Duration,
    Integer,
    Members,
    Object,
    Schema,
    Text,
    seconds_schema,
    words,
)

KEY = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]*")
LONGEST_KEY = 255
"""Of a stored key."""
ON_LIMIT = words("wait", "reschedule", "drop")
WINDOWS = words("sliding", "fixed")
SLICES = 60
MOST = 2**31 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHORTEST = timedelta(milliseconds=1)
LONGEST = timedelta(days=366)
WHOLE = Object()


class PaceLength(Duration):
    def check(self, value: Any, place: str) -> timedelta:
        length = super().check(value, place)
        if not SHORTEST <= length <= LONGEST:
            raise refuse(place, f"'{place}' must be 1 ms to 366 days.")
        return length

    def rules(self) -> Schema:
        return seconds_schema(least=1, most=int(LONGEST.total_seconds()))


class Pace(Members):
    """A number of starts in a period."""

    limit = Integer(most=MOST).required()
    period = PaceLength("Seconds, or ISO 8601: 1 ms to 366 days.").required()


class Rate(Pace, component="Rate"):
    window = Choice(WINDOWS, sentence="'{name}' must be 'sliding' or 'fixed'.")


class Throttle(Pace, component="Throttle"):
    burst = Integer(least=1, most=MOST)


class Limits(Members):
    concurrency = Integer(most=MOST)
    rate = Object(of=Rate)
    throttle = Object(of=Throttle)
    on_limit = Choice(ON_LIMIT, sentence="'{name}' must be one of {choices}.")


class JobLimits(
    Limits,
    component="JobRateLimit",
    about="OJS rate limiting §6.",
    either=("key", "max_per_second"),
):
    key = Text(pattern=KEY)
    max_per_second = Integer("Limits the jobs of this queue that have this member.", most=MOST)
    scope = Choice(
        words("tenant", "global"),
        "`global`: of jobs without a tenant. Those of a tenant have keys of their own.",
        sentence="'{name}' must be one of {choices}.",
    )
    retry_priority = Choice(
        words("equal", "prefer_retry", "prefer_new"),
        "`equal`: jobs that are tried again and new ones take the same turns. Nothing else is "
        "served (extension interactions §9).",
        sentence="'{name}' must be one of {choices}.",
        unsaid=["prefer_retry", "prefer_new"],
    )


class QueueLimits(
    Limits,
    component="RateLimits",
    closed=True,
    about="Of a queue. `limit` and `period` alone are a `rate`.",
):
    limit = Integer(most=MOST)
    period = PaceLength("Seconds, or ISO 8601: 1 ms to 366 days.")
    window = Choice(WINDOWS, sentence="'{name}' must be 'sliding' or 'fixed'.")


def job_policy(value: Any, queue: str, path: str = "rate_limit") -> dict[str, Any]:
    """Validate a job's `rate_limit`; returns its periods in ISO 8601 (OJS rate limiting §6).

    The short form `{"max_per_second": n}` limits the jobs of the queue that have it.

    Raises:
        InvalidRequest: a member is invalid.
    """
    document = WHOLE.check(value, path)
    each_second = JobLimits.max_per_second.under(document, path)
    if each_second is not None:
        pace = {"limit": each_second, "period": "PT1S"}
        document = {"key": key_of_queue(queue), "rate": pace} | document
    key = JobLimits.key.under(document, path)
    if key is None:
        raise missing(f"{path}.key")
    scope = JobLimits.scope.under(document, path)
    return {"key": key} | ({"scope": scope} if scope else {}) | _limits(document, path)


def refuse_unserved(value: Any, path: str = "rate_limit") -> None:
    """Refuse an order of retries and new jobs that would not be kept.

    Raises:
        InvalidRequest: there is no such order.
        Unsupported: this server does not have it.
    """
    order = JobLimits.retry_priority.under(WHOLE.check(value, path), path)
    if order not in (None, "equal"):
        place = f"{path}.{JobLimits.retry_priority.name}"
        raise Unsupported(
            f"Retries and new jobs have the same priority; '{place}' cannot be {order!r}.",
            field=place,
            supported=["equal"],
        )


def refuse_misspelt(
    value: Any, path: str = "rate_limit", *, form: type[Members] = JobLimits
) -> None:
    """Refuse a `rate_limit` that has a member which no policy has.

    Not that of a client's job, which may be newer than this server: in the site's own code, and
    from an operator, it is a misspelling.

    Raises:
        InvalidRequest: `details["field"]` names the member.
    """
    parts: tuple[tuple[Any, type[Members], str], ...] = ((value, form, path),)
    if isinstance(value, dict):
        parts += ((value.get("rate"), Rate, f"{path}.rate"),)
        parts += ((value.get("throttle"), Throttle, f"{path}.throttle"),)
    for document, members, place in parts:
        for name in document if isinstance(document, dict) else ():
            if name not in members.names:
                known = ", ".join(members.members)
                raise refuse(
                    f"{place}.{name}", f"There is no {name!r} in '{place}'; there are {known}."
                )


def key_of_queue(queue: str) -> str:
    """Return the key of jobs whose `rate_limit` names none."""
    return f"queue:{queue}"


def key_moved(key: str, sent: Any, project: str, queue: str) -> str:
    """Return the key of a stored job that is put in another queue.

    Args:
        key: the one that it has.
        sent: its `rate_limit`, as it was sent.
    """
    if type(sent) is not dict or sent.get("key") is not None:
        return key
    moved = key_of_queue(queue)
    # No client's key has an "@".
    return key_of_project(moved, project) if "@" in key else moved


def key_of_project(key: str, project: str) -> str:
    """Return the key by which a project's jobs are limited: no other project has it."""
    whole = f"{project}@{key}"
    if len(whole) <= LONGEST_KEY:
        return whole
    return f"{project}@{sha256(key.encode()).hexdigest()}"


def queue_policy(value: Any, path: str) -> dict[str, Any]:
    """Validate a queue's rate limit: `{limit, period}`, or `rate`, `throttle`, `concurrency`.

    Raises:
        InvalidRequest: a member is invalid, there is no such member, or `limit` and `period`
            contradict `rate`.
    """
    document = WHOLE.check(value, path)
    refuse_misspelt(document, path, form=QueueLimits)
    short = {name: document[name] for name in Rate.names if document.get(name) is not None}
    if short:
        if document.get("rate") not in (None, short):
            raise refuse(f"{path}.rate", f"'{path}.rate' is not the same as 'limit' and 'period'.")
        document = document | {"rate": short}
    return _limits(document, path)


def _limits(document: Document, path: str) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    concurrency = Limits.concurrency.under(document, path)
    if concurrency is not None:
        policy["concurrency"] = concurrency
    rate = Limits.rate.under(document, path)
    if rate is not None:
        place = f"{path}.rate"
        policy["rate"] = _pace(rate, place)
        window = Rate.window.under(rate, place)
        if window is not None:
            policy["rate"]["window"] = window
    throttle = Limits.throttle.under(document, path)
    if throttle is not None:
        place = f"{path}.throttle"
        policy["throttle"] = _pace(throttle, place)
        burst = Throttle.burst.under(throttle, place)
        if burst is not None:
            policy["throttle"]["burst"] = burst
    action = Limits.on_limit.under(document, path)
    if action is not None:
        policy["on_limit"] = action
    return policy


def _pace(document: Document, path: str) -> dict[str, Any]:
    limit = Pace.limit.under(document, path)
    return {"limit": limit, "period": format_duration(Pace.period.under(document, path))}


@dataclass(slots=True)
class Room:
    """How many jobs may start now, and what prevents one more."""

    jobs: int
    strategy: str = ""
    """The narrowest limit: `concurrency`, `rate`, `throttle` or `held`."""
    limit: int = 0
    current: int = 0
    again_at: datetime | None = None
    """When this limit allows another start; None if only the end of a job does."""


@dataclass(slots=True)
class Memory:
    """A partition's record of past starts."""

    starts: list[list[int]] = field(default_factory=list)
    next_at: datetime | None = None


def room(
    policy: dict[str, Any], memory: Memory, active: int, now: datetime, held_until: datetime | None
) -> Room:
    """Return how many of the partition's jobs may start at `now`, by its narrowest limit."""
    narrowest = Room(MOST)
    if held_until is not None and held_until > now:
        return Room(0, "held", again_at=held_until)
    concurrency = policy.get("concurrency")
    if concurrency is not None:
        narrowest = Room(max(0, concurrency - active), "concurrency", concurrency, active)
    for found in (
        _rate_room(policy.get("rate"), memory, now),
        _throttle_room(policy.get("throttle"), memory, now),
    ):
        if found is not None and found.jobs < narrowest.jobs:
            narrowest = found
    return narrowest


def remember(policy: dict[str, Any], memory: Memory, count: int, now: datetime) -> None:
    """Record that `count` jobs started at `now`."""
    rate, throttle = policy.get("rate"), policy.get("throttle")
    if rate is not None:
        width = _width(rate)
        number = _number(now, width)
        memory.starts = _within(rate, memory.starts, now)
        if memory.starts and memory.starts[-1][0] >= number:
            memory.starts[-1][1] += count
        else:
            memory.starts.append([number, count])
    if throttle is not None and throttle["limit"]:
        begin = max(memory.next_at or now, now)
        memory.next_at = begin + count * _interval(throttle)


def started_within(rate: dict[str, Any], starts: list[list[int]], now: datetime) -> int:
    return sum(count for _, count in _within(rate, starts, now))


def empty_at(rate: dict[str, Any], starts: list[list[int]], now: datetime) -> datetime:
    """When the window will be empty, if nothing else starts."""
    within = _within(rate, starts, now)
    return _leaves(rate, within[-1][0]) if within else now


def _rate_room(rate: dict[str, Any] | None, memory: Memory, now: datetime) -> Room | None:
    if rate is None:
        return None
    within = _within(rate, memory.starts, now)
    current = sum(count for _, count in within)
    limit = rate["limit"]
    again = None
    if within:
        again = _leaves(rate, within[0][0])
    elif not limit:
        again = now + parse_duration(rate["period"])
    return Room(max(0, limit - current), "rate", limit, current, again)


def _throttle_room(throttle: dict[str, Any] | None, memory: Memory, now: datetime) -> Room | None:
    if throttle is None:
        return None
    limit = throttle["limit"]
    if not limit:
        return Room(0, "throttle", 0, 0, now + parse_duration(throttle["period"]))
    interval = _interval(throttle)
    burst = throttle.get("burst", 1)
    ahead = max(timedelta(0), (memory.next_at or now) - now)
    # A full bucket holds `burst` tokens; each interval of debt is one token less.
    tokens = max(0, burst - -(-ahead // interval))
    again = now + ahead - (burst - 1) * interval
    return Room(tokens, "throttle", limit, burst - tokens, max(again, now + interval / 1000))


def _interval(throttle: dict[str, Any]) -> timedelta:
    period, limit = parse_duration(throttle["period"]), int(throttle["limit"])
    return max(period / limit, timedelta(microseconds=1))


def _width(rate: dict[str, Any]) -> int:
    """The length of a slice in microseconds."""
    period = parse_duration(rate["period"]) // timedelta(microseconds=1)
    return period if rate.get("window") == "fixed" else max(1, -(-period // SLICES))


def _number(moment: datetime, width: int) -> int:
    return ((moment - EPOCH) // timedelta(microseconds=1)) // width


def _leaves(rate: dict[str, Any], number: int) -> datetime:
    """When a slice has left the window completely."""
    width = _width(rate)
    slices = 1 if rate.get("window") == "fixed" else SLICES + 1
    return EPOCH + timedelta(microseconds=(number + slices) * width)


def _within(rate: dict[str, Any], starts: list[list[int]], now: datetime) -> list[list[int]]:
    return [list(slice) for slice in starts if _leaves(rate, slice[0]) > now]
