"""Execution history: the record of events in the words of OJS execution history.

There is one record. An event becomes one or two entries of the history when it is read:
`job.started` is an attempt that began and a change of state. So recording costs nothing more, and
what the two documents say cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet

from ..access.redaction import redact_quotes
from ..models import Event, Job
from ..spec.envelope import TIMEOUT_TYPES
from ..spec.lifecycle import State
from ..spec.timestamps import format_timestamp
from ..spec.worker_ids import shown
from ..store.database import alias
from ..store.expressions import Bytes
from . import events
from .transitions import is_release, transition_of

CREATED, CHANGED = "job.created", "job.state_changed"
BY_EVENT: dict[str, tuple[str, ...]] = {
    "job.enqueued": (CHANGED,),
    "job.scheduled": (CHANGED,),
    "job.started": (CHANGED, "job.attempt_started"),
    "job.completed": ("job.attempt_completed", CHANGED),
    "job.failed": ("job.attempt_failed",),
    "job.retrying": (CHANGED,),
    "job.cancelled": ("job.cancelled", CHANGED),
    "job.discarded": (CHANGED, "job.discarded"),
    "job.expired": (CHANGED, "job.discarded"),
    "job.progress": ("job.progress",),
    "workflow.created": ("workflow.created",),
    "workflow.step_completed": ("workflow.step_completed",),
    "workflow.job_completed": ("workflow.step_completed",),
    "workflow.completed": ("workflow.completed",),
    "workflow.failed": ("workflow.completed",),
    "workflow.compensated": ("workflow.completed",),
    "workflow.cancelled": ("workflow.completed",),
}
"""Type of an event → types of its entries, in their order (§3). The first event of a job is
`job.created` instead of a change of state, for it changed from nothing."""
FIRST = ("job.enqueued", "job.scheduled")
TYPES = (CREATED, *dict.fromkeys(kind for kinds in BY_EVENT.values() for kind in kinds))
"""The vocabulary of the history."""
ACTORS = ("worker", "client", "system", "user")


def events_of(kinds: Iterable[str]) -> list[str]:
    """Return the types of event that have entries of these types."""
    wanted = set(kinds)
    first = FIRST if CREATED in wanted else ()
    return [kind for kind, made in BY_EVENT.items() if kind in first or wanted & {*made}]


@dataclass(frozen=True, slots=True)
class Reader:
    """For whom the history is written down."""

    project: str = ""
    """That of the key; it has its own worker ids."""
    is_redacted: bool = False
    """Values of sensitive keys are hidden."""


EVERYTHING = Reader()


def entries(
    found: Sequence[Event], reader: Reader = EVERYTHING
) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Yield each entry of these events in their order (§4), with its place in the record."""
    sizes = _sizes(event for event in found if _is_first(event))
    for event in found:
        data: dict[str, Any] = event.data or {}
        if reader.is_redacted:
            data = redact_quotes(data)
        worker = shown(event.worker_id, reader.project)
        kinds = (CREATED,) if _is_first(event) else BY_EVENT.get(event.type, ())
        for index, kind in enumerate(kinds):
            details = _data(kind, event, data, worker, sizes)
            if details is None:
                continue
            document: dict[str, Any] = {
                "id": f"{events.cursor_of(event)}-{index}",
                "job_id": data.get("job_id") or event.subject,
                "event_type": kind,
                "timestamp": format_timestamp(event.time),
            }
            actor = _actor(kind, event, data, worker)
            if actor:
                document["actor"] = actor
            if reader.is_redacted:
                details = redact_quotes(details)
            yield (event.pk, index), document | {"data": details}


def _is_first(event: Event) -> bool:
    change = transition_of(event) if event.type in FIRST else None
    return change is not None and not change.before


def _sizes(created: Iterable[Event]) -> dict[str, int]:
    """Return the sizes of the arguments of jobs that still exist, by id."""
    ids = events.job_ids_of(created)
    if not ids:
        return {}
    rows = Job.objects.using(alias()).filter(pk__in=ids).annotate(size=Bytes("args"))
    return {str(job_id): size for job_id, size in rows.values_list("pk", "size")}


def _data(
    kind: str, event: Event, data: dict[str, Any], worker: str, sizes: dict[str, int]
) -> dict[str, Any] | None:
    """Return the data of the entry (§3); None if the event has none of this kind."""
    if kind == CREATED:
        return created_data(
            event.queue,
            event.job_type,
            "scheduled" if event.type == "job.scheduled" else "available",
            sizes.get(event.subject),
        )
    if kind == CHANGED:
        change = transition_of(event)
        return None if change is None else {"from": change.before, "to": change.after}
    attempt = {} if event.attempt is None else {"attempt": event.attempt}
    if kind == "job.attempt_started":
        return {"worker_id": worker} | attempt
    if kind == "job.attempt_completed":
        return {"duration_ms": data.get("duration_ms", 0)} | attempt
    if kind == "job.attempt_failed":
        will_retry = data.get("state") != State.DISCARDED
        return _error("error", data.get("error")) | {"will_retry": will_retry} | attempt
    if kind == "job.discarded":
        if event.type == "job.expired":
            last: Any = {"type": "expired", "message": "The job expired before it ran."}
        else:
            last = data.get("last_error")
        total = data.get("total_attempts", event.attempt or 0)
        return {"total_attempts": total} | _error("last_error", last)
    if kind == "job.cancelled":
        return {name: data[name] for name in ("reason", "cancelled_by") if data.get(name)}
    if kind == "job.progress":
        return {
            "percent": data.get("progress_percent", 0),
            "message": data.get("progress_message", ""),
        }
    return _workflow_data(kind, event, data)


