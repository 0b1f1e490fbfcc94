"""Guarded queues: bounded, draining, or with rules for their jobs (OJS backpressure).

Producers of such a queue take turns locking its row, so that two of them cannot both see the last
free place. Queues without a configuration never come here: the statement that stores their jobs
checks for one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from contextvars import ContextVar
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ..errors import JobTypeNotAllowed, QueueClosed, QueueFull
from ..models import Job, Queue
from ..record.events import queue_event, record
from ..spec import queue_config
from ..spec.lifecycle import State
from ..spec.retry import RetryPolicy, in_force
from ..spec.tenants import default_tenant
from ..spec.validation import NewJob
from ..store import clock
from ..store.database import atomic, connection
from ..store.expressions import Among
from ..store.queries import compiled_once
from .ends import discard_waiting


class Guarded(Exception):
    """One of the batch's queues is guarded, or one of its tenants limited: `admit` must run first.

    Nothing was stored.
    """


def guarded(queues: Collection[str]) -> bool:
    return Queue.objects.guarded().filter(pk__in=queues).exists()


def admit(new: Sequence[NewJob]) -> list[UUID]:
    """Lock the guarded queues and check these jobs against their rules (OJS backpressure §9.3).

    Must run in the transaction that stores the jobs. Returns the jobs dropped to make room that
    have dependents or a workflow.

    Raises:
        QueueFull: one of the queues is at its bound.
        QueueClosed: one of the queues is draining.
        JobTypeNotAllowed: one of the queues does not accept a job's type.
    """
    ended: list[UUID] = []
    rows = Queue.objects.guarded().filter(pk__in={job.queue for job in new})
    for queue in rows.order_by("pk").select_for_update():
        ended += _admit(queue, [job for job in new if job.queue == queue.pk])
    return ended


@contextlib.contextmanager
def patiently() -> Iterator[None]:
    """Enqueues inside are retried, so a full queue does not count as a refusal yet."""
    token = _patient.set(True)
    try:
        yield
    finally:
        _patient.reset(token)


def is_patient() -> bool:
    return _patient.get()


_patient: ContextVar[bool] = ContextVar("ojs_patient", default=False)


def record_refusal(refusal: QueueFull) -> None:
    """Record that a full queue refused jobs (OJS backpressure §10.1, queue configuration §10.1)."""
    about = {name: refusal.details[name] for name in ("depth", "bound")}
    queue = refusal.details["queue"]
    rejected = about | {"job_type": refusal.job_type}
    record(
        [
            queue_event("queue.full", queue, **about),
            queue_event("backpressure.rejected", queue, **rejected),
        ]
    )


@contextlib.contextmanager
def accepted() -> Iterator[None]:
    """Jobs enqueued inside were accepted earlier: the next steps of a workflow.

    A full queue or maintenance must not break a running workflow; new workflows are refused.
    """
    token = _accepted.set(True)
    try:
        yield
    finally:
        _accepted.reset(token)


def are_accepted() -> bool:
    return _accepted.get()


_accepted: ContextVar[bool] = ContextVar("ojs_accepted", default=False)


def fill_in(new: Sequence[NewJob]) -> None:
    """Fill in the defaults of their queues where jobs set no value."""
    for queue in _guarded({job.queue for job in new}):
        for job in new:
            if job.queue == queue.pk:
                _fill_in(job, queue)


@compiled_once
def _guarded(names: Any) -> QuerySet[Queue]:
    return Queue.objects.guarded().filter(Among("pk", names))


def depth(queue: str) -> int:
    """Return how many jobs wait in the queue: the figure a bound limits (OJS backpressure §3)."""
    waiting = Job.objects.filter(queue=queue)
    # One query for each partial index; for a single query the planner would read the whole table.
    return sum(
        waiting.filter(**index).count()
        for index in (
            {"state": State.AVAILABLE},
            {"state__in": (State.SCHEDULED, State.RETRYABLE)},
            {"state": State.PENDING},
        )
    )


def _admit(queue: Queue, new: Sequence[NewJob]) -> list[UUID]:
    if queue.is_draining:
        raise QueueClosed(f"Queue '{queue.pk}' is draining.", queue=queue.pk)
    for job in new:
        if not queue_config.allows(queue.config, job.type):
            raise JobTypeNotAllowed(
                f"Queue '{queue.pk}' does not take jobs of type '{job.type}'.",
                queue=queue.pk,
                job_type=job.type,
                allowed_job_types=queue.config["allowed_job_types"],
            )
        _fill_in(job, queue)
    return [] if queue.max_depth is None else _make_room(queue, queue.max_depth, new)


def _fill_in(job: NewJob, queue: Queue) -> None:
    """Fill in what the job does not set itself (OJS queue configuration §7.3)."""
    config: dict[str, Any] = queue.config
    if queue.has_tenants:
        job.fallback_tenant = default_tenant()
    if job.timeout is None and "default_timeout" in config:
        job.timeout = timedelta(seconds=config["default_timeout"])
    if job.visibility_timeout is None and "visibility_timeout" in config:
        job.visibility_timeout = timedelta(seconds=config["visibility_timeout"])
    if job.retry is None and "default_retry" in config:
        job.retry = in_force(config["default_retry"])
        job.max_attempts = RetryPolicy.parse(job.retry).attempts


def _make_room(queue: Queue, bound: int, new: Sequence[NewJob]) -> list[UUID]:
    ended: list[UUID] = []
    projects = {job.project for job in new}
    strategy = queue.config.get("strategy", "reject")
    before = depth(queue.pk)
    after = before + len(new)
    if after > bound:
        if strategy == "drop_oldest" and len(new) <= bound:
            # Skip jobs that another transaction has locked: it may be waiting for this queue's
            # row. Wait for them only if nothing else is left.
            for patient in (False, True):
                if after > bound:
                    dropped = _drop(queue.pk, projects, after - bound, patient=patient)
                    after -= len(dropped)
                    ended += [job.pk for job in dropped if job.followed]
        if after > bound:
            raise QueueFull(queue.pk, before, bound, strategy, new[0].type, size=len(new))
    threshold = queue.config.get("warning_threshold", queue_config.WARNING_THRESHOLD)
    pressed = after > threshold * bound
    if pressed:
        for job in new:
            job.pressure = (after, bound)
    if pressed != queue.is_pressed:
        Queue.objects.filter(pk=queue.pk).update(is_pressed=pressed)
        kind = "backpressure.warning" if pressed else "backpressure.cleared"
        record([queue_event(kind, queue.pk, depth=after, bound=bound)])
    return ended


def _drop(queue: str, projects: Collection[str], count: int, *, patient: bool) -> list[Job]:
    """Discard the oldest available jobs to make room, and return them (OJS backpressure §5.3).

    Args:
        projects: those of the new jobs. Jobs of other projects stay.
        patient: wait for locked jobs instead of skipping them.
    """
    now = clock.now()
    skip = connection().features.has_select_for_update_skip_locked and not patient
    oldest = list(
        Job.objects.filter(queue=queue, state=State.AVAILABLE, project__in=projects)
        .order_by("enqueued_at", "pk")
        .select_for_update(skip_locked=skip)
        .only("type", "queue", "state", "attempt", "followed")[:count]
    )
    message = "Discarded to make room in a full queue."
    discarded = discard_waiting(oldest, code="overflow", message=message, now=now)
    dropped = [
        queue_event("backpressure.dropped", queue, job_id=str(job.pk), job_type=job.type)
        for job in oldest
    ]
    record(event for pair in zip(discarded, dropped, strict=True) for event in pair)
    if oldest:
        record([queue_event("queue.overflow", queue, dropped=len(oldest))])
    return oldest


def relieve() -> int:
    """Record queues that are no longer pressed (OJS backpressure §10.1); return how many."""
    relieved = 0
    for queue in Queue.objects.filter(is_pressed=True):
        bound = queue.max_depth or 0
        threshold = queue.config.get("warning_threshold", queue_config.WARNING_THRESHOLD)
        left = depth(queue.pk)
        if bound and left > threshold * bound:
            continue
        with atomic():
            if Queue.objects.filter(pk=queue.pk, is_pressed=True).update(is_pressed=False):
                record([queue_event("backpressure.cleared", queue.pk, depth=left, bound=bound)])
                relieved += 1
    return relieved
