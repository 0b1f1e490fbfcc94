"""AGQ's server: listens, provides threads, and shuts down in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jobs.http import open_keys
from jobs.http.endpoints import url_of
from jobs.http.once import Once
from jobs.store import wakeup
from jobs.store.database import borrowed
from jobs.store.watchdog import bounded
from workers.bindings.shared import tls
from workers.fetching.waiting import Hub
from workers.liveness.presence import announced
from workers.runtime.health_signal import HealthSignal, beating

from . import PROTOCOL, SERVER, options
from .connection import Connection

GRACE = 5.0
"""Seconds that running work gets when the server stops."""


STRANGERS_SHARE = 8
"""Unauthenticated clients may fill one part in this many of `MAX_BUFFERED`."""


class Server:
    """Listens, and shuts down in order."""

    def __init__(
        self, certificate: tls.Certificate | None = None, pulse: HealthSignal | None = None
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.registered: dict[tuple[str, str], Connection] = {}
        """Project and worker → the connection it registered on, while that is open."""
        self.numbers = itertools.count(1)
        self.held = {True: 0, False: 0}
        """Bytes of commands that have not been carried out, over all connections: of
        authenticated and of other clients."""
        self.browsers = Once()
        """Addresses that sent HTTP."""
        self.hub = Hub()
        self.is_ending = False
        self._threads = ThreadPoolExecutor(options().THREADS, thread_name_prefix=PROTOCOL.name)
        self._kept: set[asyncio.Task[Any]] = set()
        self._listening: asyncio.Server | None = None
        self._announced = contextlib.AsyncExitStack()
        self._certificate = certificate
        self._pulse = pulse or HealthSignal()

    def may_hold(self, known: bool) -> int:
        """Maximum bytes of authenticated or of other clients: neither can crowd out the others."""
        most = options().MAX_BUFFERED
        for_strangers = most // STRANGERS_SHARE
        return most - for_strangers if known else for_strangers

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run `function` in a thread; the only place where the event loop calls Django."""

        def call() -> Any:
            with borrowed(), bounded("An AGQ command"):
                return function(*arguments)

        return await self.loop.run_in_executor(self._threads, call)

    def keep(self, work: Any) -> None:
        """Run work in the background."""
        task = self.loop.create_task(work)
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)

    async def run(
        self, host: str, port: int, stop: asyncio.Event, say: Callable[[str], None]
    ) -> None:
        """Serve until `stop` is set."""
        address = await self.start(host, port)
        say(f"AGQ workers are served on {address}{' over TLS' if self._certificate else ''}.")
        async with beating(self._pulse, self.in_thread):
            await stop.wait()
        await self.end()
        say("The AGQ server stops.")

    async def start(self, host: str, port: int) -> str:
        """Listen; return the address."""
        self._listening = await self.loop.create_server(
            lambda: Connection(self),
            host,
            port,
            backlog=1024,
            **tls.server_options(self._certificate),
        )
        pause = await self.in_thread(wakeup.look_again_after)
        self._ticking = self.loop.create_task(self.hub.look_now_and_then(pause))
        self._watching = self.loop.create_task(open_keys.watch(self.connections, self.in_thread))
        address = self._listening.sockets[0].getsockname()
        scheme = SERVER.schemes[self._certificate is not None]
        url = url_of(scheme, host, address[1], public=options().URL)
        await self._announced.enter_async_context(tls.renewed(self._certificate))
        await self._announced.enter_async_context(announced(self.in_thread, PROTOCOL.name, url))
        return f"{address[0]}:{address[1]}"

    async def end(self) -> None:
        """Stop accepting, release jobs that were not delivered, and close all connections."""
        self.is_ending = True
        if self._listening is not None:
            self._listening.close()
        self._ticking.cancel()
        self._watching.cancel()
        await self._announced.aclose()
        working = [one.working for one in self.connections if one.working is not None]
        for connection in list(self.connections):
            connection.transport.close()
        if working:
            await asyncio.wait(working, timeout=GRACE)
        if self._kept:
            await asyncio.wait(self._kept, timeout=GRACE)
        self.hub.close()
        await self.loop.run_in_executor(None, self._threads.shutdown)
