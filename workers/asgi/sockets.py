"""WebSockets, and the functions that serve them, by path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from django.utils.module_loading import import_string

from jobs.conf import has_socket, protocols
from jobs.http.loop import Loop, Socket
from jobs.http.request import Meta

from .environ import environ_of

Serve = Callable[[Loop, Socket], Coroutine[Any, Any, None]]
"""Serves one WebSocket to its end."""

NOT_FOUND = "Nothing is served here.\n"
GOODBYE = 2.0
"""Seconds that a client has to disconnect after a refusal."""
OWN = {"/ojs/v1/ws": "jobs.realtime.socket.serve"}
"""WebSockets that belong to no worker protocol: path → dotted path of the function."""


def sockets_of(mount: str = "") -> dict[str, Serve]:
    """Return the functions that serve WebSockets, by path, including worker protocols.

    Args:
        mount: the prefix below which the site includes `workers.urls`: `/queue`.
    """
    declared = [protocol.socket for protocol in protocols() if has_socket(protocol)]
    served = OWN | {socket.path: socket.serve for socket in declared if socket is not None}
    return {f"{mount}{path}": import_string(serve) for path, serve in served.items()}


class ASGISocket:
    """Implements `jobs.http.loop.Socket` over ASGI."""

    def __init__(
        self,
        scope: Mapping[str, Any],
        receive: Callable[[], Awaitable[Any]],
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        self.meta: Meta = environ_of(scope)
        self.subprotocols: list[str] = list(scope.get("subprotocols") or ())
        self.close_code: int | None = None
        self._can_refuse = "websocket.http.response" in (scope.get("extensions") or {})
        self._receive = receive
        self._send = send
        self._has_ended = False
        self._was_refused = False
        """The handshake was answered with a response of HTTP."""
        self._pending: Any = None
        """The next message, while waiting for it."""

    async def refuse(self, status: int, text: str) -> None:
        self._has_ended = True
        if not self._can_refuse:
            # The server answers 403.
            await self._send({"type": "websocket.close"})
            return
        content = text.encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(content)),
        ]
        start = {"type": "websocket.http.response.start", "status": status, "headers": headers}
        await self._send(start)
        await self._send({"type": "websocket.http.response.body", "body": content})
        self._was_refused = True

    async def see_off(self) -> None:
        """Wait until a client that was refused has disconnected.

        uvicorn takes the refusal for none, and logs an error, if the application returns before.
        """
        if not self._was_refused:
            return
        with contextlib.suppress(Exception):
            async with asyncio.timeout(GOODBYE):
                # uvicorn says so with the refusal, and again when the connection has ended.
                await self._receive()
                await self._receive()

    async def accept(self, subprotocol: str | None = None) -> None:
        await self._send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": []})

    async def receive(self) -> str | bytes | None:
        if self._has_ended:
            return None
        # granian returns a future, other servers a coroutine; both can be cancelled this way.
        awaited: Any = self._receive()
        self._pending = awaited if hasattr(awaited, "cancel") else asyncio.ensure_future(awaited)
        try:
            message = await self._pending
        except asyncio.CancelledError:
            if _is_cancelled() or self._pending is not None:
                raise
            return None  # `close` has been called
        finally:
            self._pending = None
        if message["type"] == "websocket.disconnect":
            self._has_ended = True
            self.close_code = message.get("code") or 1005
            return None
        text: str | None = message.get("text")
        found: str | bytes | None = message.get("bytes") if text is None else text
        return found

    async def send(self, text: str) -> None:
        if self._has_ended:
            raise ConnectionError("The WebSocket has ended.")
        try:
            await self._send({"type": "websocket.send", "text": text})
        except ConnectionError:
            raise
        except Exception as problem:  # each server raises a different exception
            # Messages that arrived before, and how it was closed, can still be received.
            raise ConnectionError("The WebSocket has ended.") from problem

    async def close(self, code: int = 1000, reason: str = "") -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._pending is not None:
            # granian sends no close frame while a message is awaited.
            pending, self._pending = self._pending, None
            pending.cancel()
            await asyncio.sleep(0)
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": reason})
        except Exception as problem:
            raise ConnectionError("The WebSocket has ended.") from problem


def _is_cancelled() -> bool:
    """Whether the caller's own task is cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
