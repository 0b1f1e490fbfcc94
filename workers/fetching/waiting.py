"""Waiting for work on thousands of connections: no thread each, no stampede when work arrives.

Waiters that would get the same jobs form a group. When one of its queues has work, the first
waiter looks; if it finds a job, the next one looks too, and so on.
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
"""Looks in vain after which the rest of the group is skipped until the next ring."""
QUIETED = 0.1
"""Weight of a look in vain by a worker that may not fetch: it indicates little about the others."""


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a look for work and, if empty, the likely reason."""

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
        """The members for which no look is under way."""
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
            # Waiters that look in vain go to the end; each looks at most once in a round.
            for _ in range(len(self.waiters)):
                if in_vain >= IN_VAIN or not self.waiters:
                    break
                waiter = self.waiters.popleft()
                found = await self.look_for(waiter)
                if found is not None and not found.jobs:
                    in_vain += 1 if found.may_fetch else QUIETED
                    self.waiters.append(waiter)

    async def look_for(self, waiter: Waiter) -> Look | None:
        """Look for work for one waiter, and hand over what is found."""
        if waiter.found.done():
            return None
        try:
            found = await waiter.look()
        except Exception as problem:  # for this waiter's client
            if not waiter.found.done():
                waiter.found.set_exception(problem)
            return None
        if found.jobs and waiter.found.done():
            # Its time ran out, or its client left, while this look was under way.
            await waiter.release(found)
            return None
        if found.jobs:
            waiter.found.set_result(found)
        return found


class Hub:
    """All the waiters of this process."""

    def __init__(self) -> None:
        self._groups: dict[Any, Group] = {}
        self._bell = contextlib.ExitStack()
        self.listens = False
        """Whether it receives notifications of work; if not, call `listen()` first."""
        self._expects = False
        """A caller has begun to look and will wait if it finds nothing."""
        self._loop = asyncio.get_running_loop()
        self._heard: Counter[str] = Counter()
        """Rings for each queue, so that work that arrives during a look is not missed."""

    def listen(self) -> None:
        """Receive notifications from now on; call it in a thread, as it may have to connect."""
        if not self.listens:
            self.listens = True
            self._bell.enter_context(wakeup.watching(self._rung))

    def _rung(self, queues: Collection[str]) -> None:
        """Relay a notification; called in the listening thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.ring, frozenset(queues))

    def ring(self, queues: frozenset[str] | None = None) -> None:
        """Announce that there may be work in `queues`; None means any."""
        self._heard.update(queues or ())
        for group in list(self._groups.values()):
            if queues is None or not queues.isdisjoint(group.queues):
                group.ring()

    def heard(self, queues: Sequence[str]) -> int:
        """A number that grows with each ring for one of `queues`."""
        self._expects = True
        return sum(self._heard[queue] for queue in queues)

    async def ring_for(self, worker_id: str) -> None:
        """Announce work for one worker."""
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
        """Return what the waiter finds, or None when the time is up.

        Args:
            alike: what else decides which jobs it would get.
            since: the value of `heard()` before the waiter itself looked. If it rang since,
                its group looks again: if each did, a busy queue would keep thousands looking.
        """
        key = (tuple(queues), alike)
        group = self._groups.setdefault(key, Group(queues))
        group.members += 1
        group.waiters.append(waiter)
        if self.heard(queues) != since:
            group.ring()
        try:
            # Does not cancel the future when the time is up: what it holds by then still counts.
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
        """Ring regularly, as notifications may be lost; without waiters, stop listening."""
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
