"""Threads that use the database, and the only way to them from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


PATIENCE = 2.0
"""Seconds that closing a pool waits for running work."""

Task = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class _Thread:
    """A thread of the pool, and the lock on which it sleeps."""

    __slots__ = ("task", "wakeup")

    def __init__(self) -> None:
        self.task: Task | None = None
        # A held lock is the cheapest thing a thread can wait for.
        self.wakeup = threading.Lock()
        self.wakeup.acquire()


class Threads:
    """A bounded pool, started on demand. Work begins in the order of submission.

    The thread that became idle last gets the next item: under low load, one thread and its
    database session do everything, with warm processor caches.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._tasks: deque[Task] = deque()
        """Work for which no thread was idle."""
        self._idle: list[_Thread] = []
        self._started = 0
        self._running: list[threading.Thread] = []
        self._ends = False
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_called = False
        """The loop has been called to deliver `_done`, but has not done so yet."""

    def submit(self, function: Callable[[], Result]) -> asyncio.Future[Result]:
        """Call `function` in a thread; must be called on the event loop."""
        future: asyncio.Future[Result] = self._loop.create_future()
        task = function, future
        with self._lock:
            if self._idle:
                thread = self._idle.pop()
            elif self._started < self._most:
                self._started += 1
                thread = _Thread()
                name = f"{self._name}-{self._started}"
                running = threading.Thread(target=self._run, args=[thread], name=name, daemon=True)
                self._running.append(running)
                running.start()
            else:
                self._tasks.append(task)
                return future
        thread.task = task
        thread.wakeup.release()
        return future

    def _run(self, thread: _Thread) -> None:
        while True:
            thread.wakeup.acquire()
            task, thread.task = thread.task, None
            if task is None:  # the pool is closed
                return
            while task is not None:
                outcome = self._carry_out(task)
                # Idle before the loop hears of the outcome: the client's next request finds this
                # thread, with its session and warm caches, and starts no other.
                with self._lock:
                    task = self._tasks.popleft() if self._tasks else None
                    ends = task is None and self._ends
                    if task is None and not ends:
                        self._idle.append(thread)
                self._done.append(outcome)
                del outcome  # a sleeping thread must keep nothing alive
                self._notify()
                if ends:
                    return

    def _carry_out(self, task: Task) -> tuple[asyncio.Future[Any], Any, BaseException | None]:
        function, future = task
        try:
            return future, function(), None
        except BaseException as problem:
            return future, None, problem

    def _notify(self) -> None:
        # One call on the loop delivers everything that is done by then.
        if not self._is_called:
            self._is_called = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_called = False
        while self._done:
            future, result, problem = self._done.popleft()
            if future.done():  # cancelled
                continue
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)

    def close(self, patience: float = PATIENCE) -> None:
        """Stop the threads after they have done the submitted work.

        Args:
            patience: seconds to wait for that; threads stuck in the database end with the process.
        """
        with self._lock:
            self._ends = True
            idle, self._idle = self._idle, []
        for thread in idle:
            thread.wakeup.release()
        deadline = time.monotonic() + patience
        for running in self._running:
            running.join(max(0.0, deadline - time.monotonic()))