def created_data(queue: str, job_type: str, state: str, size: int | None) -> dict[str, Any]:
    found: dict[str, Any] = {"queue": queue, "type": job_type, "state": state}
    # Unknown once the job is deleted: no hot statement pays for measuring the arguments.
    return found if size is None else found | {"args_size_bytes": size}


def _error(name: str, error: Any) -> dict[str, Any]:
    """Return the text of an error as the examples have it, and beside it what sort it is."""
    if not isinstance(error, dict):
        return {name: error or ""}
    found = {name: error.get("message") or error.get("code") or error.get("type") or ""}
    for part in ("type", "code"):
        if error.get(part):
            found[f"{name}_{part}"] = error[part]
    return found


def _workflow_data(kind: str, event: Event, data: dict[str, Any]) -> dict[str, Any]:
    found = {"workflow_id": event.subject, "workflow_type": data.get("workflow_type", "")}
    if kind == "workflow.created":
        return found | {"total_jobs": data.get("jobs", 0)}
    if kind == "workflow.step_completed":
        return found | {name: data.get(name) for name in ("step_index", "job_id")}
    status = event.type.partition(".")[2]
    return found | {"duration_ms": data.get("duration_ms"), "status": status}


def _actor(kind: str, event: Event, data: dict[str, Any], worker: str) -> dict[str, str]:
    """Return who caused it, as far as the record knows (§4.1)."""
    if kind in (CREATED, "workflow.created"):
        return {"type": "client"}
    if event.type == "job.cancelled":
        by = data.get("cancelled_by")
        return {"type": "client", "id": str(by)} if by else {}
    if event.type == "job.enqueued":
        if data.get("retried"):
            return {"type": "client"}
        if data.get("activated_by"):
            return {"type": "client", "id": str(data["activated_by"])}
        if not is_release(event):
            return {"type": "system"}
    error = data.get("error") or data.get("last_error")
    if isinstance(error, dict) and error.get("type") in TIMEOUT_TYPES:
        return {"type": "system"}
    return {"type": "worker", "id": worker} if worker else {"type": "system"}


# The history of one job


@dataclass(frozen=True, slots=True)
class Page:
    """A part of the history of a job."""

    entries: list[dict[str, Any]]
    total: int
    next: tuple[int, int] | None = None
    """The place of the last entry; None if nothing follows."""


def recorded(job_id: Any) -> QuerySet[Event]:
    """The events of a job that have entries in its history."""
    own = Event.objects.using(alias()).filter(subject=str(job_id))
    return own.filter(type__in=list(BY_EVENT))


def history_of(
    job_id: Any,
    *,
    limit: int,
    after: tuple[int, int] | None = None,
    reader: Reader = EVERYTHING,
) -> Page:
    """Return a page of the history of a job, oldest first (§7.1).

    Args:
        after: the place of the last entry of the page before.
    """
    rows = recorded(job_id)
    made = [] if after else _unrecorded(job_id, rows)
    since = rows.filter(pk__gte=after[0]) if after else rows
    # The first event may have no entry left, and one more shows that there is another page.
    found = [
        entry
        for entry in entries(list(since.order_by("pk")[: limit + 2]), reader)
        if after is None or entry[0] > after
    ]
    room = limit - len(made)
    shown_here = found[:room]
    return Page(
        [*made, *(document for _, document in shown_here)],
        total_of(job_id, rows),
        _last(shown_here) if len(found) > room else None,
    )


def _last(page: Sequence[tuple[tuple[int, int], Any]]) -> tuple[int, int]:
    # A page may consist of the one entry that is not in the record.
    return page[-1][0] if page else (0, 0)


def total_of(job_id: Any, rows: QuerySet[Event]) -> int:
    """Return the number of entries in the history of a job."""
    counts = rows.order_by().values_list("type").annotate(count=Count("pk"))
    total = sum(len(BY_EVENT[kind]) * count for kind, count in counts)
    return total + len(_unrecorded(job_id, rows))


def _unrecorded(job_id: Any, rows: QuerySet[Event]) -> list[dict[str, Any]]:
    """Return the creation of a job that was enqueued as pending: it is no event, and is read from
    the job's row.

    Nothing else is read from there: a history that was purged stays empty.
    """
    first = rows.order_by("pk").first()
    if first is not None:
        change = transition_of(first)
        if change is None or change.before != State.PENDING:
            return []
    row = Job.objects.using(alias()).filter(pk=job_id)
    if first is None:
        row = row.filter(state=State.PENDING)
    for job in row.annotate(size=Bytes("args")).values(
        "created_at", "queue", "type", "state", "size"
    ):
        return [
            {
                "id": f"job_{job_id}",
                "job_id": str(job_id),
                "event_type": CREATED,
                "timestamp": format_timestamp(job["created_at"]),
                "actor": {"type": "client"},
                "data": created_data(job["queue"], job["type"], "pending", job["size"]),
                "metadata": {"reconstructed": True},
            }
        ]
    return []
