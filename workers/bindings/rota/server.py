"""The Rota server: a WebSocket for each worker, on asyncio; the work itself is done in threads."""

from __future__ import annotations

import asyncio
import http
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from jobs.access.address import client_address
from jobs.errors import DatabaseUnavailable, NotAuthenticated, OJSError
from jobs.http import open_keys
from jobs.http.endpoints import url_of
from jobs.http.origins import check_socket
from jobs.store import wakeup
from jobs.store.database import borrowed
from jobs.store.trouble import explain
from jobs.store.watchdog import bounded
from workers.bindings.shared import tls
from workers.fetching.waiting import Hub
from workers.liveness.presence import announced
from workers.runtime.health_signal import HealthSignal, beating

from . import PROTOCOL, SERVER, actions, options
from .session import Session

logger = logging.getLogger("workers.rota")

GOODBYE = 2.0
"""Seconds a worker has to answer that its connection is being closed."""
SUBPROTOCOL = "rota"
BEARER = "bearer."
"""A browser can set no header but the names of subprotocols: there its key follows this."""
Result = TypeVar("Result")


class RotaServer:
    """Serves `/work` until it is stopped; holds what its connections share."""

    hub: Hub

    def __init__(
        self, certificate: tls.Certificate | None = None, pulse: HealthSignal | None = None
    ) -> None:
        self._certificate = certificate
        self._pulse = pulse or HealthSignal()
        self._threads = ThreadPoolExecutor(options().THREADS, thread_name_prefix=PROTOCOL.name)
        self._connections = 0
        self.sessions: dict[str, Session] = {}
        """Those that registered, by the name their worker is stored under."""
        self._open: set[Session] = set()

    async def run(
        self, host: str, port: int, stop: asyncio.Event, say: Callable[[str], None]
    ) -> None:
        """Serve until `stop` is set."""
        self.hub = Hub()
        pause = await self.in_thread(wakeup.look_again_after)
        ticking = asyncio.create_task(self.hub.look_now_and_then(pause))
        watching = asyncio.create_task(open_keys.watch(self._open, self.in_thread))
        async with serve(
            self._handle,
            host,
            port,
            process_request=self._admit,
            subprotocols=[SUBPROTOCOL],  # type: ignore[list-item]
            select_subprotocol=_choose,
            max_size=options().MAX_MESSAGE,
            # Messages of one connection that wait for their turn. With compression, a thousand
            # idle workers would hold a hundred megabytes.
            max_queue=2,
            compression=None,
            # Workers send a message a second; silence is judged by those.
            ping_interval=None,
            close_timeout=GOODBYE,
            logger=_quiet_logger(),
            **tls.server_options(self._certificate),
        ) as server:
            port = _port(server)
            scheme = SERVER.schemes[self._certificate is not None]
            address = f"{scheme}://{host}:{port}{SERVER.path}"
            logger.info("Rota workers are served at %s", address)
            say(f"Rota workers connect to {address}")
            url = url_of(scheme, host, port, SERVER.path, public=options().URL)
            async with (
                announced(self.in_thread, PROTOCOL.name, url),
                tls.renewed(self._certificate),
                beating(self._pulse, self.in_thread),
            ):
                await stop.wait()
        ticking.cancel()
        watching.cancel()
        self.hub.close()
        # What somebody was still looking for on behalf of a worker is given back.
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        if under_way:
            await asyncio.wait(under_way, timeout=GOODBYE)
        self._threads.shutdown()

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The one crossing from asyncio to the engine."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _call, function, arguments)

    async def _admit(self, connection: ServerConnection, request: Any) -> Any:
        if request.path.partition("?")[0] != SERVER.path:
            text = f"Workers connect to {SERVER.path}.\n"
            return connection.respond(http.HTTPStatus.NOT_FOUND, text)
        if self._connections >= options().MAX_CONNECTIONS:
            text = "This server has as many workers as it takes.\n"
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, text)
        try:
            if not _login(request):
                check_socket(request.headers.get("Origin", ""))
            connection.visitor = await self.in_thread(  # type: ignore[attr-defined]
                actions.admit, _login(request), _address(connection, request)
            )
        except NotAuthenticated as unknown:
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, f"{unknown.message}\n")
        except OJSError as forbidden:
            return connection.respond(http.HTTPStatus.FORBIDDEN, f"{forbidden.message}\n")
        except Exception as problem:
            refusal = explain(problem)
            if not isinstance(refusal, DatabaseUnavailable):
                raise
            logger.error("%s %s", refusal.message, problem)
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, f"{refusal.message}\n")
        return None

    async def _handle(self, connection: ServerConnection) -> None:
        session = Session(self, connection)
        self._open.add(session)
        self._connections += 1
        try:
            await session.run()
        except ConnectionClosed:
            pass
        except Exception as problem:
            await session.give_up(problem)
        finally:
            self._connections -= 1
            self._open.discard(session)
            await session.end()


class _InOneLine(logging.Filter):
    """The library writes a traceback for whoever knocks with anything but a good handshake."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info:
            record.msg = f"{record.getMessage()}: {record.exc_info[1]!r}"
            record.args, record.exc_info = (), None
            record.levelno, record.levelname = logging.INFO, "INFO"
            return True
        return record.levelno > logging.INFO


def _quiet_logger() -> logging.Logger:
    library = logging.getLogger("workers.rota.websocket")
    if not library.filters:
        library.addFilter(_InOneLine())
    return library


def _login(request: Any) -> str:
    """The Authorization header, or what stands for it where the client cannot send one."""
    header: str = request.headers.get("Authorization", "")
    for name in _offered(request.headers.get("Sec-WebSocket-Protocol", "")):
        if not header and name.startswith(BEARER):
            header = f"Bearer {name.removeprefix(BEARER)}"
    return header


def _address(connection: ServerConnection, request: Any) -> str:
    peer = str((connection.remote_address or ("",))[0])
    return client_address(peer, ",".join(request.headers.get_all("X-Forwarded-For")))


def _offered(header: str) -> list[str]:
    return [name.strip() for name in header.split(",")]


def _choose(connection: ServerConnection, offered: Any) -> Any:
    """Whoever offers subprotocols wants to be told one; ours is the only one."""
    return SUBPROTOCOL if SUBPROTOCOL in offered else None


def _port(server: Server) -> int:
    return int(next(iter(server.sockets)).getsockname()[1])


def _call(function: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    with borrowed(), bounded("A Rota message"):
        return function(*arguments)
