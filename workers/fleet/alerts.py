"""Alerts that a worker raises about itself, not about one of its jobs (Rota, Status).

They are kept in the record of events, as `worker.alert`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models.functions import Now

from jobs.models import Event
from jobs.record.events import record, worker_event

KIND = "worker.alert"
MOST = 100
"""Most alerts of one worker in `PERIOD`, so that one that raises them in a loop does not fill the
database."""
PERIOD = timedelta(hours=1)


@dataclass(slots=True)
class Alert:
    """An alert as received."""

    message: str
    level: str = ""
    time: datetime | None = None


def keep(worker_id: str, alerts: Sequence[Alert]) -> int:
    """Keep the alerts of a worker; return how many were kept."""
    if not alerts:
        return 0
    lately = Event.objects.filter(subject=worker_id, type=KIND, time__gt=Now() - PERIOD)
    room = max(0, MOST - lately.count())
    events = []
    for alert in alerts[:room]:
        data = {"message": alert.message} | ({"level": alert.level} if alert.level else {})
        event = worker_event(KIND, worker_id, **data)
        event.time = alert.time or event.time
        events.append(event)
    record(events)
    return len(events)
