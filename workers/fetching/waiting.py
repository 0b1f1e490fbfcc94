"""Waiting for work on thousands of connections: no thread each, no stampede when work arrives.

Waiters that would get the same jobs form a group, in the order they came. When one of its queues
has work, the first waiter looks; if it finds a job, the next ones look too, and so on.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from jobs.conf import ojs_settings
from jobs.engine import ClaimedJob
from jobs.http.loop import HasThreads
from jobs.store import wakeup

IN_VAIN = 3
"""Empty looks after which the rest of the group is skipped until the next wake-up."""
QUIETED = 0.1
"""Weight of an empty look by a worker that may not fetch: it indicates little about the others."""
PASSED = 3
"""How often a waiter may be passed over before it loses its place."""
LOOKERS = 4
"""Waiters of a group that may look at the same time, once some have found jobs."""
SWEPT = 20
"""Waiters of a group that look regularly even without a wake-up: a job may be for only one of
them, or the notification was lost."""


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a look for work and, if empty, the likely reason."""

    jobs: list[ClaimedJob]
    may_fetch: bool = True
    able: frozenset[str] = frozenset()
    answer: Any = None
    """The response, made where the jobs were claimed. It may be a refusal, without jobs."""

    @property
    def is_final(self) -> bool:
        """Whether the waiter need not look again."""
        return bool(self.jobs) or self.answer is not None


Looking = Callable[[], Awaitable[Look]]
GivingBack = Callable[[Look], Awaitable[None]]


_numbers = count()


class Waiter:
    def __init__(self, worker_id: str, look: Looking, release: GivingBack) -> None:
        self.worker_id = worker_id
        self.look = look
        self.release = release
        self.number = next(_numbers)
        """Order of arrival."""
        self.found: asyncio.Future[Look | None] = asyncio.get_running_loop().create_future()
        """Its result; None if it is sent away."""
        self.passed = 0
        """How often a later waiter found work that this one did not find."""
        self.looks = False
        """A look for it is in progress."""
        self._looks_again = False

    async def try_to_serve(self) -> Look | None:
        """Look for work, and deliver what is found.

        Returns:
            None if it waits no more, or if a look for it is in progress. This one is then followed
            by another: it may have begun before there was something to find.
        """
        if self.found.done():
            return None
        if self.looks:
            self._looks_again = True
            return None
        self.looks = True
        try:
            found = await self.look()
            while self._looks_again and not found.is_final and not self.found.done():
                self._looks_again = False
                found = await self.look()
        except Exception as problem:  # for this waiter's client
            if not self.found.done():
                self.found.set_exception(problem)
            return None
        finally:
            self.looks = self._looks_again = False
        if self.found.done():
            # Its time was up, or its client disconnected, during this look.
            if found.jobs:
                await self.release(found)
            return None
        if found.is_final:
            self.found.set_result(found)
        return found


class Group:
    """Waiters with the same queues, the same abilities and the same project."""

    def __init__(self, queues: Sequence[str]) -> None:
        self.queues = queues
        self.members = 0
        self.waiters: deque[Waiter] = deque()
        """Members that are not looking at present, in order of arrival."""
        self._rings = 0
        self._in_vain = 0.0
        """Empty looks since the last wake-up."""
        self.tried: list[Waiter] = []
        """Members whose look was empty since then, in order of arrival."""
        self._lookers: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._swept = 0

    def ring(self, *, vainly: int = IN_VAIN) -> None:
        """Let the first waiter look, and more as long as they find something.

        Args:
            vainly: how many looks may be empty.
        """
        self._rings += 1
        self._in_vain = IN_VAIN - vainly
        self._put_back()
        self._start_looker()

    def _put_back(self) -> None:
        """Return the members whose look was empty to their places."""
        self.waiters.extendleft(reversed(self.tried))
        self.tried.clear()

    def _pass_over(self) -> None:
        """Note that a later waiter found something that earlier ones did not.

        Once may be chance: the work arrived in between. Waiters to which it happens repeatedly
        cannot run the available jobs, and lose their places.
        """
        for waiter in list(self.tried):
            waiter.passed += 1
            if waiter.passed >= PASSED:
                self.tried.remove(waiter)
                self.waiters.append(waiter)
                waiter.passed = 0

    def _start_looker(self) -> None:
        if len(self._lookers) < LOOKERS and self.waiters:
            looker = asyncio.get_running_loop().create_task(self._look())
            self._lookers.add(looker)

    async def _look(self) -> None:
        try:
            while self.waiters and self._in_vain < IN_VAIN:
                waiter = self.waiters.popleft()
                rings, looks = self._rings, waiter.looks
                found = await waiter.try_to_serve()
                if looks:  # for a sweep, and then once more for this wake-up
                    self.tried.append(waiter)
                elif found is None:
                    continue
                elif found.is_final:
                    # There may be more.
                    self._pass_over()
                    self._start_looker()
                elif not found.may_fetch:
                    self._in_vain += QUIETED
                    self.waiters.append(waiter)
                elif rings == self._rings:
                    self._in_vain += 1
                    self.tried.append(waiter)
                else:  # work that arrived meanwhile may be for it
                    self.waiters.appendleft(waiter)
        finally:
            current: Any = asyncio.current_task()
            self._lookers.discard(current)
            if not self._lookers:
                self._put_back()

    def sweep(self) -> None:
        """Let some members look without a wake-up, different ones each time."""
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())

    async def _sweep(self) -> None:
        if self._lookers:
            await asyncio.wait(self._lookers)
        if self._swept >= len(self.waiters):
            self._swept = 0
        some = list(islice(self.waiters, self._swept, self._swept + SWEPT))
        self._swept += len(some)
        for waiter in some:
            found = None if waiter.looks else await waiter.try_to_serve()
            if found is not None and found.is_final:
                self.forget(waiter)

    def add(self, waiter: Waiter) -> None:
        """Add a waiter in its place: it may have looked for longer than those that came later."""
        place = len(self.waiters)
        while place and self.waiters[place - 1].number > waiter.number:
            place -= 1
        self.waiters.insert(place, waiter)

    def forget(self, waiter: Waiter) -> None:
        for among in (self.waiters, self.tried):
            with contextlib.suppress(ValueError):
                among.remove(waiter)


