"""Signals about workers, for a site's receivers; sent after commit (see `jobs.signals`)."""

from __future__ import annotations

from django.dispatch import Signal

worker_registered = Signal()
"""`worker_id`, `incarnation`."""
worker_left = Signal()
"""`worker_id`: it deregistered, or fell silent with nothing left to do."""
workers_died = Signal()
"""`worker_ids`: they were declared dead."""
worker_quieted = Signal()
"""`worker_id`: it reports that it takes no more jobs."""
worker_beat = Signal()
"""`worker_id`, `state`: a heartbeat of a live worker was recorded."""
worker_returned = Signal()
"""`worker_id`: it had been declared dead, and was heard again."""

SENT = {
    "worker.started": worker_registered,
    "worker.quiet": worker_quieted,
    "worker.heartbeat": worker_beat,
    "worker.stopped": worker_left,
}
"""The signal of each event in the vocabulary (OJS events §3.4); `workers_died` reports deaths."""
