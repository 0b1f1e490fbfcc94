"""A receiver of webhooks on this machine, which keeps what it gets."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from http.client import parse_headers
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RESET = struct.pack("ii", 1, 0)
"""As `SO_LINGER`: closing a connection resets it."""


class Receiver(ThreadingHTTPServer):
    """Answers each request with the next of `statuses`, and with 200 after the last."""

    daemon_threads = True

    def __init__(self, statuses: tuple[int, ...] = ()) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.statuses = list(statuses)
        self.received: list[tuple[dict[str, str], bytes]] = []
        self.location = self.at()
        """Where its redirects lead."""
        self.retry_after = ""

    def at(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_address[1]}/hook?a=1"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((dict(self.headers), body))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", self.server.location)
        if self.server.retry_after:
            self.send_header("Retry-After", self.server.retry_after)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"noted")

    def log_message(self, *args: Any) -> None:
        pass


@contextlib.contextmanager
def receiving(*statuses: int) -> Iterator[Receiver]:
    with Receiver(statuses) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def answering(answer: bytes, *, then: str = "close") -> Iterator[str]:
    """The URL of a receiver that answers each request with these bytes, valid HTTP or not.

    Args:
        then: what it does after them: `close` or `reset` the connection, or be `silent`.
    """
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    line, _ = server.accept()
                    with line, line.makefile("rb") as request:
                        request.readline()
                        request.read(int(parse_headers(request)["Content-Length"]))
                        line.sendall(answer)
                        if then == "reset":
                            line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                        elif then == "silent":
                            over.wait(30)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/hook"
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
