"""The worker protocol without a transport: register, beat, fetch, ack, fail, deregister.

Every wire format calls these six; what is written here holds on all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import (
    Case,
    Count,
    Exists,
    F,
    IntegerField,
    OuterRef,
    Q,
    Subquery,
    Value,
    When,
)
from django.db.models.functions import Coalesce
from django.utils import timezone

from jobs import engine
from jobs.conf import ojs_settings
from jobs.database import atomic
from jobs.engine import ClaimedJob, Completion, Failure, Outcome
from jobs.errors import InvalidRequest
from jobs.events import record, worker_event
from jobs.identifiers import parse_uuid
from jobs.models import Job, Queue
from jobs.signals import send_on_commit

from .lifecycle import WorkerState
from .models import Worker
from .signals import worker_left, worker_registered, worker_returned


@dataclass(slots=True)
class Description:
    """What a worker says of itself (§3.1, §4.2); None where it said nothing."""

    hostname: str | None = None
    pid: int | None = None
    queues: list[str] | None = None
    concurrency: int | None = None
    labels: list[str] | None = None
    started_at: datetime | None = None
    protocol: str | None = None
    version: str | None = None
    heartbeat_timeout: timedelta | None = None

    def given(self) -> dict[str, Any]:
        pairs = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in pairs if value is not None}


@dataclass(slots=True)
class Reply:
    """What a heartbeat is answered with (§4.4; ARCHITECTURE §12)."""

    state: WorkerState
    jobs_extended: list[str] = field(default_factory=list)
    jobs_lost: list[str] = field(default_factory=list)
    """Reported as running, but no longer this worker's: drop them (§10.4)."""
    stale: bool = False
    """An older heartbeat that arrived late: nothing was changed (§10.3)."""


def register(worker_id: str, description: Description) -> Worker:
    """Store a worker, or meet it again (§3).

    Another process under a known id is a new incarnation: what the old one left behind is
    forgotten, a directive too, and the jobs it held are recovered like those of a dead worker.
    """
    now = timezone.now()
    with atomic():
        known = Worker.objects.filter(pk=worker_id).select_for_update().first()
        fresh = description.given() | {
            "last_heartbeat_at": now,
            "registered_at": now,
            "state": WorkerState.RUNNING,
            "sequence": None,
            "left_at": None,
        }
        if known is None:
            worker, _ = Worker.objects.update_or_create(pk=worker_id, defaults=fresh)
        else:
            again = _same_process(known, description)
            if not again:
                fresh |= {
                    "directive": "",
                    "active_job_ids": [],
                    "incarnation": F("incarnation") + 1,
                }
            Worker.objects.filter(pk=worker_id).update(**fresh)
            worker = Worker.objects.get(pk=worker_id)
        record([_started(worker)])
    if known is not None and not again:
        while engine.reclaim(Job.objects.held_by(worker_id), engine.WORKER_DEATH):
            pass
    send_on_commit(worker_registered, Worker, worker_id=worker_id, incarnation=worker.incarnation)
    return worker


def _same_process(known: Worker, description: Description) -> bool:
    """Whether this is the process we know, registering once more (§10.4).

    Told by what identifies a process; what one side does not say proves nothing.
    """
    if known.left_at is not None:
        return False
    said = description.given()
    return all(
        said[name] == getattr(known, name)
        for name in ("hostname", "pid", "started_at")
        if name in said and getattr(known, name) not in (None, "")
    )


def _started(worker: Worker) -> Any:
    return worker_event(
        "worker.started",
        worker.worker_id,
        queues=worker.queues,
        concurrency=worker.concurrency or ojs_settings.CONCURRENCY,
    )


