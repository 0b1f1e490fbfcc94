"""Where handlers run: synchronous ones in threads, asynchronous ones on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections, reset_queries

from .active import ActiveJob
from .execution import Settled, execute, execute_async, failed, interrupted
from .outcomes import JobTimeout

logger = logging.getLogger("workers.runtime")

Done = Callable[[ActiveJob, Any], None]
"""Told of each job that ended: what to report, or None if nothing is left to report."""


class Threads:
    """Runs synchronous handlers; a thread is made when none is idle, and kept."""

    def __init__(self, most: int, done: Done) -> None:
        self._most = most
        self._done = done
        self._queue: SimpleQueue[ActiveJob | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running: dict[ActiveJob, int] = {}
        self._unfinished = 0
        self._lock = threading.Lock()

    def submit(self, job: ActiveJob) -> None:
        with self._lock:
            self._unfinished += 1
            if self._unfinished > len(self._threads) and len(self._threads) < self._most:
                name = f"ojs-job-{len(self._threads) + 1}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._queue.put(job)

    def interrupt(self, job: ActiveJob) -> None:
        """Raise `JobTimeout` in the handler, at its next line of Python."""
        with job.lock:
            ident = self._running.get(job)
            if ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(ident), ctypes.py_object(JobTimeout)
                )

    def stop(self) -> None:
        """Let idle threads end; a handler that still runs is not waited for."""
        for _ in self._threads:
            self._queue.put(None)

    def join(self, timeout: float) -> None:
        for thread in self._threads:
            thread.join(timeout)

    def _work(self) -> None:
        try:
            while (job := self._queue.get()) is not None:
                self._run(job)
        finally:
            connections.close_all()

    def _run(self, job: ActiveJob) -> None:
        report: Any = None
        try:
            report = self._guarded(job)
        except JobTimeout as problem:  # came when the handler had just ended
            report = failed(job.context, problem)
        finally:
            # An interrupt comes once, but may come anywhere; the place must become free.
            while job.is_running:
                with contextlib.suppress(JobTimeout):
                    self._finish(job, report)

    def _guarded(self, job: ActiveJob) -> Any:
        reset_queries()
        close_old_connections()
        try:
            with job.lock:
                self._running[job] = threading.get_ident()
            try:
                assert job.handler is not None
                return execute(job.handler, job.context)
            finally:
                with job.lock:
                    self._running.pop(job, None)
        finally:
            self._tidy(job)

    def _tidy(self, job: ActiveJob) -> None:
        """Leave no connection behind that the next job would be surprised by."""
        for connection in connections.all(initialized_only=True):
            if job.is_decided or connection.in_atomic_block:
                # Interrupted in the middle of something, or left inside a transaction, which a
                # closed connection would still believe itself to be in.
                connection.close()
                del connections[connection.alias]
        close_old_connections()

    def _finish(self, job: ActiveJob, report: Any) -> None:
        self._done(job, None if isinstance(report, Settled) else report)
        if job.is_running:
            return
        with self._lock:
            self._unfinished -= 1


class EventLoop:
    """Runs asynchronous handlers, all on one loop in a thread of its own."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: dict[ActiveJob, asyncio.Task[None]] = {}

    def submit(self, job: ActiveJob) -> None:
        loop = self._loop or self._start()
        loop.call_soon_threadsafe(self._begin, job)

    def interrupt(self, job: ActiveJob) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel, job)

    def stop(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _start(self) -> asyncio.AbstractEventLoop:
        self._loop = loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="ojs-async", daemon=True).start()
        return loop

    def _begin(self, job: ActiveJob) -> None:
        assert self._loop is not None
        self._tasks[job] = self._loop.create_task(self._run(job))

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
            await sync_to_async(close_old_connections)()
        except asyncio.CancelledError:  # came when the handler had just ended
            report = report or interrupted(job.context)
        finally:
            self._tasks.pop(job, None)
            self._done(job, report)
