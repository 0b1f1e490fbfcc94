"""Detects a server that has fallen silent and gives up all connections of this process to it.

A server that is frozen or has disappeared looks like a busy one: its kernel may still acknowledge
what it is sent. So once a statement has been waiting for some seconds, its server is probed on a
separate connection with a different question: whether it supports TLS. PostgreSQL and its poolers
answer that before any login, whatever else they are doing, so a statement on a healthy server may
take as long as it needs, or wait for a lock. A server that answers none of several such probes,
and sends nothing on any other connection of this process meanwhile, is given up. Its connections
are shut down: waiting statements fail with an `OperationalError`, as if the server had gone, and
new connections go to the next host, or to the address that the server's name then resolves to.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import selectors
import socket
import struct
import threading
import time
import weakref
from typing import Any

logger = logging.getLogger("jobs.watchdog")

SUSPICION = 3.0
"""Seconds that a statement waits before its server is probed."""
QUESTIONS = 4
PAUSE = 2.5
"""Seconds from one probe to the next, and from the last one to the verdict."""
AGAIN = 5.0
"""Seconds before a server that has answered is probed again while statements keep waiting."""
SSL_REQUEST = bytes((0, 0, 0, 8, 4, 210, 22, 47))
"""Answered with one byte (PostgreSQL, frontend/backend protocol, "SSL Session Encryption")."""
ACTIVE = 1
"""`PQTRANS_ACTIVE` of libpq: a statement is running."""
TCP_INFO = struct.Struct("20x I 28x I")
"""From Linux's `struct tcp_info`: the largest segment received, in bytes, and how many milliseconds
ago the last data arrived."""
# EAGAIN: the queue of a UNIX socket is full. Any other error is either an answer from the server's
# machine or a local problem, and proves nothing.
SILENCE = {
    errno.EAGAIN,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
}

Address = tuple[int, Any]
"""Family of a socket, and the address of its other end."""


class Server:
    """The other end of some connections."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._ask_at = -math.inf
        self._asking: threading.Thread | None = None

    def suspect(self, now: float) -> None:
        """Probe it, unless a probe is running or was made a moment ago."""
        if now < self._ask_at or (self._asking is not None and self._asking.is_alive()):
            return
        self._asking = threading.Thread(target=self._ask, name="ojs-silence", daemon=True)
        self._asking.start()

    def _ask(self) -> None:
        began = time.monotonic()
        answered = answers(self.address)
        took = time.monotonic() - began
        lines = [line for line in list(_lines.values()) if line.server is self]
        if answered or any(line.silent_for() < took for line in lines):
            self._ask_at = time.monotonic() + AGAIN
            return
        count = sum(line.cut() for line in lines)
        if count:
            logger.error(
                "The database server at %s has answered nothing for %.0f s: connections of this "
                "process to it that are shut down: %d.",
                self,
                took,
                count,
            )

    def __str__(self) -> str:
        place = self.address[1]
        return f"{place[0]}:{place[1]}" if isinstance(place, tuple) else str(place)


class Line:
    """One psycopg connection."""

    def __init__(self, connection: Any, server: Server) -> None:
        key = id(connection)
        self.connection = weakref.ref(connection, lambda _: _lines.pop(key, None))
        self.server = server
        self._waiting_since: float | None = None
        """Since when every check has found a statement running."""
        self._is_cut = False

    def look(self, now: float) -> None:
        connection = self.connection()
        if connection is None or connection.closed:
            _lines.pop(id(connection), None)
            return
        if connection.pgconn.transaction_status != ACTIVE or self._is_cut:
            self._waiting_since = None
        elif self._waiting_since is None:
            self._waiting_since = now
        elif min(now - self._waiting_since, self.silent_for()) >= SUSPICION:
            self.server.suspect(now)

    def silent_for(self) -> float:
        """Return the seconds since data last came; infinite if the system does not report it."""
        with contextlib.suppress(Exception), _socket_of(self.connection()) as end:
            if end.family != socket.AF_UNIX:
                known = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
                segment, milliseconds = TCP_INFO.unpack(known)
                # Imitations of Linux leave all fields at 0, which would mean just now.
                return milliseconds / 1000 if segment else math.inf
        return math.inf

    def cut(self) -> bool:
        """Shut the connection down; return whether there was anything to shut down."""
        connection = self.connection()
        if connection is None or self._is_cut or not shut(connection, self.server.address):
            return False
        self._is_cut = True
        return True


_lines: dict[int, Line] = {}
"""By the id of the connection object."""
_servers: dict[Address, Server] = {}


def is_watching() -> bool:
    return bool(_lines)


def register(connection: Any) -> None:
    """Watch a psycopg connection for as long as it is open."""
    known = _lines.get(id(connection))
    if known is not None and known.connection() is connection:
        return
    try:
        with _socket_of(connection) as end:
            address = _other_end(end)
    except Exception:  # not a psycopg connection, or closed at once
        return
    server = _servers.setdefault(address, Server(address))
    _lines[id(connection)] = Line(connection, server)


def look(now: float) -> None:
    """Check every connection once; `jobs.store.watchdog` does so every second."""
    for line in list(_lines.values()):
        # It may just have been closed in its own thread.
        with contextlib.suppress(Exception):
            line.look(now)


def shut(connection: Any, address: Address | None = None) -> bool:
    """Shut down the socket of a connection, so that a thread waiting for a result continues.

    Args:
        address: leave it alone if its other end is elsewhere.
    """
    with contextlib.suppress(Exception), _socket_of(connection) as end:
        # If it was closed in its own thread meanwhile, its number may belong to another connection.
        if address is None or _other_end(end) == address:
            end.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _socket_of(connection: Any) -> socket.socket:
    return socket.socket(fileno=os.dup(connection.pgconn.socket))


def _other_end(end: socket.socket) -> Address:
    return end.family, end.getpeername()


def answers(address: Address) -> bool:
    """Whether the server there answers one of several probes, or anything else shows it is alive.

    Several, one after the other: a process or machine that was suspended during one probe finds its
    time used up when it resumes.
    """
    family, place = address
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(QUESTIONS):
            try:
                line = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
                line.setblocking(False)
                code = line.connect_ex(place)
            except OSError:
                return True  # not the server's problem
            if code in (0, errno.EINPROGRESS):
                selector.register(line, selectors.EVENT_WRITE)
            elif code not in SILENCE:
                return True
            if _hears_within(selector, PAUSE):
                return True
    return False


def _hears_within(selector: Any, seconds: float) -> bool:
    over = time.monotonic() + seconds
    while True:
        left = over - time.monotonic()
        # Once more when the time is up: this thread may not have been scheduled until then.
        for key, _ in selector.select(max(0, left)):
            if _hears(selector, key.fileobj, key.events):
                return True
        if left <= 0:
            return False


def _hears(selector: Any, line: socket.socket, awaited: int) -> bool:
    """Continue one probe; return whether that shows that the server is alive."""
    code = line.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if not code:
        try:
            if awaited == selectors.EVENT_READ:
                # End of file and a refusal count too: something must have sent them.
                line.recv(1)
                return True
            line.send(SSL_REQUEST)
            selector.modify(line, selectors.EVENT_READ)
            return False
        except OSError as problem:
            code = problem.errno or 0
    if code not in SILENCE:
        return True
    selector.unregister(line)
    return False


def _forget() -> None:
    """Forget all connections in a forked process: they are its parent's."""
    _lines.clear()
    _servers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
