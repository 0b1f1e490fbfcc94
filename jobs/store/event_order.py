"""Finds how far the record of events is settled while many processes write it (OJS events)."""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any

from django.db import DatabaseError, InterfaceError, OperationalError
from django.db.models import Max, QuerySet

from .choice import CITUS, chosen, is_portable
from .database import alias, elsewhere, is_postgresql, reading_from, run

# A transaction that writes events holds a shared advisory lock until its commit is visible. The
# lock's key is the last id drawn before the transaction's own (a trigger takes it, see the
# migration `event_writers`). The order matters here, and PostgreSQL guarantees it: the statement
# sees the events that were committed when it began, and reads the locks afterwards. A transaction
# that drew an id below the highest of those events had its lock by then. Either it still has it,
# or its commit is visible to the next statement. Locks of other tables, of other databases and of
# transactions that write no events do not count; nor does the lock of this transaction, whose
# events are visible to it.
LOCKS = """
    SELECT DISTINCT objid::bigint
      FROM pg_locks
     WHERE locktype = 'advisory'
       AND mode = 'ShareLock'
       AND objsubid = 2
       AND classid = 'ojs_jobs_event'::regclass
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
       AND pid IS DISTINCT FROM pg_backend_pid()
"""
HORIZON = f"SELECT coalesce(max(id), 0), ARRAY({LOCKS}) FROM ojs_jobs_event"
# For the portable store, one after the other: on Citus the events may be on another node than the
# locks. A table there has no triggers, so the lock is taken by a statement; every id that is drawn
# afterwards is above those that are visible before.
NEWEST = "SELECT coalesce(max(id), 0) FROM ojs_jobs_event"
HAS_TRIGGER = """
    SELECT 1 FROM pg_trigger
     WHERE tgrelid = 'ojs_jobs_event'::regclass AND tgname = 'ojs_jobs_event_writer'
"""
ANNOUNCE = """
    SELECT pg_advisory_xact_lock_shared(
               'ojs_jobs_event'::regclass::oid::bigint::bit(32)::int4, %s::bigint::bit(32)::int4)
"""
KEYS = 1 << 32
"""A lock's key has 32 bits: the lower ones of the last id drawn."""


def horizon(events: QuerySet[Any]) -> int:
    """Return the id up to which no more events can be added to the record `events`."""
    if not is_postgresql():  # there is a single writer at a time
        found: int = events.aggregate(newest=Max("id"))["newest"] or 0
        return found
    return _horizon_of_standby() if elsewhere() else _horizon()


def _horizon() -> int:
    if is_portable():
        ((newest,),) = run(NEWEST, [])
        keys = [key for (key,) in run(LOCKS, [])]
    else:
        ((newest, keys),) = run(HORIZON, [])
    return min([int(newest), *(_full_id(key, newest) for key in keys)])


# A standby has no locks of the primary's writers. So the primary says how far the record is
# settled, and where its log ended afterwards. Once the standby has replayed that, the same holds
# for the standby.
POSITION = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint"
REPLAYED = """
    SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                 ELSE pg_current_wal_insert_lsn() END - '0/0')::bigint
"""
_points: deque[tuple[int, int]] = deque(maxlen=10_000)
"""Positions in the primary's log, and the horizon there was by then."""


class NotReplayed(DatabaseError):
    """The standby has not replayed any point up to which the record was known to be settled."""


def _horizon_of_standby() -> int:
    """Return the horizon on the standby.

    Raises:
        NotReplayed: it is not known yet, as on the first call in a process.
    """
    try:
        with reading_from(""):
            newest = _horizon()
            ((position,),) = run(POSITION, [])
        _points.append((int(position), newest))
    except (OperationalError, InterfaceError):
        # Without the primary, what it said before still holds.
        pass
    ((replayed,),) = run(REPLAYED, [])
    known = [horizon for position, horizon in list(_points) if position <= (replayed or 0)]
    if not known:
        raise NotReplayed("The standby has not caught up with the record of events.")
    return max(known)


# Ids of transactions that were rolled back, and of events that were deleted since, count as well.
LAST_DRAWN = """
    SELECT greatest(pg_sequence_last_value(
                        pg_get_serial_sequence('ojs_jobs_event', 'id')::regclass),
                    (SELECT max(id) FROM ojs_jobs_event), 0)
"""
LAST_DRAWN_IN_SQLITE = "SELECT seq FROM sqlite_sequence WHERE name = 'ojs_jobs_event'"


def was_drawn(event_id: int) -> bool:
    """Whether the record has come as far as this id.

    If not, the id is that of a record that is no longer there: this one was restored from a backup
    that is older.
    """
    if chosen() == CITUS:
        return True  # each node may draw ids of its own
    try:
        # A standby may be behind; the primary is not.
        with reading_from(""):
            found = run(LAST_DRAWN if is_postgresql() else LAST_DRAWN_IN_SQLITE, [])
    except (OperationalError, InterfaceError):
        if elsewhere():
            return True
        raise
    return event_id <= (found[0][0] if found else 0)


def announce() -> None:
    """Say that this transaction is about to write events, unless the table's trigger does."""
    if is_postgresql() and is_portable() and not _has_trigger(alias()):
        ((newest,),) = run(NEWEST, [])
        run(ANNOUNCE, [newest])


@cache
def _has_trigger(alias: str) -> bool:
    return bool(run(HAS_TRIGGER, []))


def _full_id(key: int, near: int) -> int:
    """Return the id nearest to `near` whose lower 32 bits are `key`."""
    ahead = (key - near) % KEYS
    return near + (ahead if ahead < KEYS // 2 else ahead - KEYS)


def settled(events: QuerySet[Any]) -> QuerySet[Any]:
    """Narrow the record to events before which no open transaction can insert another."""
    return events.filter(id__lte=horizon(events)) if is_postgresql() else events.all()
