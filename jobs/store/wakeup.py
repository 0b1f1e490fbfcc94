"""Tell waiting fetchers that a queue has work: LISTEN/NOTIFY on PostgreSQL, else short polls.

A hint, never a promise: whoever waits looks again by itself every `WAIT_POLL_INTERVAL`.
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
from .database import connection, is_postgresql, on_commit, run
from .keepalive import missing

logger = logging.getLogger("jobs.wakeup")

CHANNEL = "ojs_jobs"
# Nobody listens while all workers are busy, and then nothing is sent: a NOTIFY takes a lock that
# makes the commits of the whole cluster queue up.
NOTIFY = f"""
    SELECT count(pg_notify('{CHANNEL}', queue))
      FROM unnest(%s::text[]) AS queue
     WHERE EXISTS (SELECT 1 FROM ojs_jobs_listener)
"""
LISTEN = """
    INSERT INTO ojs_jobs_listener (name, seen_at) VALUES (%s, statement_timestamp())
    ON CONFLICT (name) DO UPDATE SET seen_at = statement_timestamp()
"""
FORGET = "DELETE FROM ojs_jobs_listener WHERE name = %s"
SHORT_POLL = 0.1
"""Seconds between two looks where the database cannot notify."""
LINGER = 60
"""Seconds a listener outlives its last waiter."""
REFRESH = 5
"""Seconds between two entries of a listener into the table of those that listen."""
TRIAL = 1
"""Seconds that a notification may take to arrive."""
AGAIN = 1
"""Seconds before another connection is tried after one that was lost."""
DEAF = 300
"""Seconds before LISTEN is tried again where it does not work."""


def look_again_after() -> float:
    """Seconds after which one that waits looks by itself: for ever where the database notifies."""
    return math.inf if is_postgresql() else SHORT_POLL


class Subscription:
    """One waiter. Subscribe, look for work, then wait: what comes in between is not missed."""

    def __init__(self, queues: Collection[str]) -> None:
        self.queues = frozenset(queues)
        self._bell = threading.Event()

    def wants(self, queues: Collection[str]) -> bool:
        return not self.queues.isdisjoint(queues)

    def ring(self, queues: Collection[str] = ()) -> None:
        self._bell.set()

    def wait(self, timeout: float) -> bool:
        """Sleep until one of the queues may have work; whether anybody said so in time.

        Args:
            timeout: seconds; the time to look again may come sooner.
        """
        longest = ojs_settings.WAIT_POLL_INTERVAL.total_seconds()
        if not is_postgresql():
            longest = min(longest, SHORT_POLL)
        _give_back_connection()
        rung = self._bell.wait(max(0.0, min(timeout, longest)))
        self._bell.clear()
        return rung


class Watch:
    """One that wants to hear of every queue."""

    def __init__(self, told: Callable[[Collection[str]], object]) -> None:
        self.ring = told

    def wants(self, queues: Collection[str]) -> bool:
        return True


_subscriptions: set[Subscription | Watch] = set()
_lock = threading.Lock()
_listener: threading.Thread | None = None


@contextlib.contextmanager
def subscription(queues: Collection[str]) -> Iterator[Subscription]:
    with _subscribed(Subscription(queues)) as waiter:
        yield waiter


@contextlib.contextmanager
def watching(told: Callable[[Collection[str]], object]) -> Iterator[None]:
    """Have `told` called with the queues that may have work, in the thread that listens.

    For those that have no thread to wait in; as with a subscription, what is missed is found by
    looking now and then.
    """
    with _subscribed(Watch(told)):
        yield


@contextlib.contextmanager
def _subscribed(waiter: Any) -> Iterator[Any]:
    with _lock:
        _subscriptions.add(waiter)
    if is_postgresql():
        _ensure_listener()
    try:
        yield waiter
    finally:
        with _lock:
            _subscriptions.discard(waiter)


def notify(queues: Collection[str]) -> None:
    """Wake the fetchers of `queues`, here and in other processes, once the work is visible.

    PostgreSQL delivers a notification when the transaction it is part of commits.
    """
    names = sorted(queues)
    if not names:
        return
    if is_postgresql():
        run(NOTIFY, [names])
    else:
        on_commit(lambda: _ring(names))


def _ring(queues: Collection[str]) -> None:
    if not _subscriptions:
        return
    with _lock:
        waiters = [waiter for waiter in _subscriptions if waiter.wants(queues)]
    for waiter in waiters:
        waiter.ring(queues)


def _give_back_connection() -> None:
    """A sleeper must not keep a pooled connection from those that work."""
    current = connection()
    if current.settings_dict["OPTIONS"].get("pool") and not current.in_atomic_block:
        current.close()


def _ensure_listener() -> None:
    global _listener
    with _lock:
        if _listener is None or not _listener.is_alive():
            ready = threading.Event()
            parameters = _connection_parameters()
            _listener = threading.Thread(
                target=_listen, args=(parameters, ready), name="ojs-wakeup", daemon=True
            )
            _listener.start()
        else:
            return
    ready.wait(2)


def _connection_parameters() -> dict[str, Any]:
    parameters = dict(connection().get_connection_params())
    for ours in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(ours, None)
    return {**missing(parameters), **parameters}


def _listen(parameters: dict[str, Any], ready: threading.Event) -> None:
    """Relay notifications to the waiters of this process until none has come for a while.

    Whatever the server or a pooler says, this goes on; waiters look by themselves meanwhile.
    """
    import psycopg

    ear = _Ear(parameters, ready)
    while ear.is_wanted:
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
    """What the thread that listens knows."""

    def __init__(self, parameters: dict[str, Any], ready: threading.Event) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}"
        self._parameters = parameters
        self._ready = ready
        self._wanted_at = time.monotonic()
        self._has_complained = False

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits, or did a moment ago."""
        if _subscriptions:
            self._wanted_at = time.monotonic()
        return time.monotonic() - self._wanted_at < LINGER

    def rest(self, seconds: float) -> None:
        over = time.monotonic() + seconds
        while self.is_wanted and time.monotonic() < over:
            threading.Event().wait(1)

    def connected(self) -> Any:
        """Connect. Nothing is prepared: a pooler may send each statement to another session."""
        import psycopg

        return psycopg.connect(**self._parameters, autocommit=True, prepare_threshold=None)

    def hears(self, line: Any) -> bool:
        """Listen; whether what another connection sends really arrives.

        LISTEN concerns a session of the server. A pooler in transaction mode accepts it, and gives
        the session to somebody else.
        """
        trial = f"{CHANNEL}_{secrets.token_hex(8)}"
        line.execute(f"LISTEN {CHANNEL}")
        line.execute(f"LISTEN {trial}")
        with self.connected() as other:
            other.execute("SELECT pg_notify(%s, '')", [trial])
        if self._hears_of(trial, line):
            line.execute(f"UNLISTEN {trial}")
            self._has_complained = False
            return True
        # In the session that happens to be ours now: most probably the one that was before.
        line.execute("UNLISTEN *")
        if not self._has_complained:
            self._has_complained = True
            logger.warning(
                "LISTEN does not work on this connection, probably because of a pooler in "
                "transaction mode: those that wait for jobs look every %g s instead.",
                ojs_settings.WAIT_POLL_INTERVAL.total_seconds(),
            )
        return False

    def _hears_of(self, trial: str, line: Any) -> bool:
        # The connection is the generator's until that is closed.
        with contextlib.closing(line.notifies(timeout=TRIAL)) as heard:
            for notification in heard:
                if notification.channel == trial:
                    return True
                _ring([notification.payload])
        return False

    def relay(self, line: Any) -> None:
        while self.is_wanted:
            line.execute(LISTEN, [self.name])
            self._ready.set()
            for notification in line.notifies(timeout=REFRESH):
                if notification.channel == CHANNEL:
                    _ring([notification.payload])
