"""`runrota`: a server for Rota workers only, based on the `websockets` library."""

from __future__ import annotations

import asyncio
import contextlib
import http
import logging
import weakref
from collections.abc import Callable
from typing import Any, cast

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from jobs.http.endpoints import url_of
from jobs.http.request import Meta
from workers.asgi.environ import add_headers
from workers.asgi.loop import ServerLoop
from workers.bindings.shared import tls
from workers.liveness.presence import announced
from workers.runtime.health_signal import HealthSignal, beating

from . import PROTOCOL, SERVER, connections, options
from .session import GOODBYE

logger = logging.getLogger("workers.rota")


class RotaServer:
    """Serves `/work` until it is stopped."""

    _loop: ServerLoop

    def __init__(
        self, certificate: tls.Certificate | None = None, pulse: HealthSignal | None = None
    ) -> None:
        self._certificate = certificate
        self._pulse = pulse or HealthSignal()
        self._connections: weakref.WeakSet[Connection] = weakref.WeakSet()

    async def run(
        self, host: str, port: int, stop: asyncio.Event, say: Callable[[str], None]
    ) -> None:
        """Serve until `stop` is set."""
        self._loop = loop = ServerLoop(options().THREADS, PROTOCOL.name, "A Rota message")
        async with serve(
            _handle,
            host,
            port,
            create_connection=self._connection,  # type: ignore[arg-type]
            process_request=self._answer,
            subprotocols=[connections.SUBPROTOCOL],  # type: ignore[list-item]
            select_subprotocol=_choose,
            max_size=options().MAX_MESSAGE,
            # Messages per connection that may wait for their turn. With compression, a thousand
            # idle workers would hold a hundred megabytes.
            max_queue=2,
            compression=None,
            # Workers send a message per second, by which silence is detected.
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
                announced(loop.in_thread, PROTOCOL.name, url),
                tls.renewed(self._certificate),
                beating(self._pulse, loop.in_thread),
            ):
                await stop.wait()
            loop.ending.set()
            for connection in list(self._connections):
                connection.end_if_mute()
        await loop.close()

    def _connection(self, *args: Any, **options: Any) -> Connection:
        connection = Connection(*args, **options)
        self._connections.add(connection)
        return connection

    async def _answer(self, connection: ServerConnection, request: Any) -> Any:
        """Return the refusal of a handshake, or None."""
        if request.path.partition("?")[0] != SERVER.path:
            text = f"Workers connect to {SERVER.path}.\n"
            return connection.respond(http.HTTPStatus.NOT_FOUND, text)
        return await cast(Connection, connection).begin(self._loop, request)


class Connection(ServerConnection):
    """A connection of the library, with its outcome."""

    socket: LibrarySocket
    serving: asyncio.Task[None]

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        # The closing handshake is complete. The library waits for the client to disconnect first,
        # however long that takes, before it reports the end.
        if self.protocol.close_rcvd is not None:
            self.transport.close()

    def end_if_mute(self) -> None:
        """Disconnect a client whose request for a WebSocket has not arrived."""
        if self.request is None and hasattr(self, "transport"):
            self.transport.abort()

    async def begin(self, loop: ServerLoop, request: Any) -> Any:
        """Serve it; return a refusal of the handshake, or None once it is accepted."""
        self.socket = LibrarySocket(self, request)
        self.serving = asyncio.create_task(connections.serve(loop, self.socket))
        answered = self.socket.answered
        try:
            await asyncio.wait([self.serving, answered], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # the client has left, or the handshake took too long
            self.serving.cancel()
            raise
        if not answered.done():
            self.serving.result()
        return answered.result()


async def _handle(connection: ServerConnection) -> None:
    """Called by the library once the handshake is done."""
    ours = cast(Connection, connection)
    ours.socket.opened.set_result(None)
    await ours.serving


def _choose(connection: ServerConnection, offered: Any) -> Any:
    return cast(Connection, connection).socket.subprotocol


class LibrarySocket:
    """Implements `jobs.http.loop.Socket` with a connection of the library."""

    def __init__(self, connection: ServerConnection, request: Any) -> None:
        meta = {"REMOTE_ADDR": str((connection.remote_address or ("",))[0])}
        headers = request.headers.raw_items()
        add_headers(meta, [(name.encode(), text.encode("latin-1")) for name, text in headers])
        self.meta: Meta = meta
        offered = meta.get("HTTP_SEC_WEBSOCKET_PROTOCOL", "").split(",")
        self.subprotocols = [name.strip() for name in offered if name.strip()]
        self.close_code: int | None = None
        self.subprotocol: str | None = None
        self.answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """The refusal of the handshake; None if it is accepted."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._connection = connection

    async def refuse(self, status: int, text: str) -> None:
        self.answered.set_result(self._connection.respond(http.HTTPStatus(status), text))

    async def accept(self, subprotocol: str | None = None) -> None:
        self.subprotocol = subprotocol
        self.answered.set_result(None)
        gone = asyncio.ensure_future(self._connection.wait_closed())
        try:
            await asyncio.wait([self.opened, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if not self.opened.done():
            raise ConnectionError("The client has disconnected.")

    async def receive(self) -> str | bytes | None:
        try:
            return await self._connection.recv()
        except ConnectionClosed as end:
            if end.rcvd is not None and end.rcvd_then_sent:
                self.close_code = end.rcvd.code
            return None

    async def send(self, text: str) -> None:
        try:
            await self._connection.send(text)
        except ConnectionClosed as end:
            raise ConnectionError("The connection has ended.") from end

    async def close(self, code: int = 1000, reason: str = "") -> None:
        with contextlib.suppress(ConnectionClosed):
            await self._connection.close(code, reason)


class _InOneLine(logging.Filter):
    """Avoids the traceback that the library logs for every invalid handshake."""

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


def _port(server: Server) -> int:
    return int(next(iter(server.sockets)).getsockname()[1])
