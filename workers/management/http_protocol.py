"""uvicorn's HTTP protocol, with limits on the head of a request, and a shorter way to the answer.

uvicorn waits for a request's headers for as long as it takes, and keeps all of them. Bodies have
limits of their own (`workers.asgi.bodies`), but those see nothing of the trailers after a chunked
body, which uvicorn would add to the headers.

It also drops the body of a request that offers to upgrade the connection, and does not answer a
WebSocket handshake that it cannot read. Here, only a WebSocket handshake upgrades a connection.
Other offers are ignored, as a server may (RFC 9110 §7.8): `Upgrade: h2c`, which some clients send
with every request, and `websocket` in a request that has a body.

A POST that arrives whole, in one read, needs no ASGI messages: nothing of it is left to wait for.
`JobServer.answer_whole()` answers it without a task, and the response is written at once. Every
other request takes uvicorn's way.

Imports no models: uvicorn reads this module before the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from functools import partial
from http import HTTPStatus
from typing import Any

from httptools import (
    HttpParserCallbackError,
    HttpParserError,
    HttpParserUpgrade,
    HttpRequestParser,
)
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
LONG_END = f"More than {MOST} bytes follow the request's body without ending the request."
LONG = f"The request's URL is too long: with the headers, it may have {MOST} bytes."
NO_HANDSHAKE = "This is no WebSocket handshake that can be read: {problem}."
UNREADABLE = "Invalid HTTP request received."


class _NoUTF8(logging.Filter):
    """Logs in one line that a WebSocket's client sent text that is not UTF-8.

    uvicorn logs it as an error, with a traceback: any client could fill the log with these.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and str(record.msg).startswith("Invalid UTF-8"):
            record.exc_info = None
            record.levelno, record.levelname = logging.INFO, "INFO"
        return True


class HttpProtocol(HttpToolsProtocol):
    """A connection. Its requests' heads must be complete within `BODY_TIMEOUT`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self._limit = ojs_settings.BODY_TIMEOUT.total_seconds()
        self._is_in_head = False
        self._is_socket = False
        """It has become a WebSocket, whose silence is no longer this protocol's concern."""
        self._held = 0
        """Bytes of the reads before this one in which the head began and went on."""
        self._shared = 0
        """Those of them in a read that also has an earlier request."""
        self._read = 0
        """Bytes of this read."""
        self._is_in_body = False
        self._has_body = False
        """Something of a body was in this read."""
        self._bare = 0
        """Bytes of the reads in which nothing of the body was: trailers, as a rule."""
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
        earlier = self.cycle
        is_in_body = not self._is_in_head and earlier is not None and earlier.more_body
        self._unset_keepalive_if_required()
        self._read = len(data)
        self._is_reading = True
        self._has_body = False
        self._parse(data)
        self._is_reading = False
        if self._is_socket:
            return
        begun, self._begun = self._begun, None
        if begun is not None:
            self._start_asgi_task(begun, self.app)
        if self._is_in_body:
            self._bare = 0 if self._has_body else self._bare + len(data)
            if self._bare > MOST:
                self._refuse_trailers()
                return
        if self._is_in_head:
            self._held += len(data)
            if is_in_body or self.cycle is not earlier:
                self._shared = len(data)
            if self._held - self._shared > MOST:
                self._refuse_head()
                return
            self._set_deadline()
        elif self.cycle is None or self.cycle.response_complete:
            # Line breaks before a request: the parser skips them.
            self._set_deadline()

    def _parse(self, data: bytes) -> None:
        unread: bytes | memoryview = data
        try:
            while unread:
                try:
                    self.parser.feed_data(unread)
                    return
                except HttpParserUpgrade as upgrade:
                    # Where the head ends.
                    unread = memoryview(unread)[upgrade.args[0] :]
                if self._is_handshake():
                    self.handle_websocket_upgrade()
                    return
                if self._should_upgrade():
                    # The old one takes nothing more if the connection is to close.
                    self.parser = _new_parser(self)
                    self.parser.feed_data(self._head_without_upgrade())
        except HttpParserError:
            self.logger.warning(UNREADABLE)
            self.send_400_response(UNREADABLE)

    def _should_upgrade(self) -> bool:
        """Whether uvicorn is to leave the request alone, whose head the parser stops at."""
        # It also stops at CONNECT, which offers nothing.
        return self.scope["method"] != "CONNECT"

    def _is_handshake(self) -> bool:
        """Return whether the head begins a WebSocket, and nothing else is in hand."""
        offers = [value.lower() for name, value in self.headers if name == b"upgrade"]
        return (
            offers == [b"websocket"]
            and self.scope["method"] == "GET"
            and self.scope["http_version"] == "1.1"
            and not any(map(_announces_body, self.headers))
            and (self.cycle is None or self.cycle.response_complete)
            and self.ws_protocol_class is not None
        )

    def _head_without_upgrade(self) -> bytes:
        scope = self.scope
        lines = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        first = b"%b %b HTTP/%b\r\n" % (
            scope["method"].encode(),
            self.url,
            scope["http_version"].encode(),
        )
        return b"".join([first, *lines, b"\r\n"])

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._held = self._shared = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer does not become a header (RFC 9110 §6.5.1).
        if self._is_in_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._has_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_body = False
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        self._is_in_head, self._is_in_body = False, True
        self._has_body, self._bare = True, 0
        self._drop_deadline()
        # The first is quick, and enough for the usual request.
        if self._held + self._read > MOST and self._is_large():
            raise ValueError(LARGE)
        super().on_headers_complete()

    def _is_large(self) -> bool:
        """Whether the head has more than `MOST` bytes, as far as the parser has handed it over."""
        sizes = [len(name) + len(value) + 4 for name, value in self.headers]
        return len(self.url) + sum(sizes) > MOST

    def handle_websocket_upgrade(self) -> None:
        self._is_socket = True
        if not any(isinstance(known, _NoUTF8) for known in self.logger.filters):
            self.logger.addFilter(_NoUTF8())
        super().handle_websocket_upgrade()
        socket: Any = self.transport.get_protocol()
        # uvicorn does not look whether its WebSocket library could read the handshake. Others of
        # its protocols, which have no such attribute, do.
        if not getattr(socket, "handshake_initiated", True):
            answer = b"".join(socket.conn.data_to_send())
            status = HTTPStatus(int(answer.split()[1])) if answer else HTTPStatus.BAD_REQUEST
            problem = socket.conn.handshake_exc
            self._refuse(InvalidRequest(NO_HANDSHAKE.format(problem=problem)), status)

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
            # What cannot be written goes to `finish()`, whose errors uvicorn answers.
            with contextlib.suppress(Exception):
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
        if len(self.url) > MOST // 2 or self._is_large():
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

    def _refuse_trailers(self) -> None:
        if self.cycle is not None and self.cycle.response_started:
            self.transport.close()
        else:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            self._refuse(InvalidRequest(LONG_END), status)

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


def _new_parser(protocol: HttpProtocol) -> HttpRequestParser:
    """Return a parser with the options that uvicorn chooses."""
    parser = HttpRequestParser(protocol)
    # httptools has them since 0.6.3.
    with contextlib.suppress(AttributeError):
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


def _announces_body(header: tuple[bytes, bytes]) -> bool:
    name, value = header
    return name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
