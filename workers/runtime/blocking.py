"""Runs blocking code for async handlers, in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from jobs.running import current_job

from .connection_cleanup import ConnectionCleanup, warn

P = ParamSpec("P")
R = TypeVar("R")
Call = tuple[Future[Any], Callable[[], Any], Any]
"""With the context of the job that it is for."""


class BlockingThreads(ThreadPoolExecutor):
    """An executor whose threads end with the process, and clean up their connections.

    A thread is created when none is idle, and kept. The base class waits for its threads when the
    process ends, even for one that hangs; it is a base class only because an event loop takes no
    other executor as its default.

    Args:
        most: calls beyond this number of threads wait for one; None if none has to.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._started = 0
        self._idle = 0
        """Threads that wait for a call, less the calls that wait for a thread."""
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs), current_job.get()))
        with self._lock:
            if self._idle > 0 or self._started == self._most:
                self._idle -= 1
            else:
                self._started += 1
                name = f"ojs-blocking-{self._started}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Nothing is to be waited for: the threads end with the process."""

    def _work(self) -> None:
        cleanup = ConnectionCleanup()
        while True:
            self._run(*self._calls.get(), cleanup)
            with self._lock:
                self._idle += 1

    def _run(
        self,
        future: Future[Any],
        call: Callable[[], Any],
        context: Any,
        cleanup: ConnectionCleanup,
    ) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            cleanup.before()
            try:
                result = call()
            finally:
                warn(cleanup.after(interrupted=False), context)
        except BaseException as problem:
            future.set_exception(problem)
        else:
            future.set_result(result)


blocking = BlockingThreads()
"""Of this process. As many threads as jobs: a middleware waits in one until its handler ends."""


def in_thread(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return `function` for async code, to run in a thread of `blocking`."""
    return sync_to_async(function, thread_sensitive=False, executor=blocking)
