"""AGQ's keys, computed from our tables (AGQ §2.3, §3.4, §4.3, §9.2).

`worker:<id>:alive|metadata|stats` and `job:<id>:worker` are strings, `capability:<tool>:workers` is
a set, and `queue:<name>` a list of the jobs that are available. As in Redis, empty sets and empty
lists do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from typing import Any

from jobs.http.authentication import ANYBODY, Caller
from jobs.http.renderers import dumps
from jobs.spec.identifiers import parse_uuid
from jobs.spec.validation import QUEUE_PATTERN
from jobs.store import clock
from workers.fleet import directory

from . import PROTOCOL, glob
from .resp import Failed, Members

STATS_TTL = timedelta(seconds=120)
NO_KEY, NO_EXPIRY = -2, -1
"""TTL of a key that does not exist, and of one that does not expire."""
PARTS = ("alive", "metadata", "stats")
STRING, SET, LIST = "string", "set", "list"
WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
PAGE = 1000
"""Default number of keys per SCAN: each call reads the whole keyspace."""
LAST_PLACE = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Held:
    """The value of a key."""

    kind: str
    value: str = ""
    """Value of a string."""
    left: timedelta | None = None
    """Remaining time to live; None if it does not expire."""


def _worker_part(worker_id: str, part: str, caller: Caller) -> Held | None:
    if part not in PARTS:
        return None
    worker = directory.find(worker_id, caller)
    if worker is None or (part != "alive" and worker.protocol != PROTOCOL.name):
        return None
    if part == "metadata":
        # Until it unregisters; a dead worker's remains, for diagnosis (§5.3).
        gone = worker.left_at is not None or worker.details is None
        return None if gone else Held(STRING, dumps(worker.details).decode())
    if part == "alive":
        if not directory.is_active(worker):
            return None
        beat = str(int(worker.last_heartbeat_at.timestamp()))
        return _until(beat, worker.last_heartbeat_at + worker.heartbeat_timeout)
    if worker.left_at or worker.stats is None or worker.stats_at is None:
        return None
    return _until(dumps(worker.stats).decode(), worker.stats_at + STATS_TTL)


def _until(value: str, end: Any) -> Held | None:
    left = end - clock.now()
    return Held(STRING, value, left) if left > timedelta(0) else None


def _claim(text: str, caller: Caller) -> Held | None:
    job_id = parse_uuid(text)
    job = directory.job(job_id, caller) if job_id else None
    if job is None or not job.reserved_by or job.reserved_until is None:
        return None
    left = max(timedelta(0), job.reserved_until - clock.now())
    return Held(STRING, directory.id_of(job.reserved_by, caller), left)


def find(key: str, caller: Caller = ANYBODY) -> Held | None:
    """The value of a key; None if there is no such key."""
    space, _, rest = key.partition(":")
    name, _, part = rest.rpartition(":")
    if space == "worker":
        return _worker_part(name, part, caller)
    if space == "job":
        return _claim(name, caller) if part == "worker" else None
    if space == "capability":
        return Held(SET) if _members(key, caller) else None
    if space == "queue" and QUEUE_PATTERN.fullmatch(rest):
        return Held(LIST) if directory.available_in(rest, caller.project, most=1) else None
    return None


def _of_kind(key: str, kind: str, caller: Caller) -> Held | None:
    """
    Raises:
        Failed: it exists, but has another type.
    """
    held = find(key, caller)
    if held is not None and held.kind != kind:
        raise Failed(WRONG_TYPE)
    return held


def get(key: str, caller: Caller = ANYBODY) -> str | None:
    """
    Raises:
        Failed: the key holds a set or a list.
    """
    held = _of_kind(key, STRING, caller)
    return None if held is None else held.value


def type_of(key: str, caller: Caller = ANYBODY) -> str:
    held = find(key, caller)
    return "none" if held is None else held.kind


def time_to_live(key: str, caller: Caller, unit: timedelta) -> int:
    """The time a key has left, in units rounded up, so that no existing key has 0 left."""
    held = find(key, caller)
    if held is None:
        return NO_KEY
    return NO_EXPIRY if held.left is None else -(-held.left // unit)


def length(key: str, caller: Caller = ANYBODY) -> int:
    """LLEN queue:<name>: the number of available jobs; 0 if there is no such key.

    Also of a paused queue: it shows what waits there, as do the other protocols.

    Raises:
        Failed: it is not a list.
    """
    if _of_kind(key, LIST, caller) is None:
        return 0
    return directory.available_in(key.removeprefix("queue:"), caller.project)


def members(key: str, caller: Caller = ANYBODY) -> Members:
    """SMEMBERS capability:<tool>:workers: the active workers that have it.

    Raises:
        Failed: it is not a set.
    """
    return Members() if _of_kind(key, SET, caller) is None else _members(key, caller)


def _members(key: str, caller: Caller) -> Members:
    if not (key.startswith("capability:") and key.endswith(":workers")):
        return Members()
    tool = key.removeprefix("capability:").removesuffix(":workers")
    return Members(directory.active(tool, caller)) if tool else Members()


# All keys


def _workers(caller: Caller) -> Iterator[str]:
    for worker in directory.active(caller=caller):
        yield f"worker:{worker}:alive"
    for worker in directory.registered(PROTOCOL.name, caller):
        yield f"worker:{worker}:metadata"
    for worker in directory.measured(PROTOCOL.name, STATS_TTL, caller):
        yield f"worker:{worker}:stats"


def _capabilities(caller: Caller) -> Iterator[str]:
    return (f"capability:{word}:workers" for word in directory.capabilities(caller))


def _queues(caller: Caller) -> Iterator[str]:
    return (f"queue:{name}" for name in directory.queues_with_work(caller.project))


def _claims(caller: Caller) -> Iterator[str]:
    return (f"job:{job_id}:worker" for job_id in directory.claimed(caller))


SPACES: tuple[tuple[bytes, str, Callable[[Caller], Iterable[str]]], ...] = (
    (b"worker:", STRING, _workers),
    (b"capability:", SET, _capabilities),
    (b"queue:", LIST, _queues),
    (b"job:", STRING, _claims),
)
"""Spaces of keys: prefix, function for the value of a key, and function that lists the keys, at
most ten thousand of each kind."""


def matching(pattern: bytes, caller: Caller = ANYBODY, kind: str = "") -> list[str]:
    """KEYS: the keys that match a pattern; only those of `kind` if it is given.

    Raises:
        Failed: the pattern is too long.
    """
    try:
        matches = glob.matcher(pattern)
    except ValueError as problem:
        raise Failed(f"ERR {problem}") from None
    begins = glob.literal_beginning(pattern)
    found: list[str] = []
    for space, held, all_keys in SPACES:
        if kind in ("", held) and (space.startswith(begins) or begins.startswith(space)):
            found += [key for key in all_keys(caller) if matches(key.encode())]
    return found


def scan(
    cursor: int, pattern: bytes, count: int, caller: Caller = ANYBODY, kind: str = ""
) -> tuple[int, list[str]]:
    """SCAN: one page of the keys, and the cursor of the next; 0 at the end.

    Keys are ordered by a hash of their names. So a cursor is valid on every connection and server,
    and a key that exists throughout the scan is found, whichever keys are added or removed.

    Raises:
        Failed: the pattern is too long.
    """
    keys = sorted((_place(key), key) for key in matching(pattern, caller, kind))
    rest = [found for found in keys if found[0] > cursor]
    page = rest[: max(count, PAGE)]
    # Includes all keys with the same hash as the last: the next page begins after it.
    page += [found for found in rest[len(page) :] if found[0] == page[-1][0]]
    following = page[-1][0] if len(page) < len(rest) else 0
    return following, [key for _, key in page]


def _place(key: str) -> int:
    digest = blake2b(key.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % LAST_PLACE + 1