class Hub:
    """All the waiters of this process."""

    def __init__(self) -> None:
        self._groups: dict[Any, Group] = {}
        self._waiters: set[Waiter] = set()
        """Members of all groups, including those that are looking."""
        self._bell = contextlib.ExitStack()
        self.listens_since = math.inf
        """Since when no notification of work has been lost, by `time.monotonic()`; infinite if it
        does not listen."""
        self._expects = False
        """A caller is looking and will wait if it finds nothing."""
        self._loop = asyncio.get_running_loop()
        self._rung_at: dict[str, float] = {}
        """The last wake-up of each queue, so that work that arrives during a look is not missed."""
        self._hearing: asyncio.Future[None] | None = None
        self._has_ended = False

    @property
    def listens(self) -> bool:
        return self.listens_since < math.inf

    def listen(self) -> None:
        """Receive notifications from now on; call it in a thread, as it may have to connect."""
        if not self.listens:
            self._bell.enter_context(wakeup.watching(self._rung))
            self.listens_since = time.monotonic()

    def _rung(self, queues: Collection[str]) -> None:
        """Forward a notification; called in the listening thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.ring, frozenset(queues))

    def ring(self, queues: frozenset[str]) -> None:
        """Wake the groups of these queues, which may have work.

        Args:
            queues: if empty, notifications may have been lost: every queue may have work.
        """
        now = time.monotonic()
        if not queues and self.listens:
            self.listens_since = now
        self._rung_at.update(dict.fromkeys(queues, now))
        for group in list(self._groups.values()):
            if not queues or not queues.isdisjoint(group.queues):
                group.ring()

    def _has_missed(self, queues: Sequence[str], looked_at: float) -> bool:
        """Whether work may have arrived since a look that began at `looked_at`."""
        return looked_at < self.listens_since or any(
            looked_at <= self._rung_at.get(queue, -math.inf) for queue in queues
        )

    async def ring_for(self, worker_id: str) -> None:
        """Let all waiters of one worker look."""
        for waiter in [one for one in self._waiters if one.worker_id == worker_id]:
            await waiter.try_to_serve()

    async def hear(self, loop: HasThreads) -> None:
        """Start to receive notifications; the first caller does it, others wait for it."""
        if not self.listens:
            if self._hearing is None or self._hearing.done():
                self._hearing = asyncio.ensure_future(loop.in_thread(self.listen))
            await asyncio.shield(self._hearing)
        self._expects = True

    async def wait(
        self,
        waiter: Waiter,
        queues: Sequence[str],
        alike: Hashable,
        looked_at: float,
        seconds: float | None,
    ) -> Look | None:
        """Return what the waiter finds, or None when the time is up or the server stops.

        Args:
            alike: further criteria that determine which jobs it would get.
            looked_at: `time.monotonic()` before the waiter's own last look. If work may have
                arrived since then, its group looks again: if each waiter did, a busy queue would
                keep thousands looking.
            seconds: how long to wait; None waits forever.
        """
        if self._has_ended:
            return None
        key = (tuple(queues), alike)
        group = self._groups.setdefault(key, Group(queues))
        group.members += 1
        group.add(waiter)
        self._waiters.add(waiter)
        # Its group may have been woken without it, or consist of members that cannot fetch.
        if self._has_missed(queues, looked_at):
            group.ring()
        try:
            # Does not cancel the future when the time is up: a result set by then still counts.
            await asyncio.wait([waiter.found], timeout=seconds)
            return waiter.found.result() if waiter.found.done() else None
        except asyncio.CancelledError:
            found = None
            if waiter.found.done() and not waiter.found.exception():
                found = waiter.found.result()
            if found is not None:
                await asyncio.shield(waiter.release(found))
            raise
        finally:
            waiter.found.cancel()
            self._waiters.discard(waiter)
            group.forget(waiter)
            group.members -= 1
            if not group.members and self._groups.get(key) is group:
                del self._groups[key]

    async def look_now_and_then(self, pause: float) -> None:
        """Look regularly, because notifications may be lost; without waiters, stop listening."""
        interval = ojs_settings.WAIT_POLL_INTERVAL.total_seconds()
        pause, since = min(pause, interval), 0.0
        while True:
            await asyncio.sleep(pause)
            # One look at a time, to keep the order of the waiters if work arrives meanwhile.
            for group in list(self._groups.values()):
                group.ring(vainly=1)
            since += pause
            if since >= interval:
                since = 0.0
                for group in list(self._groups.values()):
                    group.sweep()
            if self.listens and not self._groups and not self._expects:
                self.close()
            self._expects = False

    def end(self) -> None:
        """Send all waiters away, and any that come later."""
        self._has_ended = True
        for waiter in self._waiters:
            if not waiter.found.done():
                waiter.found.set_result(None)
        self.close()

    def close(self) -> None:
        self.listens_since = math.inf
        self._rung_at.clear()
        self._bell.close()
