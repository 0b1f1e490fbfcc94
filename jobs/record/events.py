"""Record of events: durable, and readable from a cursor (OJS events).

Rows are written in the transaction of the change that they record. The hot statements of the
engine write theirs themselves, in the same statement; all others go through `record()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import Q, QuerySet

from .. import signals
from ..conf import ojs_settings
from ..models import Event, Job
from ..spec.identifiers import parse_uuid
from ..spec.timestamps import format_timestamp, wire_timestamp
from ..spec.traces import TRACE_ID, TRACEPARENT, trace_id_of
from ..spec.worker_ids import shown
from ..store import clock, event_order
from ..store.database import alias
from ..store.rows import insert_rows

PREVIOUS = "previous_state"
"""The member of an event's data with the state before, where the event's type does not imply it."""
MOMENTS = frozenset({"until", "visible_until"})
"""Members of an event's data that are moments, besides those that end in `_at`."""
DEAD_LETTERED = "job.dead_lettered"
STATE_OF = {
    "job.enqueued": "available",
    "job.scheduled": "scheduled",
    "job.started": "active",
    "job.heartbeat": "active",
    "job.progress": "active",
    # What they report was still so then; the event that follows says what becomes of the job.
    "job.stalled": "active",
    "job.timeout": "active",
    "job.completed": "completed",
    "job.retrying": "retryable",
    "job.cancelled": "cancelled",
    "job.discarded": "discarded",
    "job.expired": "discarded",
    "job.ttl_expired": "discarded",
    "job.total_timeout": "discarded",
    "job.retry_exhausted": "discarded",
    DEAD_LETTERED: "discarded",
    "workflow.created": "running",
    "workflow.started": "running",
    "workflow.completed": "completed",
    "workflow.failed": "failed",
    "workflow.cancelled": "cancelled",
    "workflow.compensating": "compensating",
    "workflow.compensated": "compensated",
    "worker.started": "running",
    "worker.quiet": "quiet",
    "worker.stopped": "terminated",
}


SOURCES = {
    "job": "ojs://server/api",
    "priority": "ojs://server/api",
    "bulk": "ojs://server/api",
    "queue": "ojs://server/queues",
    "dead_letter": "ojs://server/queues",
    "backpressure": "ojs://server/queues",
    "rate_limit": "ojs://server/rate-limits",
    "workflow": "ojs://server/workflows",
    "cron": "ojs://server/cron",
    "tenant": "ojs://server/tenants",
    "scheduling": "ojs://server/pools",
    "webhook": "ojs://server/webhooks",
}
"""The source of these kinds of event; all others come from a worker."""


def job_event(
    kind: str, job: Any, *, time: datetime, worker_id: str = "", data: dict[str, Any] | None = None
) -> Event:
    """Build the event `kind` about `job` (anything with id, type, queue and attempt)."""
    return Event(
        type=kind,
        subject=str(job.id),
        queue=job.queue,
        job_type=job.type,
        attempt=job.attempt,
        worker_id=worker_id,
        time=time,
        data=data,
    )


def discarded_events(
    job: Any,
    *,
    time: datetime,
    worker_id: str,
    data: dict[str, Any],
    exhausted: bool,
    dead_letter: bool,
) -> Iterator[Event]:
    """Yield the events of a job that failed for good, in their order (OJS extension interactions
    §10, EI-008).

    Args:
        exhausted: it has no attempts left.
        dead_letter: it is kept in the dead letter.
    """
    about: dict[str, Any] = {"time": time, "worker_id": worker_id, "data": data}
    if exhausted:
        yield job_event("job.retry_exhausted", job, **about)
    yield job_event("job.discarded", job, **about)
    if dead_letter:
        # Only `job.discarded` carries the previous state.
        remaining = {name: value for name, value in data.items() if name != PREVIOUS}
        yield job_event(DEAD_LETTERED, job, **about | {"data": remaining})


def first_enqueued(job: Any, *, time: datetime, **more: Any) -> Event:
    """Build the event for a pending job that becomes available for the first time.

    The priority marks a job's first time, as in the statement of PUSH. When a schedule or a backoff
    is over, or an operator retries the job, the event has no priority.
    """
    data = {"priority": job.priority, PREVIOUS: "pending"} | more
    return job_event("job.enqueued", job, time=time, data=data)


