"""All the Rota connections of a process, with either server."""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus

from jobs.errors import DatabaseUnavailable, OJSError
from jobs.http import open_keys
from jobs.http.errors import status_of
from jobs.http.loop import Loop, Socket
from jobs.store import outages
from jobs.store.trouble import explain
from workers.bindings.shared.long_poll import hub_of

from . import actions, options
from .session import Session

logger = logging.getLogger("workers.rota")

SUBPROTOCOL = "rota"
FULL = "This server has as many workers as it takes.\n"
ENDING = "This server ends.\n"


async def serve(loop: Loop, socket: Socket) -> None:
    """Serve one WebSocket from its handshake to its end."""
    await loop.shared(Connections).serve(socket)


class Connections:
    """What the connections share: the hub, the connected workers, and the server's shutdown."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.hub = loop.shared(hub_of)
        self.sessions: dict[str, Session] = {}
        """Registered connections, by the stored id of their worker."""
        self._count = 0
        """Connections that are open or in their handshake."""
        self._open: dict[Session, asyncio.Future[None]] = {}
        """Each connection, with the cleanup after it has ended."""
        loop.keep(self._attend())

    async def serve(self, socket: Socket) -> None:
        if self._count >= options().MAX_CONNECTIONS:
            await socket.refuse(HTTPStatus.SERVICE_UNAVAILABLE, FULL)
            return
        self._count += 1
        try:
            visitor = await self._admit(socket)
            if visitor is not None:
                await self._talk(socket, visitor)
        finally:
            self._count -= 1

    async def _admit(self, socket: Socket) -> actions.Visitor | None:
        """Authenticate the client; None if the handshake was refused."""
        refusal: OJSError | None
        try:
            visitor = await self.loop.in_thread(actions.admit, socket.meta, socket.subprotocols)
        except OJSError as problem:
            refusal = problem
        except Exception as problem:
            refusal = explain(problem)
            if not isinstance(refusal, DatabaseUnavailable):
                raise
            outages.report(logger, refusal, problem)
        else:
            if not self.loop.ending.is_set():
                return visitor
            await socket.refuse(HTTPStatus.SERVICE_UNAVAILABLE, ENDING)
            return None
        await socket.refuse(status_of(refusal), f"{refusal.message}\n")
        return None

    async def _talk(self, socket: Socket, visitor: actions.Visitor) -> None:
        # A client that offers subprotocols expects one of them in return; we have only one.
        try:
            await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.subprotocols else None)
        except ConnectionError:
            return
        session = Session(self, socket, visitor)
        self._open[session] = gone = asyncio.get_running_loop().create_future()
        try:
            await session.run()
        except ConnectionError:
            pass
        except Exception as problem:
            await session.give_up(problem)
        finally:
            await self._end(session)
            del self._open[session]
            gone.set_result(None)

    async def _end(self, session: Session) -> None:
        try:
            await session.end()
        except Exception as problem:
            await session.give_up(problem)

    async def _attend(self) -> None:
        """Check the keys of open connections until the server stops; then end the connections."""
        watching = asyncio.ensure_future(open_keys.watch(self._open, self.loop.in_thread))
        await self.loop.ending.wait()
        watching.cancel()
        while self._open:
            # Jobs that were claimed but not sent are released.
            goodbyes = [session.say_goodbye() for session in self._open]
            await asyncio.gather(*goodbyes, *self._open.values())
