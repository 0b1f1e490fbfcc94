"""Store on Django's ORM, for databases where one statement cannot do everything: SQLite, Citus.

With it a site can try the app without PostgreSQL, and tests run in memory. The PostgreSQL store
inherits the verbs that work the same on every database.

What is computed from a column and the time is computed in Python, from the database's clock: Citus
refuses such an UPDATE, because the time and the sum differ from node to node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

import orjson
from django.db import models
from django.db.models import Case, F, Value, When
from django.db.models.functions import Cast, Coalesce, Now

from ..access.projects import scope_to
from ..conf import ojs_settings
from ..models import Checkpoint, Job, JobError, Maintenance, Pool, Queue, SchemaRegistry
from ..models import Event as EventRow
from ..record.events import discarded_events, job_event, record
from ..spec.envelope import ERROR_FIELDS, ERRORS_SHOWN, timeout_details
from ..spec.lifecycle import TERMINAL, Event, State
from ..spec.pools import pool_of
from ..spec.reports import Completion
from ..spec.retry import RetryPolicy, by_dead_letter
from ..spec.validation import NewJob
from . import clock, looks, wakeup
from .claimed import ClaimedJob, from_row
from .contract import (
    ANY_REGISTRY,
    BATCH_SIZE,
    VISIBILITY_TIMEOUT,
    Cause,
    Claimed,
    ClaimRequest,
    Completed,
    Move,
    Reclaimed,
    stamp,
)
from .database import atomic, connection, is_postgresql, run
from .expressions import Among, Each
from .rows import insert_rows
from .sql import BESIDE_PUBLIC

COLUMNS = (
    *("id", "type", "queue", "args", "meta", "priority", "state", "max_attempts", "retry"),
    *("timeout", "grace_period", "visibility_timeout", "scheduled_at", "expires_at"),
    *("created_at", "enqueued_at", "tags", "attributes", "needs", "project", "result_ttl"),
    *("rate_key", "version_number", "workflow_id", "workflow_index", "followed"),
    "parent_results",
)
"""Attributes with the same name on a new job and on its row."""
EVENT_OF = {State.AVAILABLE: "job.enqueued", State.SCHEDULED: "job.scheduled"}
"""A pending job has entered no queue yet; its event is written when it is activated."""
ROW = (
    "id",
    "type",
    "queue",
    Cast("args", models.TextField()),
    Cast("meta", models.TextField()),
    Cast("tags", models.TextField()),
    "priority",
    "attempt",
    "max_attempts",
    "created_at",
    "enqueued_at",
    "started_at",
    Cast("retry", models.TextField()),
    "retry_delay",
    "timeout",
    "visibility_timeout",
    "scheduled_at",
    "expires_at",
    Cast("attributes", models.TextField()),
    Value(None, output_field=models.TextField()),
    "workflow_id",
    Cast("parent_results", models.TextField()),
    Value(None, output_field=models.TextField()),
)
ATTRIBUTES, CHECKPOINT = 18, 22
# As in postgres/save_checkpoint.sql, with casts that SQLite knows too.
SAVE_CHECKPOINT = f"""
    INSERT INTO ojs_jobs_checkpoint AS kept
           (job_id, state, sequence, attempt, is_cleared, saved_at)
    SELECT id, %(state)s, 1, attempt, false, %(now)s
      FROM ojs_jobs_job
     WHERE id = %(job_id)s
       AND state NOT IN ({", ".join(f"'{state}'" for state in sorted(TERMINAL))})
       AND (CAST(%(worker_id)s AS text) IS NULL
            OR (state = 'active' AND reserved_by = CAST(%(worker_id)s AS text)))
       AND (CAST(%(attempt)s AS integer) IS NULL
            OR (state = 'active' AND attempt = CAST(%(attempt)s AS integer)))
        ON CONFLICT (job_id) DO UPDATE
       SET state = excluded.state,
           sequence = kept.sequence + 1,
           attempt = excluded.attempt,
           is_cleared = excluded.is_cleared,
           saved_at = excluded.saved_at
     WHERE kept.attempt <= excluded.attempt
 RETURNING sequence
