"""Reads the record of events for subscriptions; synchronous, one page at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ..access.projects import find
from ..models import Event, Job, Queue
from ..record import events
from ..record.events import PREVIOUS
from ..spec.identifiers import parse_uuid
from ..spec.lifecycle import TERMINAL
from ..spec.timestamps import format_timestamp
from ..store import clock
from ..store.database import alias
from .channels import Channel, require_queue
from .messages import Message

BATCH = 1000
"""Events per query."""
RECENT = 20
"""Newest events of a job among which the event of its end is searched."""
WINDOW = 50_000
"""Ids of the record that one query of a page covers."""


class Batch(NamedTuple):
    """A piece of the record, in order."""

    messages: list[Message]
    position: int
    """Everything up to this id has been read."""


class Start(NamedTuple):
    """The position at which a subscription begins."""

    position: int
    """It gets the events after this id."""
    gap: dict[str, Any] | None = None
    """The data of the `system.gap` that reports lost events before it."""

    @property
    def id(self) -> str:
        return id_of(self.position)


def id_of(position: int) -> str:
    return events.cursor_of(Event(pk=position))


def newest() -> int:
    """Return the id up to which the record is complete."""
    return events.horizon()


def read(after: int) -> Batch:
    """Return what was added to the record after `after`, or the first part of it."""
    until = newest()
    if until <= after:
        return Batch([], after)
    rows = _record().filter(id__gt=after, id__lte=until).order_by("id")[:BATCH]
    found = messages_of(rows)
    return Batch(found, found[-1].position if len(found) == BATCH else until)


def page(channel: Channel, project: str, after: int, until: int, most: int) -> Batch:
    """Return the events of a channel between two ids, at most `most` of them, for a project."""
    rows = _record().filter(id__gt=after)
    if channel.job_id:
        rows = rows.filter(subject=channel.job_id, id__lte=until).exclude(job_type="")
    else:
        if until - after > WINDOW:
            # Ids that retention has deleted, or the record was empty when the client began.
            first = rows.order_by("id").values_list("pk", flat=True).first()
            after = until if first is None else max(after, first - 1)
        until = min(until, after + WINDOW)
        rows = rows.filter(id__lte=until)
        if channel.queue:
            rows = rows.filter(queue=channel.queue)
    found = messages_of(rows.order_by("id")[:most])
    position = found[-1].position if len(found) == most else until
    if project:
        found = [message for message in found if message.project == project]
    return Batch(found, position)


def messages_of(rows: Sequence[Event]) -> list[Message]:
    """Look up the projects and traces of the jobs that the events are about."""
    found = list(rows)
    ids = events.job_ids_of(found)
    if not ids:
        return [Message(event) for event in found]
    projects = events.projects_of(ids)
    traces = events.traces_of(ids)
    # A job's events contain its id in this notation.
    return [
        Message(event, projects.get(event.subject, ""), traces.get(event.subject, ""))
        for event in found
    ]


def _record() -> Any:
    # From the primary: a replica may lag behind.
    return Event.objects.using(alias())


def start(channel: Channel, last_event_id: str = "") -> Start:
    """Return where a subscription begins: now, or after the client's last event.

    Call it before reading the state of the channel's subject, so that nothing is missed in between.
    """
    now = newest()
    if not last_event_id:
        return Start(now)
    after = _kept(last_event_id, now)
    if after is None:
        return Start(now, _gap(channel, last_event_id))
    return Start(after)


def position_of(identifier: str) -> int | None:
    """Return the position of an event's id; None if the record lacks events after it."""
    return _kept(identifier, newest())


def _kept(identifier: str, until: int) -> int | None:
    cursor = events.parse_cursor(identifier)
    if cursor is None or cursor.txid or cursor.id > until:
        return None
    # 0: the record was empty when the client began.
    if not cursor.id or _record().filter(pk=cursor.id).exists():
        return cursor.id
    oldest = _record().order_by("id").values_list("pk", flat=True).first()
    return cursor.id if oldest is not None and oldest <= cursor.id + 1 else None


def _gap(channel: Channel, last_event_id: str) -> dict[str, Any]:
    """
    The time of a deleted event is unknown, so the gap begins no earlier than the subject of the
    channel.
    """
    now = clock.now()
    if channel.job_id:
        began = Job.objects.filter(pk=channel.job_id).values_list("created_at", flat=True).first()
    else:
        queues = Queue.objects.filter(pk=channel.queue) if channel.queue else Queue.objects.all()
        began = queues.order_by("created_at").values_list("created_at", flat=True).first()
    gap = {
        "channel": channel.name,
        "gap_start": format_timestamp(min(began or now, now)),
        "gap_end": format_timestamp(now),
    }
    cursor = events.parse_cursor(last_event_id)
    oldest = _record().order_by("id").values_list("pk", flat=True).first() if cursor else None
    if channel.is_all and cursor and oldest and cursor.id < oldest:
        gap["estimated_missed_count"] = oldest - cursor.id - 1
    return gap


def require(channel: Channel, project: str) -> Job | None:
    """Return the job that a channel is about, if it is about one.

    Raises:
        NotFound: there is no such job or queue, or it is another project's job.
    """
    if channel.job_id:
        parsed = parse_uuid(channel.job_id)
        assert parsed is not None
        return find(parsed, project)
    if channel.queue:
        require_queue(channel.queue)
    return None


def last_words(job: Job, channel: Channel, begun: Start) -> list[Message] | None:
    """Return the last events of a job that has ended; None if it has not ended (§2.1).

    A reconnecting client gets what it missed; others get the state of the job.
    """
    if job.state not in TERMINAL:
        return None
    return _missed(job, channel, begun, BATCH) or [_last_of(job, begun)]


def last_word(job: Job, channel: Channel, begun: Start) -> Message | None:
    """Return the event of the end of a job, for who subscribes to it after that (§2.1).

    None if it has not ended, or if the client has missed events: those are in the record.
    """
    if job.state not in TERMINAL or _missed(job, channel, begun, 1):
        return None
    return _last_of(job, begun)


def _missed(job: Job, channel: Channel, begun: Start, most: int) -> list[Message]:
    return page(channel, job.project, begun.position, newest(), most).messages


def _last_of(job: Job, begun: Start) -> Message:
    """The event of the transition to the job's state; a substitute if the record has none."""
    rows = _record().filter(subject=str(job.pk)).exclude(job_type="").order_by("-id")
    for event in rows[:RECENT]:
        message = Message(event, job.project)
        if message.transition is not None and message.transition.after == job.state:
            return message
    event = Event(
        pk=begun.position,
        type=f"job.{job.state}",
        subject=str(job.pk),
        queue=job.queue,
        job_type=job.type,
        attempt=job.attempt,
        time=job.finished_at or job.created_at,
        data={PREVIOUS: job.state},
    )
    return Message(event, job.project)