def deregister(worker_id: str) -> bool:
    """Record that a worker leaves (§3.4); return whether it was there.

    Jobs it still holds are recovered by the reaper, as a dead worker's would be.
    """
    now = timezone.now()
    with atomic():
        worker = Worker.objects.live().filter(pk=worker_id).select_for_update().first()
        if worker is None:
            return False
        Worker.objects.filter(pk=worker_id).update(
            state=WorkerState.TERMINATED, directive="", left_at=now, active_job_ids=[]
        )
        uptime = now - (worker.started_at or worker.created_at)
        record(
            [
                worker_event(
                    "worker.stopped",
                    worker_id,
                    reason="shutdown",
                    uptime_ms=max(0, uptime // timedelta(milliseconds=1)),
                )
            ]
        )
    send_on_commit(worker_left, Worker, worker_id=worker_id)
    return True


def beat(
    worker_id: str,
    *,
    state: WorkerState | None = None,
    active_job_ids: Collection[str] | None = None,
    description: Description | None = None,
    requested: timedelta | None = None,
    sequence: int | None = None,
) -> Reply:
    """Record a heartbeat, extend the jobs it names, and answer what the worker shall be (§4).

    A worker nobody knew is discovered by it (§3.1); one declared dead is live again (§10.4).

    Args:
        state: what the worker says it is; None leaves what it said before.
        active_job_ids: the jobs it runs, as it spelled them; None if it did not say.
        requested: the visibility extension it asks for; None means each job's own.
        sequence: number of this heartbeat; a lower one than seen before changes nothing (§10.3).
    """
    worker = _record_beat(worker_id, state, active_job_ids, description, sequence)
    if worker is None:
        return Reply(Worker.objects.get(pk=worker_id).desired_state, stale=True)
    reply = Reply(worker.desired_state)
    if active_job_ids:
        grace = ojs_settings.GRACE_PERIOD if reply.state == WorkerState.TERMINATE else None
        _extend(reply, worker_id, active_job_ids, requested, grace)
    if ojs_settings.CONFORMANCE_MODE and active_job_ids:
        _obey_test_directive(reply)
    return reply


def _record_beat(
    worker_id: str,
    state: WorkerState | None,
    active_job_ids: Collection[str] | None,
    description: Description | None,
    sequence: int | None,
) -> Worker | None:
    """Write what the heartbeat says, and read the worker back; None if it came too late."""
    said = description.given() if description else {}
    changes: dict[str, Any] = said | {"last_heartbeat_at": timezone.now()}
    if active_job_ids is not None:
        changes["active_job_ids"] = list(active_job_ids)
    if sequence is not None:
        changes["sequence"] = sequence
    if state is not None:
        changes["state"] = _never_back(state)
        if state == WorkerState.RUNNING:
            # The resume has been heard; a later quiet is the worker's own.
            changes["directive"] = Case(
                When(directive=WorkerState.RUNNING, then=Value("")), default=F("directive")
            )
    fresh = Worker.objects.live().filter(pk=worker_id)
    if sequence is not None:
        fresh = fresh.filter(Q(sequence__isnull=True) | Q(sequence__lt=sequence))
    if fresh.update(**changes):
        return Worker.objects.get(pk=worker_id)
    return _meet(worker_id, state, changes)


def _never_back(state: WorkerState) -> Any:
    """The reported state, unless the worker has already said `terminate` (§2.3)."""
    if state == WorkerState.TERMINATE:
        return state
    return Case(
        When(state=WorkerState.TERMINATE, then=Value(WorkerState.TERMINATE)), default=Value(state)
    )


def _meet(worker_id: str, state: WorkerState | None, changes: dict[str, Any]) -> Worker | None:
    """Discover a worker by its heartbeat, or see one return that was taken for dead."""
    reported = state or WorkerState.RUNNING
    fresh = changes | {"state": reported, "directive": "", "left_at": None}
    with atomic():
        known = Worker.objects.filter(pk=worker_id).select_for_update().first()
        if known is not None and known.state != WorkerState.TERMINATED:
            return None
        worker, created = Worker.objects.update_or_create(pk=worker_id, defaults=fresh)
        record([_started(worker)])
    if not created:
        send_on_commit(worker_returned, Worker, worker_id=worker_id)
    return worker


def _extend(
    reply: Reply,
    worker_id: str,
    active_job_ids: Collection[str],
    requested: timedelta | None,
    grace: timedelta | None,
) -> None:
    known = {text: parse_uuid(text) for text in active_job_ids}
    held = engine.extend(
        {job_id for job_id in known.values() if job_id is not None},
        worker_id=worker_id,
        requested=requested,
        at_least=grace,
    )
    for text, job_id in known.items():
        (reply.jobs_extended if job_id in held else reply.jobs_lost).append(text)


def _obey_test_directive(reply: Reply) -> None:
    """Let a job of the public conformance suite say what its worker shall hear."""
    jobs = Job.objects.filter(pk__in=reply.jobs_extended).values_list("meta", flat=True)
    for meta in jobs:
        directive = meta.get("test_directive")
        if directive in (WorkerState.QUIET, WorkerState.TERMINATE):
            reply.state = WorkerState(directive)


def fetch(
    queues: Sequence[str],
    *,
    worker_id: str = "",
    count: int = 1,
    types: Sequence[str] | None = None,
    visibility_timeout: timedelta | None = None,
) -> list[ClaimedJob]:
    """Claim jobs for a worker (§6); see `engine.claim`.

    Nothing for a worker that is, or was told to be, quiet or terminating (§6.6), that was
    declared dead and has not been heard since, or that already runs all it can (§8.2).

    Raises:
        InvalidRequest: no queue is named.
    """
    if not queues:
        raise InvalidRequest(
            "The 'queues' field must name at least one queue.",
            field="queues",
            validation="min_items",
        )
    limited: bool | None = None
    if worker_id:
        worker = _fetching(worker_id, queues)
        if worker is not None:
            if not worker.may_fetch:
                return []
            limited = worker.limited
            if worker.concurrency is not None:
                count = min(count, worker.concurrency - worker.in_hand)
    return engine.claim(
        queues,
        worker_id=worker_id,
        count=count,
        types=types,
        visibility_timeout=visibility_timeout,
        limited=True if limited is None else limited,
    )


def _fetching(worker_id: str, queues: Sequence[str]) -> Any:
    """Read what decides about a fetch in one query: the worker, its load, the queues' limits."""
    held = (
        Job.objects.held_by(OuterRef("pk"))  # type: ignore[arg-type]
        .order_by()
        .values("reserved_by")
        .annotate(jobs=Count("pk"))
        .values("jobs")
    )
    return (
        Worker.objects.filter(pk=worker_id)
        .only("state", "directive", "concurrency")
        .annotate(
            limited=Exists(Queue.objects.limited().filter(pk__in=list(queues))),
            in_hand=Coalesce(Subquery(held, output_field=IntegerField()), 0),
        )
        .first()
    )


def ack(completions: Sequence[Completion]) -> list[Outcome]:
    """Settle jobs as completed (§5.6); one outcome for each, a refused one carries its error."""
    return engine.complete(completions)


def fail(failures: Sequence[Failure]) -> list[Outcome]:
    """Settle jobs as failed (§5.6, §7.2); one outcome for each."""
    return engine.fail(failures)


__all__ = [
    "Completion",
    "Description",
    "Failure",
    "Outcome",
    "Reply",
    "ack",
    "beat",
    "deregister",
    "fail",
    "fetch",
    "register",
]
