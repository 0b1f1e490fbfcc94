"""uvicorn's HTTP protocol, with limits on the head of a request.

uvicorn waits for a request's headers for as long as it takes, and keeps all of them. Everything
after the head has limits of its own (`workers.asgi.bodies`). Imports no models: uvicorn reads this
module before the application.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from jobs.conf import ojs_settings

MOST = 64 * 1024
"""Bytes of a request's line and headers."""
LATE = "The request's headers were not complete after {limit:g} s."
LARGE = f"The request's headers are larger than {MOST} bytes."


class HttpProtocol(HttpToolsProtocol):
    """A connection. Its requests' heads must be complete within `BODY_TIMEOUT`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit = ojs_settings.BODY_TIMEOUT.total_seconds()
        self._is_in_head = False
        self._is_socket = False
        """It has become a WebSocket, whose silence is no longer this protocol's concern."""
        self._held = 0
        """Bytes of an unfinished head."""
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_socket:
            return
        if self._is_in_head:
            self._held += len(data)
            if self._held > MOST:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, LARGE)
                return
            self._set_deadline()
        elif self.cycle is None or self.cycle.response_complete:
            # Line breaks before a request: the parser skips them.
            self._set_deadline()

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._held = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._drop_deadline()
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        self._is_socket = True
        super().handle_websocket_upgrade()

    def _set_deadline(self) -> None:
        if self._deadline is None and self._limit and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self._limit, self._give_up)

    def _drop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        if self._is_in_head:
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, LATE.format(limit=self._limit))
        else:
            self.transport.close()

    def _refuse(self, status: HTTPStatus, text: str) -> None:
        self._drop_deadline()
        if self.transport.is_closing():
            return
        body = f"{text}\n".encode()
        head = f"content-type: text/plain; charset=utf-8\r\ncontent-length: {len(body)}\r\n"
        self.transport.write(
            STATUS_LINE[status] + head.encode() + b"connection: close\r\n\r\n" + body
        )
        self.transport.close()
