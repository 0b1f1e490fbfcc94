"""What is counted from the record of events by and by: each worker's outcomes, and the metrics.

No ack pays for it: each event is read once, in order, whoever reads it; it is added to its
worker's row and to the counters of its queue and type. Where `RECORD_EVENTS` is off there is
nothing to count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from jobs import counters, events
from jobs.conf import ojs_settings
from jobs.database import atomic, connection

from .models import EventCursor, Worker

NAME = "outcomes"
BATCH = 10_000
BATCHES = 50
COLUMN_OF = {"job.completed": "jobs_done", "job.failed": "jobs_failed"}
COLUMNS = tuple(COLUMN_OF.values())


def count(batches: int = BATCHES) -> int:
    """Count what has happened since; nothing that the reaper would have to report."""
    for _ in range(batches):
        if not _count_batch():
            break
    return 0


def _count_batch() -> bool:
    """Count one batch of events; return whether there may be more."""
    EventCursor.objects.get_or_create(pk=NAME)
    skip = connection().features.has_select_for_update_skip_locked
    columns = ["txid", "id", "type", "worker_id"]
    if ojs_settings.METRICS:
        columns += counters.READ
    with atomic():
        # Its row is both place and lock: an event is counted once, by one process.
        tally = EventCursor.objects.filter(pk=NAME).select_for_update(skip_locked=skip).first()
        if tally is None:
            return False
        fresh = events.after(events.settled(), (tally.txid, tally.event_id))
        rows: list[Any] = list(
            fresh.order_by("txid", "id").values_list(*columns, named=True)[:BATCH]
        )
        if not rows:
            return False
        counters.add(rows)
        # Last, because heartbeats wait for the workers' rows.
        _count_outcomes(rows)
        last = rows[-1]
        EventCursor.objects.filter(pk=NAME).update(txid=last.txid, event_id=last.id)
    return len(rows) == BATCH


def _count_outcomes(rows: Sequence[Any]) -> None:
    outcomes = Counter(
        (event.worker_id, COLUMN_OF[event.type])
        for event in rows
        if event.worker_id and event.type in COLUMN_OF
    )
    # Locked in the order of ids, as every batch does; the database's own, not Python's.
    counted = Worker.objects.filter(pk__in={worker_id for worker_id, _ in outcomes}).order_by("pk")
    workers = list(counted.select_for_update().only("pk", *COLUMNS))
    for worker in workers:
        for column in COLUMNS:
            setattr(worker, column, getattr(worker, column) + outcomes[worker.pk, column])
    Worker.objects.bulk_update(workers, COLUMNS, batch_size=200)
