"""Timeline of a job: each step and its duration."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import Event
from ..record.transitions import TO, is_release, transition_of
from ..spec.lifecycle import State
from ..store import clock
from . import display

MOST = 200
RELEASED = "released"
"""By its worker: the attempt does not count."""


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
    length: timedelta | None = None
    """The same as a duration; None after the last step of a job that has ended."""


ENDS = (State.COMPLETED, State.CANCELLED, State.DISCARDED)


def timeline(job: Any, site_name: str) -> list[Step]:
    """The job's events, oldest first; its columns where events are deleted or not recorded."""
    events = Event.objects.filter(subject=str(job.pk), type__in=list(TO))
    recorded = [_from_event(event) for event in events.order_by("-id")[:MOST]]
    found = recorded[::-1] or _from_columns(job)
    steps = []
    for index, (moment, kind, state, worker, attempt) in enumerate(found):
        end = found[index + 1][0] if index + 1 < len(found) else clock.now()
        is_over = index + 1 == len(found) and state in ENDS
        length = None if is_over else end - moment
        lasted = display.NOTHING if length is None else _duration(state, length)
        link = display.worker_link(site_name, worker)
        steps.append(Step(moment, _words(kind), str(state), link, attempt or None, lasted, length))
    return steps


Found = tuple[datetime, str, State, str, int | None]
"""When, what, the resulting state, the worker's id and the attempt."""


def _from_event(event: Event) -> Found:
    """The step that an event about the job's state is."""
    change = transition_of(event)
    assert change is not None  # only events about a state are read
    kind = RELEASED if is_release(event) else event.type
    return event.time, kind, State(change.after), event.worker_id, event.attempt


def _duration(state: State, length: timedelta) -> str:
    about = {"span": display.lasted(length)}
    return _("ran %(span)s") % about if state == State.ACTIVE else _("waited %(span)s") % about


def _from_columns(job: Any) -> list[Found]:
    known: list[Found] = [(job.created_at, "created", State.PENDING, "", None)]
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
        RELEASED: _("released by its worker"),
        "job.cancelled": _("cancelled"),
        "job.discarded": _("discarded"),
        "job.expired": _("expired"),
    }.get(kind, kind)


WIDTH, HEIGHT, LEAST = 1000, 28, 4


def bar(steps: list[Step]) -> SafeString | str:
    """The job's life as a bar: how long it waited, ran, and waited again, in proportion.

    What was too short to be seen has a few pixels all the same; the table has the numbers.
    """
    parts = [step for step in steps if step.length is not None]
    total = sum((step.length.total_seconds() for step in parts if step.length), 0.0)
    if not total:
        return ""
    room = WIDTH - LEAST * len(parts)
    drawn, x = [], 0.0
    for step in parts:
        share = (step.length or timedelta()).total_seconds() / total
        width = LEAST + room * share
        drawn.append((step.state, round(x, 1), round(width, 1), HEIGHT, step.kind, step.lasted))
        x += width
    return format_html(
        '<svg class="ojs-bar" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img"'
        ' aria-label="{}">{}</svg>',
        WIDTH,
        HEIGHT,
        ", ".join(f"{step.kind}: {step.lasted}" for step in parts),
        format_html_join(
            "",
            '<rect class="ojs-bar-{}" x="{}" y="0" width="{}" height="{}"><title>{}: {}</title>'
            "</rect>",
            drawn,
        ),
    )
