"""What time it is by the database's clock, the one that all servers and workers share.

Whatever two machines may disagree on is decided by it: in statements as `Now()`, in Python by
`clock.now()`. What people read, and what one process measures of itself, needs neither.

A query for each look would often cost more than what asks. So a process compares its own clock with
the database's every half a minute, and again when its own was set, and adds the difference.
"""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError
from django.utils import timezone

from .database import connection, is_postgresql

VALID_FOR = 30
"""Seconds after which the difference is measured again."""
FAILED_FOR = 1
"""Seconds before another attempt at a measurement that failed."""
LEAP = 0.1
"""Seconds by which a clock does not stray from the monotonic one unless it is set."""
GOOD_ENOUGH = 0.01
"""Seconds of a round trip; one that took longer is tried again."""
ATTEMPTS = 3
AGREED = timedelta(0)


class Comparison(NamedTuple):
    ahead: timedelta
    """By how much the database's clock is ahead of ours."""
    compared_at: float
    """On the monotonic clock."""
    started_at: float
    """When the monotonic clock began, on ours: another value later means that ours was set."""
    valid_for: float = VALID_FOR


_newest: Comparison | None = None
_comparing = threading.Lock()


def now() -> datetime:
    """Return the time by the database's clock, or a moment before; never one that is yet to come.

    Makes no query, but for one that no cursor of Django's sees every 30 seconds. While the database
    cannot be asked it goes by what was known before.
    """
    if is_postgresql():
        return timezone.now() + _ahead()
    # SQLite has no clock but that of the one machine that all its processes are on; a database in
    # memory has its own, which a test may stop.
    own: Any = getattr(connection(), "clock", timezone)
    moment: datetime = own.now()
    return moment


def forget() -> None:
    """Compare the clocks again when next asked."""
    global _newest
    _newest = None


def _ahead() -> timedelta:
    global _newest
    known = _newest
    if known is None or not _holds(known):
        # One thread compares; the others go by what they know, if they know anything.
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
    """Go by what was known for a little longer."""
    ahead = known.ahead if known else AGREED
    steady = time.monotonic()
    return Comparison(ahead, steady, time.time() - steady, FAILED_FOR)


def _compare() -> Comparison | None:
    """Ask the database for its time; None where that is not possible just now."""
    if _in_event_loop():
        return None
    database = connection()
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
        # Whatever is wrong, the statement that comes next says it better.
        return None


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _best(database: Any) -> Comparison:
    """The result of the quickest of a few round trips."""
    best, shortest = None, float("inf")
    for _ in range(ATTEMPTS):
        asked = time.monotonic()
        before = timezone.now()
        theirs = database.execute("SELECT clock_timestamp()").fetchone()[0]
        after = timezone.now()
        answered = time.monotonic()
        if best is None or answered - asked < shortest:
            shortest = answered - asked
            # Within the round trip they cannot be told apart.
            ahead = AGREED if before <= theirs <= after else theirs - after
            best = Comparison(ahead, answered, time.time() - answered)
        if shortest <= GOOD_ENOUGH:
            break
    assert best is not None
    return best
