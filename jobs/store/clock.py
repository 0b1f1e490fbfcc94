"""Gives the time by the database's clock, which all servers and workers share.

It decides whatever two machines may disagree on: in statements as `Now()`, in Python as
`clock.now()`. Times shown to people, and those a process measures of itself, need neither.

Every time that a rule compares is taken from that clock, and set explicitly when a row is created.
The models' default (`timezone.now`) is for rows created by hand, and for `created_at` of queues,
keys and workers, which is only displayed. The time in an id is no more reliable
(`jobs.spec.identifiers`).

A query for each reading would often cost more than the caller's own work. So a process compares
its clock with the database's every half minute, and again after its own was set, and adds the
difference.
"""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError, connections
from django.utils import timezone

from .database import connection, home, is_postgresql

VALID_FOR = 30
"""Seconds after which the difference is measured again."""
FAILED_FOR = 1
"""Seconds before another attempt at a measurement that failed."""
LEAP = 0.1
"""Seconds; a clock that strays further from the monotonic one has been set."""
GOOD_ENOUGH = 0.01
"""Seconds; a round trip that took longer is repeated."""
ATTEMPTS = 3
AGREED = timedelta(0)


class Comparison(NamedTuple):
    ahead: timedelta
    """How far the database's clock is ahead of the local one."""
    compared_at: float
    """On the monotonic clock."""
    started_at: float
    """The monotonic clock's start by the local clock; if it changes, the local clock was set."""
    valid_for: float = VALID_FOR


_newest: Comparison | None = None
_comparing = threading.Lock()


def now() -> datetime:
    """Return the time by the database's clock, or slightly earlier; never a future time.

    Makes no query, except one every 30 seconds that bypasses Django's cursors. While the database
    cannot be queried, the last known difference is used.
    """
    if is_postgresql():
        return timezone.now() + _ahead()
    # SQLite uses the clock of the one machine that all its processes run on; a database in memory
    # has its own, which a test may stop.
    own: Any = getattr(connection(), "clock", timezone)
    moment: datetime = own.now()
    return moment


def forget() -> None:
    """Compare the clocks again at the next call of `now()`."""
    global _newest
    _newest = None


def _ahead() -> timedelta:
    global _newest
    known = _newest
    if known is None or not _holds(known):
        # One thread compares; the others use the last known difference, if there is one.
        if not _comparing.acquire(blocking=known is None):
            return known.ahead if known else AGREED
        try:
            known = _newest
            if known is None or not _holds(known):
                known = _newest = _compare() or _keep(known)
        finally:
            _comparing.release()
    return known.ahead


def _holds(known: Comparison) -> bool:
    steady = time.monotonic()
    was_set = abs(time.time() - steady - known.started_at) > LEAP
    return steady - known.compared_at < known.valid_for and not was_set


def _keep(known: Comparison | None) -> Comparison:
    """Use the last known difference a little longer."""
    ahead = known.ahead if known else AGREED
    steady = time.monotonic()
    return Comparison(ahead, steady, time.time() - steady, FAILED_FOR)


def _compare() -> Comparison | None:
    """Query the database for its time; None if that is not possible now."""
    if _in_event_loop():
        return None
    # Never a standby's: another machine has another clock.
    database = connections[home()]
    try:
        database.validate_no_broken_transaction()
        try:
            database.ensure_connection()
        except RuntimeError:
            # A test that may not use the database.
            return None
        with database.wrap_database_errors:
            return _best(database.connection)
    except (DatabaseError, InterfaceError):
        # Whatever is wrong, the next statement will report it better.
        return None


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _best(database: Any) -> Comparison:
    """Return the result of the quickest of a few round trips."""
    best, shortest = None, float("inf")
    for _ in range(ATTEMPTS):
        asked = time.monotonic()
        before = timezone.now()
        theirs = database.execute("SELECT clock_timestamp()").fetchone()[0]
        after = timezone.now()
        answered = time.monotonic()
        if best is None or answered - asked < shortest:
            shortest = answered - asked
            # Within the round trip the difference of the clocks cannot be measured.
            ahead = AGREED if before <= theirs <= after else theirs - after
            best = Comparison(ahead, answered, time.time() - answered)
        if shortest <= GOOD_ENOUGH:
            break
    assert best is not None
    return best
