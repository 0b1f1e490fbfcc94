"""A load at a steady rate: producers, workers and heartbeats over HTTP, in one event loop.

Enqueues are due at fixed moments, and their times count from these, not from when a connection was
free: a server that stalls for a second has been slow to everything that was due in that second.
"""

from __future__ import annotations

import array
import asyncio
import time
from collections.abc import Awaitable
from typing import Any

from .waiting import Line

KINDS = ("enqueue", "fetch", "ack", "beat")
BATCH = 10
"""Jobs of a request: an enqueue, a fetch, an ack."""
BACKLOG = 2_000
"""Jobs that wait at most while the peak is measured."""
BEAT = 0.05
"""Seconds between two heartbeats, each of the next worker."""
EMPTY = 0.05
"""Seconds until the next fetch of a worker that found fewer jobs than it can take. Without a pause,
more and more fetches would find less and less, and keep the machine busy whatever the rate is."""
FULL = 0.01
"""Seconds until producers look again, while the peak is measured, whether more jobs may wait."""


class Window:
    """What was measured in a time."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.done = 0
        """Jobs that were acknowledged."""
        self.times = {kind: array.array("f") for kind in KINDS}
        """Milliseconds."""


class Load:
    """Clients that go on until they are closed."""

    def __init__(self, rate: float | None) -> None:
        """
        Args:
            rate: jobs a second; None for as many as there can be.
        """
        self._rate = rate
        self._began = time.monotonic()
        self._enqueued = self._acked = self._turn = 0
        self.window = Window()

    def next_window(self) -> Window:
        """Begin another window; return the one that ends."""
        ended, self.window = self.window, Window()
        return ended

    async def produce(self, line: Line) -> None:
        jobs = {"jobs": [{"type": "bench.noop", "queue": line.queue, "args": [1, "two"]}] * BATCH}
        while True:
            due = await self._due()
            self._enqueued += BATCH
            await self._timed("enqueue", due, line.post("jobs/batch", jobs))

    async def _due(self) -> float:
        """Wait for the next turn; return its moment."""
        if self._rate is None:
            while self._enqueued - self._acked > BACKLOG:
                await asyncio.sleep(FULL)
            return time.monotonic()
        due = self._began + self._turn * BATCH / self._rate
        self._turn += 1
        await asyncio.sleep(max(0, due - time.monotonic()))
        return due

    async def work(self, line: Line, worker_id: str) -> None:
        about = {"worker_id": worker_id, "queues": [line.queue], "count": BATCH}
        while True:
            fetched = line.post("workers/fetch", about)
            found = await self._timed("fetch", time.monotonic(), fetched)
            if not found["jobs"]:
                await asyncio.sleep(EMPTY)
                continue
            acks = [{"job_id": job["id"]} for job in found["jobs"]]
            reply = line.post("workers/ack", {"worker_id": worker_id, "acks": acks})
            await self._timed("ack", time.monotonic(), reply)
            self._acked += len(acks)
            self.window.done += len(acks)
            if len(acks) < BATCH:
                await asyncio.sleep(EMPTY)

    async def beat(self, line: Line, worker_ids: list[str]) -> None:
        while True:
            for worker_id in worker_ids:
                about = {"worker_id": worker_id, "state": "running", "active_jobs": 0}
                reply = line.post("workers/heartbeat", about)
                await self._timed("beat", time.monotonic(), reply)
                await asyncio.sleep(BEAT)

    async def _timed(self, kind: str, since: float, reply: Awaitable[Any]) -> Any:
        answer = await reply
        self.window.times[kind].append(1000 * (time.monotonic() - since))
        return answer
