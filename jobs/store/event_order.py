"""Finds how far the record of events is settled while many processes write it (OJS events)."""

from __future__ import annotations

from typing import Any

from django.db.models import Max, QuerySet

from .database import is_postgresql, run

# A transaction that writes events holds a shared advisory lock until its commit is visible. The
# lock's key is the last id drawn before the transaction's own (a trigger takes it, see the
# migration `event_writers`). The order matters here, and PostgreSQL guarantees it: the statement
# sees the events that were committed when it began, and reads the locks afterwards. A transaction
# that drew an id below the highest of those events had its lock by then. Either it still has it,
# or its commit is visible to the next statement. Locks of other tables, of other databases and of
# transactions that write no events do not count; nor does the lock of this transaction, whose
# events are visible to it.
HORIZON = """
    SELECT coalesce(max(id), 0),
           ARRAY(SELECT DISTINCT objid::bigint
                   FROM pg_locks
                  WHERE locktype = 'advisory'
                    AND mode = 'ShareLock'
                    AND objsubid = 2
                    AND classid = 'ojs_jobs_event'::regclass
                    AND database = (SELECT oid
                                      FROM pg_database
                                     WHERE datname = current_database())
                    AND pid IS DISTINCT FROM pg_backend_pid())
      FROM ojs_jobs_event
"""
KEYS = 1 << 32
"""A lock's key has 32 bits: the lower ones of the last id drawn."""


def horizon(events: QuerySet[Any]) -> int:
    """Return the id up to which no more events can be added to the record `events`."""
    if not is_postgresql():  # there is a single writer at a time
        found: int = events.aggregate(newest=Max("id"))["newest"] or 0
        return found
    ((newest, keys),) = run(HORIZON, [])
    return min([int(newest), *(_full_id(key, newest) for key in keys)])


def _full_id(key: int, near: int) -> int:
    """Return the id nearest to `near` whose lower 32 bits are `key`."""
    ahead = (key - near) % KEYS
    return near + (ahead if ahead < KEYS // 2 else ahead - KEYS)


def settled(events: QuerySet[Any]) -> QuerySet[Any]:
    """Narrow the record to events before which no open transaction can insert another."""
    return events.filter(id__lte=horizon(events)) if is_postgresql() else events.all()