def first_scheduled(job: Any, at: datetime, *, time: datetime) -> Event:
    """Build the event for a pending job that is ready before its time."""
    data = {"scheduled_at": at.isoformat(), PREVIOUS: "pending"}
    return job_event("job.scheduled", job, time=time, data=data)


def worker_event(kind: str, worker_id: str, **data: Any) -> Event:
    return Event(
        type=kind, subject=worker_id, worker_id=worker_id, time=clock.now(), data=data or None
    )


def queue_event(kind: str, queue: str, **data: Any) -> Event:
    return Event(type=kind, subject=queue, queue=queue, time=clock.now(), data=data or None)


def workflow_event(kind: str, workflow: Any, *, time: datetime, **data: Any) -> Event:
    about = {
        "workflow_id": str(workflow.id),
        "workflow_type": workflow.type,
        "workflow_name": workflow.name,
    }
    return Event(type=kind, subject=str(workflow.id), time=time, data=about | data)


def partition_event(kind: str, key: str, **data: Any) -> Event:
    """Build an event about a rate limit (OJS rate limiting §11.1)."""
    return Event(type=kind, subject=key, time=clock.now(), data={"key": key} | data)


def bulk_event(operation: str, **data: Any) -> Event:
    """Build the event about an answered bulk request (OJS bulk operations §12.1)."""
    return Event(type=f"bulk.{operation}.completed", subject=operation, time=clock.now(), data=data)


def webhook_event(kind: str, subject: str, **data: Any) -> Event:
    """Build an event about a subscription or a delivery (OJS webhooks §11.1)."""
    return Event(type=kind, subject=subject, time=clock.now(), data=data)


def tenant_event(kind: str, name: str, **data: Any) -> Event:
    """Build an event about a tenant (OJS multi-tenancy §11.1)."""
    data = {"tenant_id": name} | data
    return Event(type=kind, subject=name, time=clock.now(), data=data)


def pool_event(kind: str, name: str, **data: Any) -> Event:
    """Build an event about a worker pool (OJS fair scheduling §11.1)."""
    return Event(type=kind, subject=name, time=clock.now(), data={"pool": name} | data)


def cron_event(kind: str, name: str, **data: Any) -> Event:
    return Event(type=kind, subject=name, time=clock.now(), data=data)


def record(events: Iterable[Event]) -> None:
    """Write events, and send the signals that carry them.

    Nothing is written where `RECORD_EVENTS` is off.
    """
    events = list(events)
    for kind in {event.type for event in events}.intersection(signals.TELLS_EVENTS):
        if signals.SENT[kind].has_listeners():
            of_kind = [event for event in events if event.type == kind]
            signals.send_on_commit(signals.SENT[kind], Event, events=of_kind)
    if ojs_settings.RECORD_EVENTS and events:
        with transaction.atomic(using=alias(), savepoint=False):
            event_order.announce()
            insert_rows(events)


def horizon() -> int:
    """Return the id up to which no more events can be added to the record."""
    return event_order.horizon(Event.objects.using(alias()))


def settled() -> QuerySet[Event]:
    """Events that no open transaction can precede with another one.

    An event that was written earlier, but committed later, would otherwise appear behind a reader's
    cursor and never be read. On PostgreSQL this queries the horizon immediately; read the events
    with a later snapshot: not in a REPEATABLE READ transaction that has already run a query.
    """
    return event_order.settled(Event.objects.using(alias()))


class Cursor(NamedTuple):
    """The last event that was read."""

    txid: int
    """0, or its transaction, in a cursor from when transactions gave the order."""
    id: int


def cursor_of(event: Event) -> str:
    """The event's id on the wire, which is also the cursor that continues after it."""
    return f"evt_{0:012x}-{event.pk:012x}"


def parse_cursor(text: str) -> Cursor | None:
    """Return None if this is not one of our cursors."""
    prefix, _, rest = text.partition("_")
    txid, _, identifier = rest.partition("-")
    if prefix != "evt" or not (len(txid) == len(identifier) == 12):
        return None
    try:
        return Cursor(int(txid, 16), int(identifier, 16))
    except ValueError:
        return None


def after(events: QuerySet[Event], cursor: Cursor) -> QuerySet[Event]:
    if not cursor.txid:
        return events.filter(id__gt=cursor.id)
    return events.filter(Q(id__gt=cursor.id) | overtaken(cursor))


