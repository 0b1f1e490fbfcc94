"""Limits how long work may wait for the database, enforced by a thread.

Keepalives detect a machine that is gone (`keepalive`), and `silence` a server that is frozen while
its kernel still runs. Neither detects a lock that is never released, or a disk that hangs. A
statement that runs for too long is cancelled; if that does not help, its connection is cut, and
the waiting thread gets an `OperationalError` as if the server had gone.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from . import silence
from .database import connection
from .standby import places

logger = logging.getLogger("jobs.watchdog")

LIMIT = 60.0
"""Seconds that a statement of a command or a request may take."""

TICK = 1.0
PATIENCE = 3.0
"""Seconds for a cancelled statement to end."""


class Work:
    """A piece of work in one thread."""

    def __init__(self, what: str, limit: float, stuck: Callable[[], object] | None) -> None:
        self.what = what
        self.limit = limit
        self.database = connection()
        self.thread = threading.get_ident()
        self.began = time.monotonic()
        self.stuck = stuck
        self.waiting_since: float | None = None
        """Since when every check has found a statement running."""
        self.cancelled_at: float | None = None
        self.is_cut = False

    def look(self, now: float) -> None:
        if not self._waits:
            self.waiting_since = None
        elif self.waiting_since is None:
            self.waiting_since = now
        elif self.cancelled_at is None:
            if now - self.waiting_since >= self.limit:
                self._cancel(now)
        elif now - self.cancelled_at >= PATIENCE and not self.is_cut:
            self._cut()
        if self.stuck is not None and now - self.began >= 2 * self.limit + PATIENCE:
            stack = "".join(traceback.format_stack(sys._current_frames()[self.thread]))
            logger.critical("%s: no end after %.0f s.\n%s", self.what, now - self.began, stack)
            self.stuck()

    @property
    def _waits(self) -> bool:
        """Whether a statement is waiting for its result."""
        try:
            status = self.database.connection.pgconn.transaction_status
        except Exception:  # no connection, or one that is being closed
            return False
        return bool(status == silence.ACTIVE)

    def _cancel(self, now: float) -> None:
        self.cancelled_at = now
        logger.error(
            "%s has been waiting for the database for %.0f s: its statement is cancelled.",
            self.what,
            self.limit,
        )
        # In another thread: a server that does not respond does not respond to this either.
        threading.Thread(
            target=_cancel, args=[self.database.connection], name="ojs-cancel", daemon=True
        ).start()

    def _cut(self) -> None:
        self.is_cut = True
        logger.error("%s: the database does not answer; its connection is cut.", self.what)
        silence.shut(self.database.connection)


def _cancel(connection: Any) -> None:
    with contextlib.suppress(Exception):  # then it is cut
        connection.cancel_safe(timeout=PATIENCE)


_under_way: dict[int, Work] = {}
_thread: threading.Thread | None = None
_starting = threading.Lock()
_some = threading.Event()


class bounded:  # noqa: N801 (reads as a function, and costs every request half as much)
    """Keep statements in this block from waiting much longer than `limit` seconds.

    Args:
        what: whose statement it is, for the log.
        stuck: called in another thread if the block has not ended after more than twice `limit`.
    """

    __slots__ = ("_work",)

    def __init__(
        self, what: str, limit: float = LIMIT, stuck: Callable[[], object] | None = None
    ) -> None:
        self._work = Work(what, limit, stuck)

    def __enter__(self) -> None:
        _under_way[id(self)] = self._work
        _see_to_it()

    def __exit__(self, *problem: object) -> None:
        del _under_way[id(self)]


def watch(connection: Any) -> None:
    """Give up a psycopg connection once its server has fallen silent (`silence`)."""
    silence.register(connection)
    _see_to_it()


def watch_new(sender: Any, connection: Any, **others: Any) -> None:
    """Watch each connection that Django makes to the jobs' database or its standby, including the
    site's own."""
    if connection.vendor == "postgresql" and connection.alias in places():
        watch(connection.connection)


def _see_to_it() -> None:
    if _thread is None or not _thread.is_alive():
        _start()
    if not _some.is_set():
        _some.set()


def _start() -> None:
    global _thread
    with _starting:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_watch, name="ojs-watchdog", daemon=True)
            _thread.start()


def _watch() -> None:
    pause = threading.Event()
    while True:
        _some.wait()
        _some.clear()
        while _under_way or silence.is_watching():
            pause.wait(TICK)
            now = time.monotonic()
            for work in list(_under_way.values()):
                work.look(now)
            silence.look(now)
