"""uvicorn's HTTP protocol, with limits on the head of a request, and a shorter way to the answer.

uvicorn waits for a request's headers for as long as it takes, and keeps all of them. Everything
after the head has limits of its own (`workers.asgi.bodies`).

A POST that arrives whole, in one read, needs no ASGI messages: nothing of it is left to wait for.
`JobServer.answer_whole()` answers it without a task, and the response is written at once. Every
other request takes uvicorn's way.

Imports no models: uvicorn reads this module before the application.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from http import HTTPStatus
from typing import Any

from httptools import HttpParserCallbackError
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from jobs.conf import ojs_settings
from jobs.errors import InvalidRequest, OJSError, UnfinishedBody

MOST = 64 * 1024
"""Bytes of a request's line and headers."""
CLOSE = b"connection: close\r\n"
LATE = "The request's headers were not complete after {limit:g} s."
LARGE = f"The request's headers are larger than {MOST} bytes."
LONG = f"The request's URL is too long: with the headers, it may have {MOST} bytes."


class HttpProtocol(HttpToolsProtocol):
    """A connection. Its requests' heads must be complete within `BODY_TIMEOUT`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.url = b""
        self._limit = ojs_settings.BODY_TIMEOUT.total_seconds()
        self._is_in_head = False
        self._is_socket = False
        """It has become a WebSocket, whose silence is no longer this protocol's concern."""
        self._held = 0
        """Bytes of an unfinished head."""
        self._deadline: asyncio.TimerHandle | None = None
        # Asked of the class: a middleware that stands for the application must see every request.
        has_answer = hasattr(type(self.app), "answer_whole") and not self.access_log
        self._answer: Any = getattr(self.app, "answer_whole", None) if has_answer else None
        self._is_reading = False
        self._begun: RequestResponseCycle | None = None
        """A request whose head is in this read; its body may be as well."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._drop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._is_reading = True
        super().data_received(data)
        self._is_reading = False
        if self._is_socket:
            return
        begun, self._begun = self._begun, None
        if begun is not None:
            self._start_asgi_task(begun, self.app)
        if self._is_in_head:
            self._held += len(data)
            if self._held > MOST:
                self._refuse_head()
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

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if self._answer is None or app is not self.app or cycle.scope["method"] != "POST":
            super()._start_asgi_task(cycle, app)
        elif self._is_reading:
            self._begun = cycle
        elif cycle.more_body or cycle.waiting_for_100_continue or self.transport.is_closing():
            super()._start_asgi_task(cycle, app)
        else:
            reply = self._answer(cycle.scope, bytes(cycle.body))
            if reply is None:
                super()._start_asgi_task(cycle, app)
            else:
                reply.add_done_callback(partial(self._reply, cycle))

    def _reply(self, cycle: RequestResponseCycle, found: asyncio.Future[Any]) -> None:
        """Write a response, if that is possible without waiting."""
        failed = found.exception() is not None
        if cycle.disconnected and not failed:
            self.app.drop(found.result())
            return
        written = None
        if not failed and not self.flow.write_paused:
            first = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
            written = found.result().written(first, b"" if cycle.keep_alive else CLOSE)
        if written is None:
            finish: Any = partial(self.app.finish, found)
            super()._start_asgi_task(cycle, finish)
            return
        self.transport.write(written)
        cycle.response_complete = True
        if not cycle.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _set_deadline(self) -> None:
        if self._deadline is None and self._limit and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self._limit, self._give_up)

    def _drop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def send_400_response(self, msg: str) -> None:
        problem = sys.exception()
        if len(self.url) > MOST // 2:
            self._refuse_head()
        else:
            # What goes wrong in a callback is the URL.
            is_url = isinstance(problem, HttpParserCallbackError)
            reason = "Invalid URL" if is_url else problem or msg
            self._refuse(InvalidRequest(f"This is no HTTP request that can be read: {reason}."))

    def _give_up(self) -> None:
        if self._is_in_head:
            self._refuse(UnfinishedBody(LATE.format(limit=self._limit)))
        else:
            self.transport.close()

    def _refuse_head(self) -> None:
        if len(self.url) > MOST // 2:
            self._refuse(InvalidRequest(LONG), HTTPStatus.REQUEST_URI_TOO_LONG)
        else:
            self._refuse(InvalidRequest(LARGE), HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _refuse(self, problem: OJSError, status: HTTPStatus | None = None) -> None:
        # Imports models, but the application has been loaded by now.
        from jobs.http.base import refused
        from jobs.http.errors import refusal

        self._drop_deadline()
        if self.transport.is_closing():
            return
        response = refused({}, problem, refuse=partial(refusal, status=status))
        response["Content-Length"] = str(len(response.content))
        lines = [f"{name.lower()}: {text}\r\n".encode("latin-1") for name, text in response.items()]
        head = b"".join([STATUS_LINE[response.status_code], *lines, CLOSE, b"\r\n"])
        self.transport.write(head + response.content)
        self.transport.close()