"""


REFUSED = "!"
"""What no token is."""
# Each cell has keys of its own (docs/scaling.md).
LOCK_KEYS = f"""
    SELECT count(pg_advisory_xact_lock(key # coalesce({BESIDE_PUBLIC}::bigint, 0)))
      FROM unnest(%(keys)s::bigint[]) AS key
"""


def _may_insert(new: Sequence[NewJob], asks_queues: bool, registry: str) -> bool:
    """Ask maintenance, the queues and the schema registry in one query."""
    found = SchemaRegistry.objects.order_by().values_list("token")
    if asks_queues:
        refused = Value(REFUSED, output_field=models.CharField())
        closed = Maintenance.objects.on().filter(refuses_jobs=True)
        guarded = Queue.objects.guarded().filter(pk__in={job.queue for job in new})
        found = found.union(
            closed.order_by().values_list(refused), guarded.order_by().values_list(refused)
        )
    elif registry == ANY_REGISTRY:
        return True
    words = {word for (word,) in found}
    token = "".join(words - {REFUSED})
    return REFUSED not in words and registry in (ANY_REGISTRY, token)


class PortableStore:
    def insert(
        self, new: Sequence[NewJob], *, asks_queues: bool, registry: str = ANY_REGISTRY
    ) -> int:
        if not _may_insert(new, asks_queues, registry):
            return 0
        now = clock.now()
        stamp(new, now)
        with atomic():
            wakeup.notify({job.queue for job in new if job.state == State.AVAILABLE})
            ids = [job.id for job in new if job.client_id]
            if ids and Job.objects.filter(pk__in=ids).exists():
                return 0
            insert_rows(_row(job) for job in new)
            record(
                job_event(EVENT_OF[job.state], job, time=now, data=_enqueued_data(job))
                for job in new
                if job.state in EVENT_OF
            )
        return len(new)

    def lock_keys(self, keys: Collection[int]) -> None:
        # SQLite has a single writer at a time. The order is fixed, so that two batches with the
        # same keys do not deadlock.
        if is_postgresql():
            run(LOCK_KEYS, {"keys": sorted(keys)})

    def claim(self, request: ClaimRequest) -> Claimed:
        # SQLite's single lock is acquired as the transaction begins: what was read of the worker
        # or the queues before waiting for it may be out of date.
        with atomic():
            request = request.through_gate()
            if request.count < 1:
                return Claimed([])
            pool = pool_of(request.able) if request.pool is None else request.pool
            request = replace(request, pool=pool)
            if request.asks_limits and (_are_limited(request.queues) or _has_rules(pool)):
                return Claimed([], is_limited=True, pool=pool)
            return Claimed(self._claim_available(request))

    def claim_each(self, requests: Sequence[ClaimRequest]) -> list[Claimed]:
        with atomic():
            return [self.claim(request) for request in requests]

    def _claim_available(self, request: ClaimRequest) -> list[ClaimedJob]:
        ids: list[UUID] = []
        wanted = open_queues(request.queues, request.pool)
        # Jobs with a rate limit are claimed only under its lock.
        suiting = Job.objects.unexpired().suiting(request.types, request.able, request.versions)
        fetchable = scope_to(suiting, request.project).filter(rate_key="")
        fetchable = fetchable.select_for_update(skip_locked=skips_locked())
        for order, jobs in (
            (("-priority", "enqueued_at", "id"), fetchable.filter(state=State.AVAILABLE)),
            (("scheduled_at",), fetchable.due()),
        ):
            for queue in wanted:
                room = request.count - len(ids)
                if room > 0:
                    found = jobs.filter(queue=queue).order_by(*order)[:room]
                    ids += found.values_list("pk", flat=True)
        claimed = self.claim_chosen(ids, request)
        place = {queue: number for number, queue in enumerate(request.queues)}
        return sorted(
            claimed, key=lambda job: (place[job.queue], -job.priority, job.enqueued_at, job.id)
        )

    def admit(self, request: ClaimRequest) -> tuple[datetime, ClaimRequest]:
        return clock.now(), request.through_gate()

    def claim_chosen(
        self, ids: Sequence[UUID], request: ClaimRequest, at: datetime | None = None
    ) -> list[ClaimedJob]:
        if not ids:
            return []
        with atomic():
            # On SQLite, nothing has changed since the transaction began.
            if is_postgresql() and self.admit(request)[1].count < 1:
                return []
            chosen = Job.objects.filter(pk__in=ids)
            # Recorded before the attempt is counted, as by the timer.
            was_due = dict(chosen.due().values_list("pk", "attempt"))
            if was_due:
                chosen.filter(pk__in=was_due).transition(
                    Event.TIMER, State.AVAILABLE, enqueued_at=Now()
                )
            chosen.transition(Event.FETCH, State.ACTIVE, **_reservation(request, at))
            claimed = _claimed(chosen, ids)
            record(started_events(claimed, was_due, request, clock.now()))
        return claimed

    def complete(
        self, completions: Sequence[Completion], *, followed: bool = False
    ) -> list[Completed]:
        with atomic():
            held = _lock_held(completions)
            theirs = [item for item in completions if item.job_id in held]
            done = [item for item in theirs if followed or not held[item.job_id]]
            for alike in _alike(done):
                Job.objects.filter(Among("pk", [item.job_id for item in alike])).transition(
                    Event.ACK,
                    State.COMPLETED,
                    result=alike[0].result,
                    finished_by=F("reserved_by"),
                    unfenced=alike[0].worker_id is None,
                )
            ids = [item.job_id for item in done]
            found = Job.objects.defer("args", "meta", "result").filter(Among("pk", ids))
            jobs = {job.pk: job for job in found}
            record([completed_event(jobs[job_id]) for job_id in ids])
        completed: list[Completed] = []
        for place, item in enumerate(completions):
            if (job := jobs.get(item.job_id)) is not None:
                completed.append(Completed(place, job.attempt, job.max_attempts, job.finished_at))
            elif item.job_id in held:
                completed.append(Completed(place, None, None, None))
        return completed

    def complete_and_claim(
        self, completions: Sequence[Completion], request: ClaimRequest
    ) -> tuple[list[Completed], Claimed]:
        with atomic():
            return self.complete(completions), self.claim(request)

    def lock_to_fail(self, ids: Collection[UUID]) -> list[Any]:
        jobs = Job.objects.filter(Among("pk", ids))
        # Locked in id order, like every batch.
        return list(jobs.to_fail().select_for_update().order_by("pk"))

    def move_failed(self, moves: Sequence[Move]) -> None:
        for alike in _moved_alike(moves):
            jobs = Job.objects.filter(Among("pk", [move.job_id for move in alike]))
            state, at = alike[0].state, alike[0].at
            if state == State.AVAILABLE:
                jobs.transition(Event.RELEASE, state, attempt_counted=True, enqueued_at=at)
            elif state == State.RETRYABLE:
                jobs.transition(
                    Event.FAIL,
                    state,
                    attempt_counted=alike[0].released,
                    scheduled_at=_each(alike, "at", models.DateTimeField()),
                    retry_delay=_each(alike, "retry_delay", models.DurationField()),
                )
            else:
                jobs.transition(
                    Event.FAIL,
                    state,
                    finished_at=at,
                    dead_letter=alike[0].dead_letter,
                    unfenced=alike[0].unfenced,
                    finished_by=F("reserved_by"),
                )

    def extend(
        self,
        job_ids: Collection[UUID],
        *,
        worker_id: str,
        requested: timedelta | None,
        at_least: timedelta | None,
    ) -> set[UUID]:
        with atomic():
            # Locked in id order, like every batch: no deadlock with a batch of ACKs.
            held = list(
                Job.objects.active()
                .filter(pk__in=job_ids, reserved_by__in=(worker_id, ""))
                .order_by("pk")
                .select_for_update()
                .values_list("pk", "reserved_for", "visibility_timeout")
            )
            now = clock.now()
            for period, ids in _by_period(held, requested, at_least):
                until = None if period is None else now + period
                Job.objects.active().filter(pk__in=ids).update(
                    reserved_until=until, reserved_by=worker_id
                )
            extended = [job_id for job_id, *_ in held]
            if extended:
                record_heartbeats(extended)
        return set(extended)

    def reclaim(
        self,
        cause: Cause,
        *,
        workers: Collection[str] | None,
        details: Mapping[str, dict[str, Any] | None],
        project: str,
    ) -> Reclaimed:
        with atomic():
            jobs = _lost(workers, project)
            now = clock.now()
            known = {job.pk: _details(job, cause, details, now) for job in jobs}
            insert_rows(
                JobError(
                    job_id=job.pk,
                    attempt=job.attempt,
                    type=cause.type,
                    code=cause.type,
                    message=cause.message,
                    worker_id=job.reserved_by,
                    details=known[job.pk],
                    occurred_at=now,
                )
                for job in jobs
            )
            spent = [job for job in jobs if not job.has_attempts_left]
            again = [job for job in jobs if job.has_attempts_left]
            Job.objects.these(again).transition(
                Event.TIMEOUT,
                State.AVAILABLE,
                attempt=F("attempt") + 1,
                attempt_counted=True,
                enqueued_at=Now(),
                started_at=None,
            )
            for dead_letter, ids in by_dead_letter(spent):
                Job.objects.filter(pk__in=ids).transition(
                    Event.TIMEOUT, State.DISCARDED, dead_letter=dead_letter
                )
            record(event for job in jobs for event in _lost_events(job, cause, known[job.pk], now))
            wakeup.notify({job.queue for job in again})
        return Reclaimed(
            len(jobs),
            [job.pk for job in spent],
            [job.pk for job in again],
            [job.pk for job in spent if job.followed],
            [job.pk for job in again if "enqueue_ttl" in (job.attributes or {})],
            [job.pk for job in again if job.followed],
        )

    def promote(self, head_start: timedelta) -> int:
        # SQLite has one writer at a time: an idle reaper is not to be it twice a second.
        if not looks.finds(Job.objects.due):
            return 0
        now = clock.now()
        with atomic():
            if Maintenance.objects.on().exists():
                return 0
            waiting = Job.objects.due().filter(scheduled_at__lte=Now() - head_start)
            due = list(
                waiting.order_by("scheduled_at")
                .select_for_update(skip_locked=skips_locked())
                .only("type", "queue", "attempt")[:BATCH_SIZE]
            )
            if due:
                Job.objects.these(due).transition(Event.TIMER, State.AVAILABLE, enqueued_at=Now())
                record(job_event("job.enqueued", job, time=now) for job in due)
                wakeup.notify({job.queue for job in due})
        return len(due)

    def save_checkpoint(
        self, job_id: UUID, state: str, now: datetime, *, worker_id: str | None, attempt: int | None
    ) -> int | None:
        rows = run(
            SAVE_CHECKPOINT,
            {
                "job_id": Job._meta.pk.get_db_prep_value(job_id, connection()),
                "state": state,
                "now": connection().ops.adapt_datetimefield_value(now),
                "worker_id": worker_id,
                "attempt": attempt,
            },
        )
        return int(rows[0][0]) if rows else None


def skips_locked() -> bool:
    """Whether a SELECT FOR UPDATE can skip locked rows."""
    return bool(connection().features.has_select_for_update_skip_locked)


@cache
def _members() -> list[tuple[str, Any]]:
    """Return the attribute of a new job for each column, or none and the column's default."""
    fields = Job._meta.concrete_fields
    return [
        (field.attname, None) if field.attname in COLUMNS else ("", field.get_default())
        for field in fields
    ]


def _row(job: NewJob) -> Job:
    """Return the row of a stamped job."""
    # By position, this takes half the time.
    model: Any = Job
    row: Job = model(*[getattr(job, name) if name else default for name, default in _members()])
    if job.total_timeout:
        row.deadline = job.created_at + job.total_timeout
    if job.unique:
        row.unique_key = job.unique.key
    return row


def _enqueued_data(job: NewJob) -> dict[str, Any]:
    if job.state == State.SCHEDULED and job.scheduled_at is not None:
        return {"scheduled_at": job.scheduled_at.isoformat()}
    return {"priority": job.priority}


def open_queues(queues: Sequence[str], pool: str | None) -> list[str]:
    """Return the queues that hand out jobs to this pool now; none during maintenance."""
    if Maintenance.objects.on().exists():
        return []
    closed = Queue.objects.closed_to(pool or "").filter(pk__in=queues)
    names = set(closed.values_list("pk", flat=True))
    return [queue for queue in queues if queue not in names]


def _are_limited(queues: Sequence[str]) -> bool:
    return Queue.objects.limited().filter(pk__in=queues).exists()


def _has_rules(pool: str) -> bool:
    return bool(pool) and Pool.objects.filter(pk=pool, has_rules=True).exists()


def _reservation(request: ClaimRequest, at: datetime | None) -> dict[str, Any]:
    length = Coalesce(F("visibility_timeout"), _duration(request.period))
    return {
        "attempt": F("attempt") + Case(When(attempt_counted=True, then=0), default=1),
        "attempt_counted": False,
        "started_at": at or Now(),
        "reserved_by": request.worker_id,
        "reserved_for": length,
        "reserved_until": models.ExpressionWrapper(
            Now() + length, output_field=models.DateTimeField()
        ),
    }


def _claimed(chosen: models.QuerySet[Job], ids: Sequence[UUID]) -> list[ClaimedJob]:
    rows = {row[0]: list(row) for row in chosen.values_list(*ROW)}
    kept = Checkpoint.objects.filter(pk__in=rows, is_cleared=False)
    for job_id, state, sequence in kept.values_list("pk", "state", "sequence"):
        rows[job_id][CHECKPOINT] = orjson.dumps({"state": state, "sequence": sequence})
    for row in rows.values():
        row[ATTRIBUTES] = None if row[ATTRIBUTES] == "{}" else row[ATTRIBUTES]
    jobs = [from_row(tuple(rows[job_id])) for job_id in ids]
    history: dict[UUID, list[Mapping[str, Any]]] = {}
    retried = [job.id for job in jobs if job.attempt > 1]
    if retried:
        for error in JobError.objects.filter(job__in=retried).values("job_id", *ERROR_FIELDS):
            history.setdefault(error["job_id"], []).append(error)
    return [
        job._replace(errors=history[job.id][-ERRORS_SHOWN:]) if job.id in history else job
        for job in jobs
    ]


def started_events(
    claimed: Sequence[ClaimedJob], was_due: Mapping[UUID, int], request: ClaimRequest, now: datetime
) -> list[EventRow]:
    """
    Args:
        was_due: of the jobs that no timer had made available, how many attempts had been made.
    """
    due = [job._replace(attempt=was_due[job.id]) for job in claimed if job.id in was_due]
    data = {"pool": request.pool} if request.pool else None
    return [job_event("job.enqueued", job, time=now) for job in due] + [
        job_event("job.started", job, time=now, worker_id=request.worker_id, data=data)
        for job in claimed
    ]


def _lock_held(completions: Sequence[Completion]) -> dict[UUID, bool]:
    """Lock the jobs that their senders hold; return whether others wait for each.

    A sender is known by worker, and by attempt where it gives one.
    """
    senders = {item.job_id: item for item in completions}
    # Locked in id order, like every batch.
    active = Job.objects.active().filter(Among("pk", senders)).order_by("pk").select_for_update()
    return {
        job_id: followed
        for job_id, holder, attempt, followed in active.values_list(
            "pk", "reserved_by", "attempt", "followed"
        )
        if senders[job_id].worker_id in (None, holder)
        and senders[job_id].attempt in (None, attempt)
    }


def _alike(completions: Sequence[Completion]) -> Iterable[list[Completion]]:
    """Group those that change their jobs in the same way."""
    groups: dict[tuple[bytes, bool], list[Completion]] = {}
    for item in completions:
        # Compared in the form sent: in Python, 1 and True are equal.
        key = orjson.dumps(item.result), item.worker_id is None
        groups.setdefault(key, []).append(item)
    return groups.values()


def _moved_alike(moves: Sequence[Move]) -> Iterable[list[Move]]:
    """Group those that one UPDATE can move."""
    groups: dict[tuple[Any, ...], list[Move]] = {}
    for move in moves:
        # Each retry may have a time of its own.
        at = None if move.state == State.RETRYABLE else move.at
        key = move.state, at, move.released, move.dead_letter, move.unfenced
        groups.setdefault(key, []).append(move)
    return groups.values()


def _each(moves: Sequence[Move], name: str, output_field: Any) -> Any:
    if len(moves) == 1:
        return getattr(moves[0], name)
    return Each({move.job_id: getattr(move, name) for move in moves}, output_field)


def completed_event(job: Any) -> EventRow:
    """The event of a completed job: anything with the columns that it names."""
    duration = (job.finished_at - job.started_at) // timedelta(milliseconds=1)
    return job_event(
        "job.completed",
        job,
        time=job.finished_at,
        worker_id=job.finished_by,
        data={"duration_ms": duration},
    )


def record_heartbeats(job_ids: Collection[UUID]) -> None:
    """Record that a heartbeat extended these jobs, where that is enabled (OJS events §4.1)."""
    if not ojs_settings.RECORD_HEARTBEATS:
        return
    now = clock.now()
    columns = ("type", "queue", "attempt", "reserved_by", "reserved_until")
    record(
        job_event(
            "job.heartbeat",
            job,
            time=now,
            worker_id=job.reserved_by,
            data={"visible_until": job.reserved_until and job.reserved_until.isoformat()},
        )
        for job in Job.objects.filter(pk__in=job_ids).only(*columns)
    )


def _lost(workers: Collection[str] | None, project: str) -> list[Job]:
    """Lock a batch, skipping locked jobs: they are being settled or extended right now."""
    jobs = Job.objects.overdue()
    if workers is not None:
        jobs = Job.objects.active().filter(reserved_for__isnull=False, reserved_by__in=workers)
        if project:
            jobs = jobs.filter(project__in=("", project))
    columns = (
        *("type", "queue", "state", "attempt", "max_attempts", "retry", "attributes"),
        *("reserved_by", "reserved_for", "reserved_until", "followed"),
    )
    locked = jobs.order_by("pk").select_for_update(skip_locked=skips_locked())
    return list(locked.only(*columns)[:BATCH_SIZE])


def _details(
    job: Job, cause: Cause, details: Mapping[str, dict[str, Any] | None], now: datetime
) -> dict[str, Any] | None:
    if cause != VISIBILITY_TIMEOUT:
        return details.get(job.reserved_by)
    length = job.reserved_for or timedelta(0)
    return timeout_details("stalled", length, now - (job.reserved_until or now) + length)


def _lost_events(
    job: Job, cause: Cause, details: dict[str, Any] | None, now: datetime
) -> Iterable[EventRow]:
    error = {"code": cause.type, "message": cause.message}
    about: dict[str, Any] = {"time": now, "worker_id": job.reserved_by}
    again = job.has_attempts_left
    failed = {"error": error | {"retryable": again}, "state": "available" if again else "discarded"}
    if cause == VISIBILITY_TIMEOUT:
        yield job_event("job.stalled", job, data=details, **about)
    yield job_event("job.failed", job, data=failed, **about)
    if again:
        retry = {"max_attempts": job.max_attempts, "next_retry_at": now.isoformat(), "error": error}
        yield job_event("job.retrying", job, data=retry | {"state": "available"}, **about)
    else:
        last = {"total_attempts": job.attempt, "last_error": error}
        dead_letter = RetryPolicy.parse(job.retry).keeps_dead_letter
        yield from discarded_events(
            job, data=last, exhausted=True, dead_letter=dead_letter, **about
        )


def _by_period(
    held: Iterable[tuple[UUID, timedelta | None, timedelta | None]],
    requested: timedelta | None,
    at_least: timedelta | None,
) -> Iterable[tuple[timedelta | None, list[UUID]]]:
    """Return the jobs by how long they are reserved from now on: mostly the same for all."""
    groups: dict[timedelta | None, list[UUID]] = {}
    for job_id, length, own in held:
        if requested is not None:
            length = max(own or requested, requested)
        if at_least is not None:
            length = max(length or at_least, at_least)
        groups.setdefault(length, []).append(job_id)
    return groups.items()


def _duration(value: timedelta) -> Value:
    return Value(value, output_field=models.DurationField())
