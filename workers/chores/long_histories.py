"""Deletes the oldest events of jobs that have too many (OJS execution history §6).

Some process reads each event once, in order, and counts the events of the jobs that it is about:
but not if it is one that every job has.
"""

from __future__ import annotations

from django.db.models import Min

from jobs import engine
from jobs.models import Event
from jobs.record import events
from jobs.store import pace
from jobs.store.database import atomic, connection

from ..models import EventCursor

NAME = "histories"
PIECE = 20_000
"""Ids that are read at once."""
PIECES = 100


def trim() -> int:
    """Look through the events that are new; return how many of all were deleted."""
    deleted = 0
    seen: set[str] = set()
    for _ in range(PIECES):
        with pace.piece():
            busy = _read()
            if busy is None:
                break
            deleted += engine.history.trim(busy - seen)
            seen |= busy
    return deleted


def _read() -> set[str] | None:
    """Return the jobs that the next events are about; None if there are no more."""
    if not EventCursor.objects.filter(pk=NAME).exists():
        oldest = Event.objects.aggregate(id=Min("id"))["id"] or 1
        EventCursor.objects.get_or_create(pk=NAME, defaults={"event_id": oldest - 1})
    # Queried before the transaction, which may keep the snapshot that it begins with.
    horizon = events.horizon()
    skip = connection().features.has_select_for_update_skip_locked
    with atomic():
        # The row is both cursor and lock: an event is read once, by one process.
        cursor = EventCursor.objects.filter(pk=NAME).select_for_update(skip_locked=skip).first()
        if cursor is None or cursor.event_id >= horizon:
            return None
        last = min(horizon, cursor.event_id + PIECE)
        busy = engine.history.busy_jobs(cursor.event_id, last)
        EventCursor.objects.filter(pk=NAME).update(event_id=last)
    return busy
