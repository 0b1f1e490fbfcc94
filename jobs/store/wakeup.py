"""Wakes waiting fetches when a queue has work: LISTEN/NOTIFY on PostgreSQL, else short polls.

A hint, never a promise: every waiter also polls every `WAIT_POLL_INTERVAL`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ..conf import ojs_settings
from .choice import is_portable
from .database import connection, is_postgresql, on_commit, run
from .keepalive import missing
from .sql import CHANNEL
from .watchdog import watch

logger = logging.getLogger("jobs.wakeup")

# While all workers are busy there are no listeners, and nothing is sent: a NOTIFY takes a lock that
# serializes the commits of the whole cluster.
NOTIFY = f"""
    SELECT count(pg_notify({CHANNEL}, queue))
      FROM unnest(%s::text[]) AS queue
     WHERE EXISTS (SELECT 1 FROM ojs_jobs_listener)
"""
# For the portable store, in two statements. Citus runs a statement where its table is, perhaps on
# another node, which has no listeners.
LISTENS = "SELECT 1 FROM ojs_jobs_listener LIMIT 1"
SEND = f"SELECT count(pg_notify({CHANNEL}, name)) FROM unnest(%s::text[]) AS name"
LISTEN = """
    INSERT INTO ojs_jobs_listener (name, seen_at) VALUES (%s, statement_timestamp())
    ON CONFLICT (name) DO UPDATE SET seen_at = excluded.seen_at
"""
FORGET = "DELETE FROM ojs_jobs_listener WHERE name = %s"
SHORT_POLL = 0.1
"""Seconds between two polls where the database cannot notify."""
LINGER = 60
"""Seconds a listener outlives its last waiter."""
REFRESH = 5
"""Seconds between two updates of a listener's row in the table of listeners."""
TRIAL = 1
"""Seconds that a notification may take to arrive."""
AGAIN = 1
"""Seconds before reconnecting after a connection was lost."""
READY = 2
"""Seconds that the first waiter gives the listening thread to connect."""
DEAF = 300
"""Seconds before LISTEN is tried again where it does not work."""


def look_again_after() -> float:
    """Return the seconds between a waiter's polls: infinite if the database notifies."""
    return math.inf if is_postgresql() else SHORT_POLL


class Subscription:
    """One waiter. Subscribe, look for work, then wait: work arriving in between is not missed."""

    def __init__(self, queues: Collection[str]) -> None:
        self.queues = frozenset(queues)
        self._bell = threading.Event()

    def wants(self, queues: Collection[str]) -> bool:
        return not self.queues.isdisjoint(queues)

    def ring(self, queues: Collection[str] = ()) -> None:
        self._bell.set()

    def wait(self, timeout: float) -> bool:
        """Sleep until one of the queues may have work; return whether a wake-up came in time.

        Args:
            timeout: seconds; the next poll may be due sooner.
        """
        longest = ojs_settings.WAIT_POLL_INTERVAL.total_seconds()
        if not is_postgresql():
            longest = min(longest, SHORT_POLL)
        _give_back_connection()
        rung = self._bell.wait(max(0.0, min(timeout, longest)))
        self._bell.clear()
        return rung


class Watch:
    """A waiter for every queue."""

    def __init__(self, notify: Callable[[Collection[str]], object]) -> None:
        self.ring = notify

    def wants(self, queues: Collection[str]) -> bool:
        # Names with a colon are those of awaited jobs (`awaited`).
        return any(":" not in queue for queue in queues)


_subscriptions: set[Subscription | Watch] = set()
_lock = threading.Lock()
_listener: threading.Thread | None = None
_wanted_at = 0.0
"""When a waiter last came or left, by `time.monotonic()`."""


@contextlib.contextmanager
def subscription(queues: Collection[str]) -> Iterator[Subscription]:
    with _subscribed(Subscription(queues)) as waiter:
        yield waiter


@contextlib.contextmanager
def watching(notify: Callable[[Collection[str]], object]) -> Iterator[None]:
    """Call `notify` with the queues that may have work, in the listening thread.

    Without queues, notifications may have been lost: every queue may have work.

    For callers without a thread to wait in. As with a subscription, poll now and then for wake-ups
    that were missed.
    """
    with _subscribed(Watch(notify)):
        yield


@contextlib.contextmanager
def _subscribed(waiter: Any) -> Iterator[Any]:
    global _wanted_at
    if is_postgresql():
        _ensure_listener()
    with _lock:
        _subscriptions.add(waiter)
    try:
        yield waiter
    finally:
        with _lock:
            # In this order for `_is_wanted()`, which may run in between.
            _wanted_at = time.monotonic()
            _subscriptions.discard(waiter)


def notify(queues: Collection[str]) -> None:
    """Wake the fetches that wait for `queues`, in this and other processes, once work is visible.

    PostgreSQL delivers a notification when the transaction it is part of commits.
    """
    names = sorted(queues)
    if not names:
        return
    if not is_postgresql():
        on_commit(lambda: _ring(names))
    elif not is_portable():
        run(NOTIFY, [names])
    elif run(LISTENS, []):
        run(SEND, [names])


def is_anybody_waiting() -> bool:
    """Whether something in this process waits for a queue."""
    return bool(_subscriptions)


def remind(queue: str, seconds: float) -> None:
    """Wake the waiters of this process for `queue` after some seconds; the last call counts.

    Use it where jobs may start without a transaction that could notify.
    """
    _reminders.put(queue, time.monotonic() + seconds)


