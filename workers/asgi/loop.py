"""Event loop of a server process, for requests that wait, stream or stay open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from jobs.store import readiness
from jobs.store.database import borrowed
from jobs.store.watchdog import bounded

from .held_signals import HeldSignals
from .threads import Threads

logger = logging.getLogger("workers.asgi")

ENDS = (signal.SIGTERM, signal.SIGINT)
LOOKING = 4
"""Threads for requests that wait or stream, separate from those of other requests."""
LAST_WORDS = 15.0
"""Seconds that streams and WebSockets have to end properly (OJS realtime §5.1)."""
Result = TypeVar("Result")


class ServerLoop:
    """Implements `jobs.http.loop.Loop`.

    Args:
        threads: the maximum number.
        name: prefix of the threads' names.
        kind: a name for their work in log lines.
    """

    def __init__(
        self, threads: int = LOOKING, name: str = "ojs-look", kind: str = "A request that waits"
    ) -> None:
        self.ending = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(threads, name)
        self._kind = kind
        self._shared: dict[Any, Any] = {}
        self._kept: set[asyncio.Task[None]] = set()
        self._sockets: set[asyncio.Future[None]] = set()
        self._signals: HeldSignals | None = None

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await self._threads.submit(partial(self._call, function, arguments))

    def _call(self, function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
        with borrowed(), bounded(self._kind):
            return function(*arguments)

    def shared(self, make: Callable[[Any], Result]) -> Result:
        if make not in self._shared:
            self._shared[make] = make(self)
        found: Result = self._shared[make]
        return found

    def keep(self, task: Coroutine[Any, Any, None]) -> None:
        running = self._loop.create_task(task)
        self._kept.add(running)
        running.add_done_callback(self._kept.discard)

    async def serve_socket(self, served: Coroutine[Any, Any, None]) -> None:
        """Serve a WebSocket to its end, in a task of asyncio's own.

        Some servers run an application in something that cannot be cancelled.
        """
        task = self._loop.create_task(served)
        self._sockets.add(task)
        task.add_done_callback(self._sockets.discard)
        await asyncio.wait([task])
        task.result()

    def watch_for_the_end(self) -> None:
        """Watch for the signals that stop a server.

        Its own handlers may cut the WebSockets, so they are called when these have ended, or at a
        second signal.
        """
        if threading.current_thread() is not threading.main_thread():
            return
        for number in ENDS:
            before = signal.getsignal(number)
            signal.signal(number, partial(self._end, before))
        self._signals = HeldSignals(ENDS, self._goodbye)
        parent = multiprocessing.parent_process()
        if parent is not None:
            self._loop.add_reader(parent.sentinel, self._left_alone, parent.sentinel)

    def _left_alone(self, sentinel: int) -> None:
        """End after the process that started this one: killed, it could not tell anybody.

        Otherwise this process would serve on without a supervisor, and keep the port taken.
        """
        self._loop.remove_reader(sentinel)
        logger.error("The process that supervises this one is gone: ending.")
        signal.raise_signal(signal.SIGTERM)

    async def _goodbye(self) -> None:
        if self._sockets:
            await asyncio.wait(self._sockets, timeout=LAST_WORDS)

    def _end(self, before: Any, number: int, frame: Any) -> None:
        readiness.end()
        ended = self.ending.is_set()
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.ending.set)
            if self._sockets and not ended and callable(before):
                self._loop.call_soon_threadsafe(self.keep, self._end_later(before, number))
                return
        if callable(before):
            before(number, frame)

    async def _end_later(self, before: Callable[[int, Any], Any], number: int) -> None:
        await self._goodbye()
        before(number, None)

    async def close(self) -> None:
        """Wait briefly for running work, and stop the threads."""
        self.ending.set()
        if self._signals is not None:
            self._signals.close()
        if self._kept:
            await asyncio.wait(self._kept, timeout=LAST_WORDS)
        self._threads.close()
