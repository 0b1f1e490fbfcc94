"""Answers concurrent requests for one verb together, in one thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from .threads import Threads

Item = TypeVar("Item")
Reply = TypeVar("Reply")

BATCH = 32
"""Maximum number of requests that one thread answers at once."""
AT_ONCE = 2
"""Threads that do so concurrently. With only one, PostgreSQL would be idle while Python reads
and writes."""


class Gatherer(Generic[Item, Reply]):
    """Collects requests while its threads are busy."""

    def __init__(
        self, threads: Threads, answer: Callable[[Sequence[Item]], Sequence[Reply]]
    ) -> None:
        self._threads = threads
        self._answer = answer
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[Item, asyncio.Future[Reply]]] = deque()
        self._busy = 0
        self._is_called = False
        """A thread has been called and has taken nothing yet: it will take what waits."""

    def submit(self, item: Item) -> asyncio.Future[Reply]:
        """Answer `item` together with the others that are waiting when a thread takes it."""
        future: asyncio.Future[Reply] = self._loop.create_future()
        self._waiting.append((item, future))
        self._start()
        return future

    def _start(self) -> None:
        if not self._waiting or self._is_called or self._busy >= AT_ONCE:
            return
        self._busy += 1
        self._is_called = True
        # The loop first reads everything else that has arrived: it belongs to the same batch.
        self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._threads.submit(self._run).add_done_callback(self._done)

    def _run(self) -> tuple[list[asyncio.Future[Reply]], Sequence[Reply] | Exception]:
        # Before the last look below: what is added after it needs another thread.
        self._is_called = False
        taken: list[tuple[Item, asyncio.Future[Reply]]] = []
        while self._waiting and len(taken) < BATCH:
            try:
                taken.append(self._waiting.popleft())
            except IndexError:  # another thread was faster
                break
        futures = [future for _, future in taken]
        try:
            return futures, self._answer([item for item, _ in taken]) if taken else []
        except Exception as problem:
            return futures, problem

    def _done(self, finished: asyncio.Future[Any]) -> None:
        self._busy -= 1
        futures, replies = finished.result()
        if isinstance(replies, Exception):
            for future in futures:
                if not future.done():
                    future.set_exception(replies)
        else:
            for future, reply in zip(futures, replies, strict=True):
                if not future.done():
                    future.set_result(reply)
        self._start()
