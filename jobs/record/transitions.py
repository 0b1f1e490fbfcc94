"""Maps events of the record to transitions of a job's state (OJS realtime §4.1)."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..models import Event
from ..spec.lifecycle import TERMINAL, State
from .events import PREVIOUS

TO = {
    "job.enqueued": State.AVAILABLE,
    "job.scheduled": State.SCHEDULED,
    "job.started": State.ACTIVE,
    "job.completed": State.COMPLETED,
    "job.retrying": State.RETRYABLE,
    "job.cancelled": State.CANCELLED,
    "job.discarded": State.DISCARDED,
    "job.expired": State.DISCARDED,
}
FROM = {
    "job.started": State.AVAILABLE,
    "job.completed": State.ACTIVE,
    "job.retrying": State.ACTIVE,
    "job.discarded": State.ACTIVE,
    "job.expired": State.AVAILABLE,
}


class Transition(NamedTuple):
    """From one state of the lifecycle to another."""

    before: str
    """Empty for a job that has just been enqueued."""
    after: str

    @property
    def is_last(self) -> bool:
        return self.after in TERMINAL


def transition_of(event: Event) -> Transition | None:
    """Return None if the event is about something else than a job's state."""
    to = TO.get(event.type)
    if to is None:
        return None
    data: dict[str, Any] = event.data or {}
    after = data.get("state", to) if event.type == "job.retrying" else to
    before = data.get(PREVIOUS)
    if before is None:
        before = FROM.get(event.type) or _implied(event, data)
    return Transition(str(before), str(after))


def is_release(event: Event) -> bool:
    """Whether its worker released the job, at once or for a while, which is not a retry."""
    data: dict[str, Any] = event.data or {}
    if event.type == "job.retrying":
        return "released" in data
    return event.type == "job.enqueued" and data.get(PREVIOUS) == State.ACTIVE


def _implied(event: Event, data: dict[str, Any]) -> str:
    if event.type == "job.cancelled":
        return State.ACTIVE if event.worker_id else State.AVAILABLE
    if event.type == "job.scheduled" or "priority" in data:
        return ""
    # Its time has come: after a failed attempt that of the backoff, otherwise that of the schedule.
    return State.RETRYABLE if event.attempt else State.SCHEDULED
