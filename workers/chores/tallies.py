"""Counts each worker's outcomes and the metrics from the record of events, with some delay.

Acks do not pay for it: some process reads each event once, in order, and adds it to its worker's
row and to the counters of its queue and type. With `RECORD_EVENTS` off there is nothing to count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from django.db.models import BigIntegerField, F, QuerySet

from jobs.conf import ojs_settings
from jobs.models import Event
from jobs.record import counters, events
from jobs.store import pace
from jobs.store.database import atomic
from jobs.store.expressions import Among, Each

from ..models import EventCursor, Worker

NAME = "events"
FORMER = "outcomes"
"""The cursor of servers that counted in the order of transactions."""
TAKEN_OVER = 2**62
"""A transaction id beyond all others: those servers find nothing more to count."""
BATCH = 5_000
BATCHES = 100
COLUMN_OF = {"job.completed": "jobs_done", "job.failed": "jobs_failed"}
COLUMNS = tuple(COLUMN_OF.values())


def count(batches: int = BATCHES) -> int:
    """Count new events; the result gives the reaper nothing to report."""
    for _ in range(batches):
        with pace.piece():
            has_more = _count_batch()
        if not has_more:
            break
    return 0


def _count_batch() -> bool:
    """Count one batch of events; return whether there may be more."""
    EventCursor.objects.get_or_create(pk=NAME)
    # Queried before the transaction, which may keep the snapshot that it begins with.
    horizon = events.horizon()
    with atomic():
        tally = EventCursor.locked(NAME)
        if tally is None:
            return False
        former = None if tally.event_id else _former()
        if former is None:
            fresh = Event.objects.filter(id__gt=tally.event_id, id__lte=horizon)
            rows = _read(fresh.order_by("id")[:BATCH])
            if not rows:
                return False
            last = rows[-1].id
        elif former.id <= horizon:
            rows = _read(Event.objects.filter(events.overtaken(former)).order_by("id"))
            last = former.id
            EventCursor.objects.filter(pk=FORMER).update(txid=TAKEN_OVER)
        else:
            return False
        if ojs_settings.METRICS:
            counters.add(rows)
        # Last, because heartbeats wait for the workers' rows.
        _count_outcomes(rows)
        EventCursor.objects.filter(pk=NAME).update(event_id=last)
    return former is not None or len(rows) == BATCH


def _read(fresh: QuerySet[Event]) -> Sequence[Any]:
    if ojs_settings.METRICS:
        return counters.read(fresh)
    return list(fresh.values_list("id", "type", "worker_id", named=True))


def _former() -> events.Cursor | None:
    """Return how far servers of the previous release have counted, unless already taken over."""
    row = EventCursor.objects.filter(pk=FORMER, txid__lt=TAKEN_OVER).select_for_update().first()
    return events.Cursor(row.txid, row.event_id) if row and row.event_id else None


def _count_outcomes(rows: Sequence[Any]) -> None:
    outcomes = Counter(
        (event.worker_id, COLUMN_OF[event.type])
        for event in rows
        if event.worker_id and event.type in COLUMN_OF
    )
    # Locked in the order of ids, as in every batch: the database's order, not Python's.
    known = Worker.objects.filter(Among("pk", {worker_id for worker_id, _ in outcomes}))
    ids = list(known.order_by("pk").select_for_update().values_list("pk", flat=True))
    added = {
        column: F(column) + Each({pk: outcomes[pk, column] for pk in ids}, BigIntegerField())
        for column in COLUMNS
    }
    Worker.objects.filter(Among("pk", ids)).update(**added)
