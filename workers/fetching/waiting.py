"""Waiting for work on thousands of connections: no thread each, no stampede when work arrives.

Waiters that would be given the same jobs form a group. When one of its queues has work, the
first of the group looks; if it finds a job, the next one looks too, and so on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.conf import ojs_settings
from jobs.engine import ClaimedJob
from jobs.store import wakeup

IN_VAIN = 3
"""Looks without a find after which the others of a group are left alone until the next ring."""
QUIETED = 0.1
"""What the vain look of a worker counts that an operator quieted: it says little of the others."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look for work found, and for an empty one why that may be."""

    jobs: list[ClaimedJob]
    may_fetch: bool = True
    able: frozenset[str] = frozenset()


Looking = Callable[[], Awaitable[Look]]
GivingBack = Callable[[Look], Awaitable[None]]


class Waiter:
    def __init__(self, worker_id: str, look: Looking, release: GivingBack) -> None:
        self.worker_id = worker_id
        self.look = look
        self.release = release
        self.found: asyncio.Future[Look] = asyncio.get_running_loop().create_future()


class Group:
    """Waiters with the same queues, the same abilities and the same project."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.queues = queues
        self.members = 0
        self.waiters: deque[Waiter] = deque()
        """The members that nobody looks for at this moment."""
        self._looking: asyncio.Task[None] | None = None
        self._rung = False

    def ring(self) -> None:
        self._rung = True
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while self._rung:
            self._rung = False
            in_vain = 0.0
            # Those that look in vain go to the end, and are seen once at most in one round.
            for _ in range(len(self.waiters)):
                if in_vain >= IN_VAIN or not self.waiters:
                    break
                waiter = self.waiters.popleft()
                found = await self.look_for(waiter)
                if found is not None and not found.jobs:
                    in_vain += 1 if found.may_fetch else QUIETED
                    self.waiters.append(waiter)

    async def look_for(self, waiter: Waiter) -> Look | None:
        """Look for one of the group, and hand over what it finds."""
        if waiter.found.done():
            return None
        try:
            found = await waiter.look()
        except Exception as problem:  # it is this waiter's to tell its client
            if not waiter.found.done():
                waiter.found.set_exception(problem)
            return None
        if found.jobs and waiter.found.done():
            # Its time was over, or its client went, while this look was under way.
            await waiter.release(found)
            return None
        if found.jobs:
            waiter.found.set_result(found)
        return found


class Hub:
    """All that wait in this process."""

    def __init__(self) -> None:
        self._groups: dict[Any, Group] = {}
        self._bell = contextlib.ExitStack()
        self.listens = False
        """Whether it hears of work; else `listen()` first."""
        self._expects = False
        """Somebody has begun to look, who will wait if that is in vain."""
        self._loop = asyncio.get_running_loop()
        self._heard: Counter[str] = Counter()
        """Rings for each queue: work that came while somebody looked is not missed."""

    def listen(self) -> None:
        """Hear of work from now on; called in a thread, for it may have to connect."""
        if not self.listens:
            self.listens = True
            self._bell.enter_context(wakeup.watching(self._rung))

    def _rung(self, queues: Collection[str]) -> None:
        """Called in the thread that listens."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.ring, frozenset(queues))

    def ring(self, queues: frozenset[str] | None = None) -> None:
        """There may be work in `queues`; None means any."""
        self._heard.update(queues or ())
        for group in list(self._groups.values()):
            if queues is None or not queues.isdisjoint(group.queues):
                group.ring()

    def heard(self, queues: Sequence[str]) -> int:
        """A number that grows with each ring for one of `queues`."""
        self._expects = True
        return sum(self._heard[queue] for queue in queues)

    async def ring_for(self, worker_id: str) -> None:
        """There is work for one worker."""
        for group in list(self._groups.values()):
            for waiter in [one for one in group.waiters if one.worker_id == worker_id]:
                await group.look_for(waiter)

    async def wait(
        self,
        waiter: Waiter,
        queues: Sequence[str],
        alike: Hashable,
        since: int,
        seconds: float,
    ) -> Look | None:
        """Return what the waiter finds, or None when the time is over.

        Args:
            alike: what else decides which jobs it would be given.
            since: what was heard before the waiter looked by itself. Rung since, it is its group
                that looks again: were each to, a busy queue would keep thousands looking.
        """
        key = (tuple(queues), alike)
        group = self._groups.setdefault(key, Group(queues))
        group.members += 1
        group.waiters.append(waiter)
        if self.heard(queues) != since:
            group.ring()
        try:
            # Leaves the future alone when the time is over: what it holds by then still counts.
            await asyncio.wait([waiter.found], timeout=seconds)
            return waiter.found.result() if waiter.found.done() else None
        except asyncio.CancelledError:
            if waiter.found.done() and not waiter.found.exception():
                await asyncio.shield(waiter.release(waiter.found.result()))
            raise
        finally:
            waiter.found.cancel()
            with contextlib.suppress(ValueError):
                group.waiters.remove(waiter)
            group.members -= 1
            if not group.members and self._groups.get(key) is group:
                del self._groups[key]

    async def look_now_and_then(self, pause: float) -> None:
        """A notification may be missed, or never come; and whoever waits no more need not hear."""
        pause = min(pause, ojs_settings.WAIT_POLL_INTERVAL.total_seconds())
        while True:
            await asyncio.sleep(pause)
            self.ring()
            if self.listens and not self._groups and not self._expects:
                self.close()
            self._expects = False

    def close(self) -> None:
        self.listens = False
        self._bell.close()
