"""Writes a delivery for each subscription that a new event matches (OJS webhooks §5.2).

It reads the record of events from a cursor, as `chores.tallies` does: each event is read once, in
order, by one process, and the cursor moves in the transaction that writes the deliveries and
enqueues their jobs. So none is lost and none is written twice, whatever dies.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from django.db import IntegrityError

from jobs.access.redaction import redact_quotes
from jobs.conf import ojs_settings
from jobs.http.renderers import dumps
from jobs.models import Event, Workflow
from jobs.record import events
from jobs.spec import cloudevents
from jobs.spec.identifiers import parse_uuid
from jobs.store import clock, looks, pace
from jobs.store.database import alias, atomic
from jobs.store.rows import insert_rows

from ..models import EventCursor, WebhookDelivery, WebhookFormat, WebhookSubscription
from . import delivery_jobs
from .requests import NEVER_SENT, matches

logger = logging.getLogger("workers.webhooks")

NAME = "webhooks"
BATCH = 500
BATCHES = 20


def fan_out(batches: int = BATCHES) -> int:
    """Write the deliveries of new events, and see that all have jobs; the result gives the reaper
    nothing to report."""
    for _ in range(batches):
        if delivery_jobs.enqueue_missing() < delivery_jobs.BATCH:
            break
    if not ojs_settings.RECORD_EVENTS:
        return 0
    # For a turn at most: events whose texts are long to look through keep back no other chore.
    for _ in islice(pace.turn(), batches):
        try:
            if not _write_batch():
                break
        except IntegrityError:
            # A subscription was deleted meanwhile.
            continue
    return 0


def _write_batch() -> bool:
    """Write the deliveries of one batch of events; return whether there may be more."""
    if not looks.finds(WebhookSubscription.objects.active):
        return False
    EventCursor.objects.get_or_create(pk=NAME)
    # Before the subscriptions are read: what is not seen yet begins behind this.
    horizon = events.horizon()
    with atomic():
        cursor = EventCursor.locked(NAME)
        if cursor is None:
            return False
        interests = [Interest(row) for row in WebhookSubscription.objects.active()]
        if not interests:
            return False
        first = max(cursor.event_id, min(one.row.begins_after for one in interests))
        record = Event.objects.using(alias()).filter(id__gt=first, id__lte=horizon)
        rows = list(record.order_by("id")[:BATCH])
        if rows:
            made = _deliveries(rows, interests)
            delivery_jobs.enqueue(made)
            insert_rows(made)
            EventCursor.objects.filter(pk=NAME).update(event_id=rows[-1].pk)
    return len(rows) == BATCH


@dataclass(frozen=True)
class Interest:
    """What a subscription wants."""

    row: WebhookSubscription

    @cached_property
    def _exact(self) -> frozenset[str]:
        return frozenset(self.row.events)

    def is_in(self, event: Event) -> bool:
        """Whether it wants an event, of whatever project."""
        row = self.row
        return (
            event.pk > row.begins_after
            and event.type not in NEVER_SENT
            and not delivery_jobs.is_about_one(event)
            and (event.type in self._exact or _any(row.events, event.type))
            and (not row.queues or _any(row.queues, event.queue))
            and (not row.job_types or _any(row.job_types, event.job_type))
        )


def _any(patterns: Sequence[str], text: str) -> bool:
    return bool(text) and any(matches(pattern, text) for pattern in patterns)


def _deliveries(rows: Sequence[Event], interests: Sequence[Interest]) -> list[WebhookDelivery]:
    wanted: dict[str, list[tuple[Event, WebhookSubscription]]] = defaultdict(list)
    for event in rows:
        for interest in interests:
            if interest.is_in(event):
                wanted[interest.row.project].append((event, interest.row))
    now = clock.now()
    found = []
    for project, pairs in wanted.items():
        if project:
            own = _projects_of([event for event, _ in pairs])
            pairs = [pair for pair in pairs if own.get(pair[0].subject) == project]
        bodies = _bodies(pairs, project)
        found += [
            WebhookDelivery(
                subscription=row,
                event_id=events.cursor_of(event),
                event_type=event.type,
                subject=event.subject,
                body=bodies[event.pk, _is_cloudevent(row)],
                created_at=now,
                next_try_at=now,
            )
            for event, row in pairs
            if (event.pk, _is_cloudevent(row)) in bodies
        ]
    return found


def _is_cloudevent(row: WebhookSubscription) -> bool:
    return row.format != WebhookFormat.OJS


def _bodies(
    pairs: Sequence[tuple[Event, WebhookSubscription]], project: str
) -> dict[tuple[int, bool], str]:
    """The envelopes of events as JSON, without values that not everyone may see.

    By the event, and whether it is a CloudEvent: in structured mode, whatever the subscription's
    is; the request's headers are made when it is sent. An event that cannot be written is left out:
    it must not keep back those after it.
    """
    each = list({event.pk: event for event, _ in pairs}.values())
    formats: dict[int, set[bool]] = defaultdict(set)
    for event, row in pairs:
        formats[event.pk].add(_is_cloudevent(row))
    bodies: dict[tuple[int, bool], str] = {}
    for event, document in zip(each, events.event_documents(each, project=project), strict=True):
        try:
            shown = redact_quotes(document)
            bodies |= {
                (event.pk, is_cloudevent): written(shown, is_cloudevent=is_cloudevent)
                for is_cloudevent in formats[event.pk]
            }
        except Exception:
            logger.exception("The event %s is not sent to webhooks.", events.cursor_of(event))
    return bodies


def written(document: dict[str, Any], *, is_cloudevent: bool) -> str:
    """Return the body of a delivery."""
    return dumps(cloudevents.of_event(document) if is_cloudevent else document).decode()


def _projects_of(wanted: Sequence[Event]) -> dict[str, str]:
    """The projects of the jobs and workflows that events are about, by their subjects."""
    found = events.projects_of(events.job_ids_of(wanted))
    subjects = {event.subject for event in wanted if event.type.startswith("workflow.")}
    ids = [key for key in map(parse_uuid, subjects) if key is not None]
    if ids:
        flows: Any = Workflow.objects.using(alias()).filter(pk__in=ids).exclude(project="")
        found |= {str(pk): project for pk, project in flows.values_list("pk", "project")}
    return found
