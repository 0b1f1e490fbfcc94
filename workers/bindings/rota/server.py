"""The Rota server: one WebSocket a worker, on asyncio; the work itself is done in threads."""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from jobs import wakeup
from jobs.conf import ojs_settings
from jobs.database import borrowed, is_postgresql
from jobs.endpoints import url_of
from jobs.errors import InvalidRequest, NotAuthenticated, OJSError
from workers.presence import announced

from . import desk, messages

logger = logging.getLogger("workers.rota")

PATH = "/work"
GOODBYE = 2.0
"""Seconds a worker has to answer that its connection is being closed."""
SILENT, REPLACED, REFUSED = 4408, 4409, 4400
"""Close codes of ours."""
PROPERLY = (1000, 1001)
"""Close codes of a worker that says goodbye."""
Result = TypeVar("Result")


class RotaServer:
    """Serves `/work` until it is stopped; holds what its connections share."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(ojs_settings.ROTA.THREADS, thread_name_prefix="rota")
        self.sessions: dict[str, Session] = {}
        self.look_every = ojs_settings.WAIT_POLL_INTERVAL.total_seconds()
        """Seconds between two looks for work that nobody told us of."""

    async def run(self, host: str, port: int, stop: asyncio.Event) -> None:
        with contextlib.ExitStack() as stack:
            if not await self.in_thread(is_postgresql):
                self.look_every = min(self.look_every, wakeup.SHORT_POLL)
            # It may have to connect, so not in the loop.
            watch = wakeup.watching(self._told_by(asyncio.get_running_loop()))
            await self.in_thread(stack.enter_context, watch)
            async with serve(
                self._handle,
                host,
                port,
                process_request=self._admit,
                max_size=ojs_settings.ROTA.MAX_MESSAGE,
                max_queue=8,
                # Workers send a message a second; silence is judged by those.
                ping_interval=None,
                close_timeout=GOODBYE,
            ) as server:
                options = ojs_settings.ROTA
                url = url_of("ws", host, _port(server), PATH, public=options.URL)
                logger.info("Rota workers are served at ws://%s:%s%s", host, _port(server), PATH)
                async with announced(self.in_thread, "rota", url):
                    await stop.wait()
        self._threads.shutdown()

    def _told_by(self, loop: asyncio.AbstractEventLoop) -> Callable[[Collection[str]], None]:
        """Return what the thread calls that listens to the database."""

        def told(queues: Collection[str]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._ring, frozenset(queues))

        return told

    def _ring(self, queues: frozenset[str]) -> None:
        for session in self.sessions.values():
            session.ring(queues)

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The one crossing from asyncio to the engine."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _call, function, arguments)

    async def _admit(self, connection: ServerConnection, request: Any) -> Any:
        if request.path.partition("?")[0] != PATH:
            return connection.respond(http.HTTPStatus.NOT_FOUND, f"Workers connect to {PATH}.\n")
        if len(self.sessions) >= ojs_settings.ROTA.MAX_CONNECTIONS:
            text = "This server has as many workers as it takes.\n"
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, text)
        try:
            header = request.headers.get("Authorization", "")
            connection.caller = await self.in_thread(desk.admit, header)  # type: ignore[attr-defined]
        except NotAuthenticated as refusal:
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, f"{refusal.message}\n")
        except OJSError as refusal:
            return connection.respond(http.HTTPStatus.FORBIDDEN, f"{refusal.message}\n")
        return None

    async def _handle(self, connection: ServerConnection) -> None:
        session = Session(self, connection)
        try:
            await session.run()
        except ConnectionClosed:
            pass
        except Exception:
            logger.exception("A Rota connection failed.")
            await connection.close(1011, "internal error")
        finally:
            await session.end()


def _port(server: Server) -> int:
    return int(next(iter(server.sockets)).getsockname()[1])


def _call(function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    with borrowed():
        return function(*arguments)


class Session:
    """One connection of one worker: heartbeats in, assignments out."""

    def __init__(self, server: RotaServer, connection: ServerConnection) -> None:
        self._server = server
        self._connection = connection
        self._caller: Any = connection.caller  # type: ignore[attr-defined]
        self._registration: messages.Registration | None = None
        self._pusher: asyncio.Task[None] | None = None
        self._work = asyncio.Event()
        self._in_hand: set[str] = set()
        self._wanted = 0
        self._assigned = 0
        """Assignments sent on this connection."""

    def ring(self, queues: frozenset[str]) -> None:
        """One of `queues` may have work."""
        if self._registration and not queues.isdisjoint(self._registration.queues):
            self._work.set()

    @property
    def worker_id(self) -> str:
        return self._registration.worker_id if self._registration else ""

    async def run(self) -> None:
        timeout = ojs_settings.ROTA.HEARTBEAT_TIMEOUT.total_seconds()
        while True:
            try:
                text = await asyncio.wait_for(self._connection.recv(), timeout)
            except TimeoutError:
                await self._connection.close(SILENT, f"nothing was heard for {timeout:g} s")
                return
            try:
                await self._hear(text)
            except OJSError as refusal:
                await self._connection.send(messages.refusal(refusal))
                if self._registration is None:
                    await self._connection.close(REFUSED, "registration was refused")
                    return

    async def _hear(self, text: str | bytes) -> None:
        timeout = ojs_settings.ROTA.HEARTBEAT_TIMEOUT
        message = messages.read(text, self.worker_id, timeout)
        more: dict[str, Any] = {}
        if message.registration is not None:
            more = await self._register(message.registration)
        elif self._registration is None:
            raise InvalidRequest(
                "The first message must register the worker.", field="registration"
            )
        told = await self._server.in_thread(
            desk.hear, self._registration, message, frozenset(self._in_hand)
        )
        settled = {str(outcome.job_id) for outcome in told.outcomes}
        self._in_hand |= set(told.reply.jobs_extended)
        self._in_hand -= settled | set(told.reply.jobs_lost)
        await self._connection.send(messages.answer(told.reply, told.outcomes, **more))
        if message.wanted is not None:
            # Assignments still under way to it are part of what it wants.
            under_way = 0 if message.received is None else self._assigned - message.received
            self._wanted = max(0, message.wanted - max(0, under_way))
            self._work.set()

    async def _register(self, registration: messages.Registration) -> dict[str, Any]:
        if self._registration is not None and registration.worker_id != self.worker_id:
            raise InvalidRequest(
                f"This connection is that of worker '{self.worker_id}'.",
                field="registration.worker_id",
            )
        await self._server.in_thread(desk.register, self._caller, registration)
        self._registration = registration
        before = self._server.sessions.get(registration.worker_id)
        self._server.sessions[registration.worker_id] = self
        if before is not None and before is not self:
            await before.replaced()
        if self._pusher is not None:
            self._pusher.cancel()
        self._pusher = asyncio.create_task(self._push(registration))
        timeout = ojs_settings.ROTA.HEARTBEAT_TIMEOUT.total_seconds()
        return {
            "registered": registration.worker_id,
            "heartbeat_timeout_ms": round(timeout * 1000),
            "specs": await self._server.in_thread(desk.specs_of, registration),
        }

    async def replaced(self) -> None:
        with contextlib.suppress(ConnectionClosed):
            await self._connection.close(REPLACED, "the worker has connected again")

    async def _push(self, registration: messages.Registration) -> None:
        try:
            await self._assign_for_ever(registration)
        except ConnectionClosed:
            pass
        except Exception:
            # A bug, or a database that is away: the worker shall connect again.
            logger.exception("Jobs for a Rota worker cannot be claimed.")
            await self._connection.close(1011, "internal error")

    async def _assign_for_ever(self, registration: messages.Registration) -> None:
        """Assign jobs as soon as there are some, never more than wanted."""
        while True:
            self._work.clear()
            if self._wanted > 0:
                await self._assign(registration)
            timeout = self._server.look_every if self._wanted > 0 else None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._work.wait(), timeout)

    async def _assign(self, registration: messages.Registration) -> None:
        asked = min(self._wanted, ojs_settings.MAX_FETCH)
        claiming = asyncio.create_task(self._server.in_thread(desk.assign, registration, asked))
        try:
            jobs = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            # The claim goes on in its thread: what it brings must not be lost with us.
            await self._give_back(await claiming)
            raise
        for index, job in enumerate(jobs):
            self._in_hand.add(str(job.id))
            try:
                await self._connection.send(messages.assignment(job))
            except (ConnectionClosed, asyncio.CancelledError):
                await self._give_back(jobs[index:])
                raise
            self._assigned += 1
            self._wanted = max(0, self._wanted - 1)
        if jobs and self._wanted > 0:
            self._work.set()

    async def _give_back(self, jobs: Any) -> None:
        if jobs:
            self._in_hand -= {str(job.id) for job in jobs}
            await self._server.in_thread(desk.give_back, self.worker_id, list(jobs))

    async def end(self) -> None:
        """The connection is gone; whether the worker has left, its last words tell.

        One that closed properly with nothing in its hands has (a warm shutdown). Every other may
        connect again until its silence has lasted too long, and then the reaper takes over.
        """
        if self._pusher is not None:
            self._pusher.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionClosed):
                await self._pusher
        if self._server.sessions.get(self.worker_id) is not self:
            return
        del self._server.sessions[self.worker_id]
        if self._connection.close_code in PROPERLY and not self._in_hand:
            await self._server.in_thread(desk.leave, self.worker_id)
