"""Runs handlers: synchronous ones in threads, asynchronous ones on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.cache import InvalidCacheBackendError, caches

from .active import ActiveJob
from .blocking import BlockingThreads
from .connection_cleanup import ConnectionCleanup, clean_up, warn
from .execution import Settled, execute, execute_async, failed, interrupted
from .outcomes import JobTimeout

Done = Callable[[ActiveJob, Any], None]
"""Called for each job that ended with its report, or None if nothing is left to report."""


class Threads:
    """Runs synchronous handlers; a thread is created when none is idle, and kept."""

    def __init__(self, most: int, done: Done) -> None:
        self._most = most
        self._done = done
        self._jobs: deque[ActiveJob] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()
        """One item for each thread that is to wake up; False for one that is to end."""
        self._threads: list[threading.Thread] = []
        self._idle = 0
        """Threads that sleep and have not been called."""
        self._lock = threading.Lock()

    def submit(self, jobs: Iterable[ActiveJob]) -> None:
        for job in jobs:
            self._jobs.append(job)
            self._wake()

    def _wake(self) -> None:
        """Set one more thread to work, unless all are awake."""
        with self._lock:
            if self._idle:
                self._idle -= 1
                self._calls.put(True)
            elif len(self._threads) < self._most:
                name = f"ojs-job-{len(self._threads) + 1}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def interrupt(self, job: ActiveJob) -> None:
        """Raise `JobTimeout` in the handler, at its next line of Python."""
        with job.lock:
            if job.thread is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(job.thread), ctypes.py_object(JobTimeout)
                )

    def stop(self) -> None:
        """Let idle threads end; a handler that still runs is not waited for."""
        for _ in self._threads:
            self._calls.put(False)

    def join(self, timeout: float) -> None:
        for thread in self._threads:
            thread.join(timeout)

    def _work(self) -> None:
        cleanup = ConnectionCleanup()
        _make_caches()
        try:
            while True:
                while (job := self._next()) is not None:
                    self._run(job, cleanup)
                if not self._calls.get():
                    return
        finally:
            cleanup.close()

    def _next(self) -> ActiveJob | None:
        """The job that has waited longest; if there is none, this thread counts as idle."""
        with self._lock:
            if self._jobs:
                return self._jobs.popleft()
            self._idle += 1
            return None

    def _run(self, job: ActiveJob, cleanup: ConnectionCleanup) -> None:
        report: Any = None
        try:
            report = self._guarded(job, cleanup)
        except JobTimeout as problem:  # raised just after the handler ended
            report = failed(job.context, problem)
        finally:
            # An interrupt comes once, but may come at any point; the place must become free.
            while job.is_running:
                with contextlib.suppress(JobTimeout):
                    self._done(job, None if isinstance(report, Settled) else report)

    def _guarded(self, job: ActiveJob, cleanup: ConnectionCleanup) -> Any:
        cleanup.before()
        try:
            with job.lock:
                job.thread = threading.get_ident()
            try:
                assert job.handler is not None
                # In a context of its own: what it sets there, such as the active language or time
                # zone, is not set in the next job. Connections belong to the thread.
                return copy_context().run(execute, job.handler, job.context)
            finally:
                with job.lock:
                    job.thread = None
        finally:
            warn(cleanup.after(interrupted=job.is_decided), job.context)


def _make_caches() -> None:
    """Make this thread's caches, which the contexts of its jobs then share.

    Otherwise each job would make its own, and connect to the cache's server anew.
    """
    for alias in settings.CACHES:
        # One that cannot be used is the trouble of the job that uses it.
        with contextlib.suppress(InvalidCacheBackendError, ImportError):
            caches[alias]


class EventLoop:
    """Runs all asynchronous handlers on one loop in its own thread."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[ActiveJob, asyncio.Task[None]] = {}

    def submit(self, jobs: Iterable[ActiveJob]) -> None:
        loop = self._loop or self._start()
        loop.call_soon_threadsafe(self._begin, jobs)

    def interrupt(self, job: ActiveJob) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, job)

    def stop(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.call_soon_threadsafe(loop.stop)

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop = loop = asyncio.new_event_loop()
        # As many threads as in the executor that it would have otherwise.
        loop.set_default_executor(BlockingThreads(min(32, (os.cpu_count() or 1) + 4)))
        threading.Thread(target=self._serve, args=[loop], name="ojs-async", daemon=True).start()
        return loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        if not self._tasks:
            loop.close()

    def _begin(self, jobs: Iterable[ActiveJob]) -> None:
        loop = asyncio.get_running_loop()
        for job in jobs:
            self._tasks[job] = loop.create_task(self._run(job))

    def _cancel(self, job: ActiveJob) -> None:
        task = self._tasks.get(job)
        if task is not None:
            task.cancel()

    async def _run(self, job: ActiveJob) -> None:
        report: Any = None
        try:
            assert job.handler is not None
            report = await execute_async(job.handler, job.context)
            # The ORM's async methods work in one thread that all tasks share.
            warn(await sync_to_async(clean_up)(), job.context)
        except asyncio.CancelledError:  # raised just after the handler ended
            report = report or interrupted(job.context)
        finally:
            self._tasks.pop(job, None)
            self._done(job, report)
