"""Rate limit policies: what a document may ask for, and the arithmetic of what it allows.

Pure functions over a remembered state; `jobs.engine.limits` holds the lock around them.

* `rate`: a sliding window, kept in 60 slices of the period. A slice counts until all of it has
  left the window, so that no period anywhere holds more starts than the limit, and a start may be
  up to a sixtieth of the period late. `"window": "fixed"` counts within periods of the clock.
* `throttle`: a token bucket whose tokens come evenly, one each period/limit. It holds one, or
  `burst` of them.
* `concurrency`: counted by whoever asks; nothing is remembered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from . import fields
from .durations import format_duration, parse_duration
from .fields import Document, refuse

KEY = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._:-]*")
ON_LIMIT = ("wait", "reschedule", "drop")
WINDOWS = ("sliding", "fixed")
SLICES = 60
MOST = 2**31 - 1
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHORTEST = timedelta(milliseconds=1)
LONGEST = timedelta(days=366)


def job_policy(value: Any, queue: str, path: str = "rate_limit") -> dict[str, Any]:
    """Check a job's `rate_limit`; its periods come back in ISO 8601 (OJS rate limiting §6).

    The short form `{"max_per_second": n}` limits the jobs of the queue that say so.

    Raises:
        InvalidRequest: a member breaks its rule.
    """
    document = fields.mapping({path: value}, path) or {}
    place = f"{path}.max_per_second"
    each_second = fields.integer({place: document.get("max_per_second")}, place, most=MOST)
    if each_second is not None:
        pace = {"limit": each_second, "period": "PT1S"}
        document = {"key": f"queue:{queue}", "rate": pace} | document
    if document.get("key") is None:
        raise fields.missing(f"{path}.key")
    key = fields.text({f"{path}.key": document["key"]}, f"{path}.key", pattern=KEY, longest=255)
    return {"key": key} | _limits(document, path)


def queue_policy(value: Any, path: str) -> dict[str, Any]:
    """Check a queue's rate limit: `{limit, period}`, or `rate`, `throttle`, `concurrency`."""
    document = fields.mapping({path: value}, path) or {}
    if "limit" in document or "period" in document:
        document = {"rate": document}
    return _limits(document, path)


def _limits(document: Document, path: str) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    place = f"{path}.concurrency"
    concurrency = fields.integer({place: document.get("concurrency")}, place, most=MOST)
    if concurrency is not None:
        policy["concurrency"] = concurrency
    for name in ("rate", "throttle"):
        if document.get(name) is not None:
            policy[name] = _pace(document[name], f"{path}.{name}", name)
    action = fields.text({f"{path}.on_limit": document.get("on_limit")}, f"{path}.on_limit")
    if action is not None:
        if action not in ON_LIMIT:
            raise refuse(
                f"{path}.on_limit", f"'{path}.on_limit' must be one of {', '.join(ON_LIMIT)}."
            )
        policy["on_limit"] = action
    return policy


def _pace(value: Any, path: str, kind: str) -> dict[str, Any]:
    document = fields.mapping({path: value}, path) or {}
    limit = fields.integer({f"{path}.limit": document.get("limit")}, f"{path}.limit", most=MOST)
    if limit is None:
        raise fields.missing(f"{path}.limit")
    if document.get("period") is None:
        raise fields.missing(f"{path}.period")
    period = fields.period({f"{path}.period": document["period"]}, f"{path}.period")
    if period is None or not SHORTEST <= period <= LONGEST:
        raise refuse(f"{path}.period", f"'{path}.period' must be 1 ms to 366 days.")
    pace: dict[str, Any] = {"limit": limit, "period": format_duration(period)}
    if kind == "rate" and document.get("window") is not None:
        window = fields.text({f"{path}.window": document["window"]}, f"{path}.window")
        if window not in WINDOWS:
            raise refuse(f"{path}.window", f"'{path}.window' must be 'sliding' or 'fixed'.")
        pace["window"] = window
    if kind == "throttle" and document.get("burst") is not None:
        place = f"{path}.burst"
        pace["burst"] = fields.integer({place: document["burst"]}, place, least=1, most=MOST)
    return pace


@dataclass(slots=True)
class Room:
    """How many jobs may start now, and what stands in the way of one more."""

    jobs: int
    strategy: str = ""
    """`concurrency`, `rate`, `throttle` or `held`: the narrowest."""
    limit: int = 0
    current: int = 0
    again_at: datetime | None = None
    """When the narrowest will let one more through; None if only a job's end can."""


@dataclass(slots=True)
class Memory:
    """What a partition remembers of past starts."""

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
    """When the window has nothing in it any more, if nothing else starts."""
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
    # A full bucket holds `burst` tokens; each interval of debt is one that is not there.
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
    """When the whole of a slice has left the window."""
    width = _width(rate)
    slices = 1 if rate.get("window") == "fixed" else SLICES + 1
    return EPOCH + timedelta(microseconds=(number + slices) * width)


def _within(rate: dict[str, Any], starts: list[list[int]], now: datetime) -> list[list[int]]:
    return [list(slice) for slice in starts if _leaves(rate, slice[0]) > now]