def is_lost(cursor: Cursor) -> bool:
    """Whether the cursor is ahead of the record: it was restored from a backup that is older.

    Later, events that the cursor's reader has not seen will have ids below it.
    """
    return not event_order.was_drawn(cursor.id)


def overtaken(cursor: Cursor) -> Q:
    """Events that a reader in the order of transactions has not read, despite their lower ids."""
    return Q(txid__gt=cursor.txid, id__lt=cursor.id)


def job_ids_of(events: Iterable[Event]) -> list[UUID]:
    """Return the ids of the jobs that events are about, each once."""
    subjects = {parse_uuid(event.subject) for event in events if event.job_type}
    return [job_id for job_id in subjects if job_id is not None]


def projects_of(job_ids: Sequence[UUID]) -> dict[str, str]:
    """Return the projects of jobs, by the ids of those that have one."""
    if not job_ids:
        return {}
    jobs = Job.objects.using(alias()).filter(pk__in=job_ids).exclude(project="")
    return {str(pk): project for pk, project in jobs.values_list("pk", "project")}


def traces_of(job_ids: Sequence[UUID]) -> dict[str, str]:
    """Return the traces of jobs (§8.3), by the ids of those that have one.

    They are read from the jobs, so that no hot statement pays for them: an event that outlives its
    job has none.
    """
    if not job_ids:
        return {}
    traced = Q(meta__has_key=TRACE_ID) | Q(meta__has_key=TRACEPARENT)
    rows = Job.objects.using(alias()).filter(traced, pk__in=job_ids)
    return {
        str(job_id): trace_id_of(*named)
        for job_id, *named in rows.values_list("pk", f"meta__{TRACE_ID}", f"meta__{TRACEPARENT}")
    }


def event_documents(events: Sequence[Event], *, project: str = "") -> list[dict[str, Any]]:
    """Return the envelopes of events, with the traces of the jobs that they are about.

    An event about a dead letter names the tenant, for whom it notifies (OJS extension interactions
    §8.2). That is read from the job as well.
    """
    traces = traces_of(job_ids_of(events))
    tenants = projects_of(job_ids_of(event for event in events if event.type == DEAD_LETTERED))
    return [
        event_document(
            event,
            project=project,
            trace_id=traces.get(event.subject, ""),
            tenant=tenants.get(event.subject, ""),
        )
        for event in events
    ]


def event_document(
    event: Event, *, project: str = "", trace_id: str = "", tenant: str = ""
) -> dict[str, Any]:
    """Return the event's envelope (OJS events §2), with the members that L0-EVT-002 requires.

    Args:
        project: that of the key that reads it, and of the job it is about.
        trace_id: the trace of that job.
        tenant: that of the job; only an event about a dead letter names it.
    """
    component, _, _ = event.type.partition(".")
    worker_id = shown(event.worker_id, project)
    source = SOURCES.get(component, f"ojs://server/workers/{worker_id}")
    time = format_timestamp(event.time)
    document: dict[str, Any] = {
        "specversion": "1.0",
        "id": cursor_of(event),
        "type": event.type,
        "source": source,
        "time": time,
        "timestamp": time,
        "subject": event.subject,
        "data": _data(event, worker_id),
    }
    if trace_id:
        document["data"]["trace_id"] = trace_id
    if tenant and event.type == DEAD_LETTERED:
        document["data"]["tenant_id"] = tenant
    if component == "job":
        document["job_id"] = event.subject
        document["job_type"] = event.job_type
    if event.queue:
        document["queue"] = event.queue
    state = (event.data or {}).get("state") or STATE_OF.get(event.type)
    if state:
        document["state"] = state
    return document


def _data(event: Event, worker_id: str) -> dict[str, Any]:
    data: dict[str, Any] = {}
    if event.job_type:
        data["job_id"] = event.subject
        data["job_type"] = event.job_type
    about = {"queue": event.queue, "worker_id": worker_id, "attempt": event.attempt}
    data |= {name: value for name, value in about.items() if value not in ("", None)}
    for name, value in (event.data or {}).items():
        is_moment = type(value) is str and (name.endswith("_at") or name in MOMENTS)
        data[name] = wire_timestamp(value) if is_moment else value
    return data
