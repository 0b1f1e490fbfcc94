"""How many jobs each worker did and failed, counted from the record of events by and by.

No ack pays for it: each event is read once, in order, and added to its worker's row. Where
`RECORD_EVENTS` is off there is nothing to count.
"""

from __future__ import annotations

from collections import Counter

from django.db.models import F

from jobs import events
from jobs.database import atomic, connection

from .models import EventCursor, Worker

NAME = "outcomes"
BATCH = 10_000
BATCHES = 50
COLUMN_OF = {"job.completed": "jobs_done", "job.failed": "jobs_failed"}


def count() -> int:
    """Count what has happened since; nothing that the reaper would have to report."""
    for _ in range(BATCHES):
        if not _count_batch():
            break
    return 0


def _count_batch() -> bool:
    """Count one batch of events; return whether there may be more."""
    EventCursor.objects.get_or_create(pk=NAME)
    skip = connection().features.has_select_for_update_skip_locked
    with atomic():
        # Its row is both place and lock: an event is counted once, by one process.
        tally = EventCursor.objects.filter(pk=NAME).select_for_update(skip_locked=skip).first()
        if tally is None:
            return False
        fresh = events.after(events.settled(), (tally.txid, tally.event_id))
        rows = list(
            fresh.order_by("txid", "id").values_list("txid", "id", "type", "worker_id")[:BATCH]
        )
        if not rows:
            return False
        outcomes = Counter(
            (worker_id, COLUMN_OF[kind])
            for _, _, kind, worker_id in rows
            if worker_id and kind in COLUMN_OF
        )
        for (worker_id, column), number in sorted(outcomes.items()):
            Worker.objects.filter(pk=worker_id).update(**{column: F(column) + number})
        txid, event_id = rows[-1][:2]
        EventCursor.objects.filter(pk=NAME).update(txid=txid, event_id=event_id)
    return len(rows) == BATCH
