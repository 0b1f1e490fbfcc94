"""The threads that touch the database, and the one crossing to them from the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

Result = TypeVar("Result")


class Threads:
    """A bounded pool, filled as it is needed. What is submitted first begins first."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._tasks: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._tasks = SimpleQueue()
        self._started = 0
        self._under_way = 0
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_called = False
        """The loop has been asked to look at `_done`, and has not yet."""

    def submit(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Call `function` in a thread; must be called on the loop."""
        future: asyncio.Future[Result] = self._loop.create_future()
        self._under_way += 1
        if self._under_way > self._started < self._most:
            self._started += 1
            threading.Thread(
                target=self._run, name=f"{self._name}-{self._started}", daemon=True
            ).start()
        self._tasks.put((function, future))
        return future

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            function, future = task
            try:
                self._done.append((future, function(), None))
            except BaseException as problem:
                self._done.append((future, None, problem))
            # A sleeping thread must keep nothing alive.
            del task, function, future
            # One call of the loop delivers all that has been done by then.
            if not self._is_called:
                self._is_called = True
                try:
                    self._loop.call_soon_threadsafe(self._deliver)
                except RuntimeError:  # the loop has ended
                    return

    def _deliver(self) -> None:
        self._is_called = False
        while self._done:
            future, result, problem = self._done.popleft()
            self._under_way -= 1
            if future.done():  # cancelled
                continue
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)

    def close(self) -> None:
        """End the threads once they have done what was submitted."""
        for _ in range(self._started):
            self._tasks.put(None)
