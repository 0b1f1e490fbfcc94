"""The timeline of a job: each step and its duration."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import Event
from ..spec.lifecycle import State
from ..store import clock
from . import display

MOST = 200


@dataclass(frozen=True)
class Step:
    """Something that happened, and the duration of what followed it."""

    moment: datetime
    kind: str
    state: str
    """The resulting state: the colour of its chip."""
    worker: str | SafeString
    attempt: int | None
    lasted: str = display.NOTHING
    """Until the next step, or until now."""


STATES = {
    "job.enqueued": State.AVAILABLE,
    "job.scheduled": State.SCHEDULED,
    "job.started": State.ACTIVE,
    "job.completed": State.COMPLETED,
    "job.retrying": State.RETRYABLE,
    "job.cancelled": State.CANCELLED,
    "job.discarded": State.DISCARDED,
    "job.expired": State.DISCARDED,
}
ENDS = (State.COMPLETED, State.CANCELLED, State.DISCARDED)


def timeline(job: Any, site_name: str) -> list[Step]:
    """The job's events, oldest first; its columns where events are deleted or not recorded."""
    events = Event.objects.filter(subject=str(job.pk), type__in=list(STATES))
    found = [
        (event.time, event.type, STATES[event.type], event.worker_id, event.attempt)
        for event in events.order_by("-id")[:MOST]
    ][::-1] or _from_columns(job)
    steps = []
    for index, (moment, kind, state, worker, attempt) in enumerate(found):
        end = found[index + 1][0] if index + 1 < len(found) else clock.now()
        is_over = index + 1 == len(found) and state in ENDS
        lasted = display.NOTHING if is_over else _duration(state, end - moment)
        link = display.worker_link(site_name, worker)
        steps.append(Step(moment, _words(kind), str(state), link, attempt or None, lasted))
    return steps


def _duration(state: State, length: timedelta) -> str:
    about = {"span": display.lasted(length)}
    return _("ran %(span)s") % about if state == State.ACTIVE else _("waited %(span)s") % about


def _from_columns(job: Any) -> list[tuple[datetime, str, State, str, int | None]]:
    known: list[tuple[datetime, str, State, str, int | None]] = [
        (job.created_at, "created", State.PENDING, "", None)
    ]
    if job.started_at:
        holder = job.reserved_by or job.finished_by
        known.append((job.started_at, "job.started", State.ACTIVE, holder, job.attempt))
    if job.finished_at:
        known.append((job.finished_at, f"job.{job.state}", State(job.state), job.finished_by, None))
    return known


def _words(kind: str) -> str:
    return {
        "created": _("created"),
        "job.enqueued": _("available"),
        "job.scheduled": _("scheduled"),
        "job.started": _("started"),
        "job.completed": _("completed"),
        "job.retrying": _("failed, to be tried again"),
        "job.cancelled": _("cancelled"),
        "job.discarded": _("discarded"),
        "job.expired": _("expired"),
    }.get(kind, kind)