class _Reminders:
    """The queues to ring later, and the thread that does so while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        self._thread: threading.Thread | None = None

    def put(self, queue: str, due: float) -> None:
        with self._changed:
            is_next = due < min(self._due.values(), default=math.inf)
            self._due[queue] = due
            if self._thread is not None and self._thread.is_alive():
                if is_next:
                    self._changed.notify()
            else:
                self._thread = threading.Thread(
                    target=self._ring_each, name="ojs-reminders", daemon=True
                )
                self._thread.start()

    def _ring_each(self) -> None:
        while names := self._wait_for_next():
            _ring(names)

    def _wait_for_next(self) -> list[str]:
        """Return the queues that are due, once there are some; none if there was none for long."""
        with self._changed:
            while True:
                if not self._due:
                    self._changed.wait(LINGER)
                if not self._due:
                    self._thread = None
                    return []
                now = time.monotonic()
                names = [queue for queue, due in self._due.items() if due <= now]
                if names:
                    for queue in names:
                        del self._due[queue]
                    return names
                self._changed.wait(min(self._due.values()) - now)


_reminders = _Reminders()


def _ring(queues: Collection[str]) -> None:
    """Wake the waiters for `queues`; all of them if it is empty."""
    if not _subscriptions:
        return
    with _lock:
        waiters = [waiter for waiter in _subscriptions if not queues or waiter.wants(queues)]
    for waiter in waiters:
        waiter.ring(queues)


def _give_back_connection() -> None:
    """Return a pooled connection, so that a sleeping thread does not keep it from busy ones."""
    current = connection()
    if current.settings_dict["OPTIONS"].get("pool") and not current.in_atomic_block:
        current.close()


def _ensure_listener() -> None:
    global _listener, _wanted_at
    with _lock:
        # The caller is not among the waiters yet.
        _wanted_at = time.monotonic()
        if _listener is None or not _listener.is_alive():
            ready = threading.Event()
            parameters = _connection_parameters()
            _listener = threading.Thread(
                target=_listen, args=(parameters, ready), name="ojs-wakeup", daemon=True
            )
            _listener.start()
        else:
            return
    ready.wait(READY)


def _is_wanted() -> bool:
    """Whether there is a waiter, or has been one in the last `LINGER` seconds."""
    return is_anybody_waiting() or time.monotonic() - _wanted_at < LINGER


def _may_end() -> bool:
    """Whether the listening thread may end; if so, the next waiter starts another one."""
    global _listener
    with _lock:
        if _is_wanted():
            return False
        _listener = None
        return True


def _connection_parameters() -> dict[str, Any]:
    parameters = dict(connection().get_connection_params())
    for ours in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(ours, None)
    return {**missing(parameters, parameters.get("host", "")), **parameters}


def _listen(parameters: dict[str, Any], ready: threading.Event) -> None:
    """Relay notifications to this process's waiters until there has been none for a while.

    Errors of the server or a pooler do not end it; waiters continue to poll.
    """
    import psycopg

    ear = _Ear(parameters, ready)
    while not _may_end():
        pause = AGAIN
        try:
            with ear.connected() as line:
                if ear.hears(line):
                    ear.relay(line)
                else:
                    pause = DEAF
                line.execute(FORGET, [ear.name])
        except psycopg.Error as problem:
            logger.warning("Lost the connection that listens for jobs: %s", problem)
        ready.set()
        ear.rest(pause)


class _Ear:
    """The state of the listening thread."""

    def __init__(self, parameters: dict[str, Any], ready: threading.Event) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._parameters = parameters
        self._ready = ready
        self._has_complained = False
        self._channel = ""

    def rest(self, seconds: float) -> None:
        over = time.monotonic() + seconds
        while _is_wanted() and time.monotonic() < over:
            threading.Event().wait(1)

    def connected(self) -> Any:
        """Connect. Nothing is prepared: a pooler may route each statement to another session."""
        import psycopg

        line = psycopg.connect(**self._parameters, autocommit=True, prepare_threshold=None)
        watch(line)
        return line

    def hears(self, line: Any) -> bool:
        """Listen; return whether a notification from another connection really arrives.

        LISTEN applies to a server session. A pooler in transaction mode accepts it, then gives the
        session to another client.
        """
        ((self._channel,),) = line.execute(f"SELECT {CHANNEL}").fetchall()
        trial = f"{self._channel}_{secrets.token_hex(8)}"
        line.execute(f"LISTEN {self._channel}")
        line.execute(f"LISTEN {trial}")
        with self.connected() as other:
            other.execute("SELECT pg_notify(%s, '')", [trial])
        if self._hears_of(trial, line):
            line.execute(f"UNLISTEN {trial}")
            self._has_complained = False
            return True
        # In the session the pooler assigns now, which is most probably the same as before.
        line.execute("UNLISTEN *")
        if not self._has_complained:
            self._has_complained = True
            logger.warning(
                "LISTEN does not work on this connection, probably because of a pooler in "
                "transaction mode: waiting fetches poll every %g s instead.",
                ojs_settings.WAIT_POLL_INTERVAL.total_seconds(),
            )
        return False

    def _hears_of(self, trial: str, line: Any) -> bool:
        # The generator keeps the connection busy until it is closed.
        with contextlib.closing(line.notifies(timeout=TRIAL)) as heard:
            for notification in heard:
                if notification.channel == trial:
                    return True
                _ring([notification.payload])
        return False

    def relay(self, line: Any) -> None:
        line.execute(LISTEN, [self.name])
        # Nothing was sent to those that looked before this row was there.
        _ring([])
        self._ready.set()
        while _is_wanted():
            for notification in line.notifies(timeout=REFRESH):
                if notification.channel == self._channel:
                    _ring([notification.payload])
            line.execute(LISTEN, [self.name])
