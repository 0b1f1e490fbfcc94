"""Deletes the oldest events of jobs that have too many (OJS execution history §6).

Each new event is read once, in order. If it is not one that every job has, the events of its job
are counted.
"""

from __future__ import annotations

from django.db.models import Min

from jobs import engine
from jobs.models import Event
from jobs.record import events
from jobs.store import pace
from jobs.store.database import atomic

from ..models import EventCursor

NAME = "histories"
PIECE = 20_000
"""Ids that are read at once."""
PIECES = 100


def trim() -> int:
    """Read the new events; return how many events were deleted."""
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
    with atomic():
        cursor = EventCursor.locked(NAME)
        if cursor is None or cursor.event_id >= horizon:
            return None
        last = min(horizon, cursor.event_id + PIECE)
        busy = engine.history.busy_jobs(cursor.event_id, last)
        EventCursor.objects.filter(pk=NAME).update(event_id=last)
    return busy
