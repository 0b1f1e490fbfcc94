"""Where the available jobs of a queue begin, while its claims would read too much to find them.

A claimed job leaves a dead entry where the queue begins in the index. Usually the next claim to
read it marks it, and no other reads it again. But as long as any transaction is open that might
still see the job available, it stays, and every claim reads all entries since that transaction
began: after ten minutes, a million. So once a claim has read `MANY` entries, this process looks
for the first available job now and then, and lets its claims begin there.

A job may still appear before that point: if its transaction took longer than `MARGIN` to commit, or
a claim was rolled back. It is found when the process next looks from the beginning of the queue,
which takes a twentieth of the time at most, and happens once a second at most.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from ..database import alias, run
from ..sql import Statement, load

MANY = 5_000
"""Entries that a claim may read before its first job. It reads as many in two milliseconds."""
MARGIN = timedelta(seconds=2)
"""How long before a look a job that it did not see may have been enqueued."""
STEP = 0.25
"""Seconds until a head is looked for again, from where it was."""
PAUSE = 1.0
"""Seconds, at least, until it is looked for from the beginning."""
SHARE = 20
"""The pause is at least so many times as long as such a look takes."""
KEPT = 1_000
"""Queues."""
BEGINNING = datetime.min.replace(tzinfo=UTC)

AVAILABLE = re.compile(
    r"SELECT (?P<columns>[\w, ]+)\n\s+FROM ojs_jobs_job\n\s+WHERE state = 'available'\n"
    r".*?LIMIT \S+(?:\n\s+FOR UPDATE SKIP LOCKED)?",
    re.DOTALL,
)
"""What finds the available jobs of one queue, in order."""


def in_ranges(statement: Statement) -> Statement:
    """Return the variant that begins at the head of each queue: the columns of `Head` in `wanted`.

    There is a condition for each range of priorities, so that each reads one range of the index.
    """

    def ranges(found: re.Match[str]) -> str:
        parts = [
            found[0].replace(
                "WHERE state = 'available'\n",
                f"WHERE state = 'available'\n           AND priority {compared} wanted.urgency\n"
                f"           AND enqueued_at >= wanted.{since}\n",
            )
            for compared, since in ((">", "above"), ("=", "level"), ("<", "below"))
        ]
        return "\n UNION ALL\n".join(
            f"SELECT {found['columns']} FROM ({part}) AS part" for part in parts
        )

    text, number = AVAILABLE.subn(ranges, statement)
    assert number == 1
    return Statement(text)


HEAD = in_ranges(load(__package__, "head"))


class Head(NamedTuple):
    """No job of the queue is available that was enqueued before these times."""

    urgency: int = 0
    """A priority."""
    level: datetime = BEGINNING
    """With this priority."""
    above: datetime = BEGINNING
    """With a higher one."""
    below: datetime = BEGINNING
    """With a lower one."""

    def moved(self, found: int | None, at: datetime | None, now: datetime) -> Head:
        """Return the head after a look from this one, at `now`.

        Args:
            found: the priority of the first available job; None if there is none.
            at: when that job was enqueued.
        """
        passed = now - MARGIN
        if found is None or at is None:
            return Head(self.urgency, passed, passed, passed)
        below = self.below if found <= self.urgency else min(self.level, self.above, self.below)
        return Head(found, min(at, passed), passed, below)


WHOLE = Head()


@dataclass
class _Known:
    """What this process knows of a queue."""

    head: Head = WHOLE
    looking: threading.Lock = field(default_factory=threading.Lock)
    step_at: float = 0.0
    """When to look again, on the monotonic clock."""
    whole_at: float = 0.0
    """When to look from the beginning."""


_known: dict[tuple[str, str], _Known] = {}
"""By database and queue."""


def notice(queues: Sequence[str]) -> None:
    """A claim from these queues has read many entries before its first job."""
    if len(_known) > KEPT:
        _known.clear()
    for queue in queues:
        _known.setdefault((alias(), queue), _Known())


def heads(queues: Sequence[str]) -> list[Head] | None:
    """Return where the queues begin; None if at their beginning, as usual."""
    if not _known:
        return None
    found = [_head(queue) for queue in queues]
    return found if any(head is not WHOLE for head in found) else None


def _head(queue: str) -> Head:
    key = alias(), queue
    known = _known.get(key)
    if known is None:
        return WHOLE
    # One thread looks; until it has, the others go on from where the queue began before.
    if time.monotonic() >= min(known.step_at, known.whole_at) and known.looking.acquire(False):
        try:
            _look(key, known)
        finally:
            known.looking.release()
    return known.head


def _look(key: tuple[str, str], known: _Known) -> None:
    began = time.monotonic()
    is_whole = began >= known.whole_at
    head = WHOLE if is_whole else known.head
    ((found, at, now, entries),) = run(HEAD, {"queue": key[1]} | head._asdict())
    ended = time.monotonic()
    if is_whole and entries <= MANY:
        _known.pop(key, None)
        known.head = WHOLE
        return
    known.head = head.moved(found, at, now)
    known.step_at = ended + STEP
    if is_whole:
        known.whole_at = ended + max(PAUSE, SHARE * (ended - began))
