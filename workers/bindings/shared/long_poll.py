"""A fetch that waits for work over HTTP (OJS worker protocol §6; OJS HTTP §10.1)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from jobs.engine import ClaimedJob
from jobs.http import waiting
from jobs.http.loop import Loop
from jobs.http.verbs import VerbResponse
from jobs.http.waiting import Answer, Answering, Waiting
from jobs.store import wakeup
from workers import protocol
from workers.fetching import gate
from workers.fetching.waiting import Hub, Look, Waiter
from workers.fleet import directory

Claim = Callable[[], list[ClaimedJob]]


class WaitingForWork(Waiting[Answer]):
    """Claims as soon as there is work."""

    def __init__(
        self,
        claim: Claim,
        respond: Callable[[Sequence[ClaimedJob]], VerbResponse],
        seconds: float,
        asked: dict[str, Any],
        looked_at: float,
    ) -> None:
        """
        Args:
            looked_at: `time.monotonic()` before the first look, which found nothing.
            asked: arguments of the fetch: `queues`, `types`, `worker_id`, `project` and, where its
                protocol knows them, its `pool`.
        """
        super().__init__(self._look, seconds, lambda: respond([]))
        self._claim = claim
        self._respond = respond
        self._queues: Sequence[str] = asked["queues"]
        self._types: Sequence[str] | None = asked["types"]
        self._worker_id: str = asked["worker_id"]
        self._project: str = asked["project"]
        self._pool: str | None = asked.get("pool")
        self._looked_at = looked_at
        self._claimed: list[ClaimedJob] = []

    def _look(self) -> VerbResponse | None:
        self._claimed = self._claim()
        return self._respond(self._claimed) if self._claimed else None

    def in_thread(self, check: Callable[[], object]) -> VerbResponse:
        deadline = time.monotonic() + self.seconds
        with waiting.place() as granted:
            if not granted:
                return self.otherwise()
            with wakeup.subscription(self._queues) as bell:
                while True:
                    check()
                    found = self._look()
                    left = deadline - time.monotonic()
                    if found is not None or left <= 0:
                        return found or self.otherwise()
                    bell.wait(left)

    async def on_loop(self, loop: Loop, answer: Answering[Answer]) -> Answer:
        hub = loop.shared(hub_of)
        waiter = Waiter(
            self._worker_id,
            lambda: loop.in_thread(self._look_for_hub, answer),
            lambda found: self._release(loop, found),
        )
        deadline = time.monotonic() + self.seconds
        await hub.hear(loop)
        able = await loop.in_thread(self._abilities)
        left = deadline - time.monotonic()
        alike = (able, self._project, self._pool)
        found = await hub.wait(waiter, self._queues, alike, self._looked_at, left)
        if found is None:
            return await self.give_up(loop, answer)
        made: Answer = found.answer
        return made

    def _look_for_hub(self, answer: Answering[Answer]) -> Look:
        made = answer(self._look)
        if made is not None:
            return Look(self._claimed, answer=made)
        room = gate.evaluate(self._worker_id).room
        return Look([], room is None or room > 0)

    def _abilities(self) -> frozenset[str]:
        """Abilities of the worker, except jobs reserved for it by id."""
        types = () if self._types is None else [f"type:{name}" for name in self._types]
        _, able = directory.fetch_state(self._worker_id) or (False, frozenset())
        return able.union(types)

    async def _release(self, loop: Loop, found: Look) -> None:
        if found.jobs:
            await loop.in_thread(protocol.release, found.jobs, self._worker_id)


def hub_of(loop: Loop) -> Hub:
    """The waiting fetches of this process, and the task that polls for them."""
    hub = Hub()
    loop.keep(_tick(hub, loop))
    return hub


async def _tick(hub: Hub, loop: Loop) -> None:
    pause = await loop.in_thread(wakeup.look_again_after)
    ticking = asyncio.ensure_future(hub.look_now_and_then(pause))
    await loop.ending.wait()
    ticking.cancel()
    hub.end()
