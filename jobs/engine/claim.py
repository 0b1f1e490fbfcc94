"""FETCH: reserve available jobs for a worker, each for one only (OJS worker protocol §6).

`attempt` is the number of the attempt being made. FETCH raises it, except when a recovery has
already counted the attempt that is due: an expired or orphaned attempt *n* leaves *n* + 1 marked
as counted, so that one crash costs exactly one attempt, the counter grows at expiry as §5.5 asks
and at FETCH as core §6.3 asks, and `max_attempts` is never passed.

Scheduled and retryable jobs whose time has come are taken too, as if the timer had made them
available a moment before: a fetch does not depend on the reaper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from django.db import models
from django.db.models import Case, F, Value, When
from django.db.models.functions import Cast, Coalesce, Now
from django.utils import timezone

from ..conf import ojs_settings
from ..database import atomic, connection, is_postgresql, run
from ..envelope import ERROR_FIELDS
from ..events import job_event, record
from ..lifecycle import Event, State
from ..models import Job, JobError, Queue
from ..signals import jobs_claimed, send_on_commit


class ClaimedJob(NamedTuple):
    """A job as its worker gets it: whatever a reply only repeats is text already, never parsed.

    JSON columns are fragments; the three times are in their wire form, where the database can
    write it.
    """

    id: UUID
    type: str
    queue: str
    args: orjson.Fragment
    meta: orjson.Fragment
    priority: int
    attempt: int
    max_attempts: int
    retry: orjson.Fragment | None
    retry_delay: timedelta | None
    timeout: timedelta | None
    visibility_timeout: timedelta | None
    scheduled_at: datetime | None
    expires_at: datetime | None
    created_at: datetime | str
    enqueued_at: datetime | str
    started_at: datetime | str
    tags: orjson.Fragment
    attributes: dict[str, Any] | None
    errors: list[Mapping[str, Any]]
    reserved_until: datetime
    state: State = State.ACTIVE
    finished_at: None = None
    result: None = None


# The lateral join visits queues in the order given and stops at the limit, so only rows about to
# be claimed are ever locked. MATERIALIZED keeps the planner from running it again for each
# updated row. The limit is a literal: bound as a parameter, the statement is planned anew each
# time. Due jobs are only looked at for the places that available ones leave.
CLAIM = """
    WITH wanted AS MATERIALIZED (
        SELECT name
          FROM unnest(%(queues)s::text[]) AS name
         WHERE NOT coalesce((
               SELECT paused_at IS NOT NULL
                      AND coalesce(paused_until > statement_timestamp(), true)
                 FROM ojs_jobs_queue AS queue
                WHERE queue.name = name.name), false)
    ), available AS MATERIALIZED (
        SELECT job.id
          FROM wanted
    CROSS JOIN LATERAL (
            SELECT id
              FROM ojs_jobs_job
             WHERE state = 'available'
               AND queue = wanted.name{types}
               AND (expires_at IS NULL OR expires_at > statement_timestamp())
          ORDER BY priority DESC, enqueued_at, id
             LIMIT {limit}
               FOR UPDATE SKIP LOCKED
          ) AS job
         LIMIT {limit}
    ), due AS MATERIALIZED (
        SELECT job.id
          FROM wanted
    CROSS JOIN LATERAL (
            SELECT id
              FROM ojs_jobs_job
             WHERE state IN ('scheduled', 'retryable')
               AND queue = wanted.name{types}
               AND scheduled_at <= statement_timestamp()
               AND (expires_at IS NULL OR expires_at > statement_timestamp())
          ORDER BY scheduled_at
             LIMIT {limit}
               FOR UPDATE SKIP LOCKED
          ) AS job
         LIMIT greatest({limit} - (SELECT count(*) FROM available), 0)
    ), next AS MATERIALIZED (
        SELECT id, false AS was_due FROM available UNION ALL SELECT id, true FROM due
    ), claimed AS (
        UPDATE ojs_jobs_job AS job
           SET state = 'active',
               attempt = job.attempt + CASE WHEN job.attempt_counted THEN 0 ELSE 1 END,
               attempt_counted = false,
               enqueued_at = CASE WHEN next.was_due THEN statement_timestamp()
                                  ELSE job.enqueued_at END,
               started_at = statement_timestamp(),
               reserved_by = %(worker_id)s,
               reserved_for = coalesce(job.visibility_timeout, %(visibility_timeout)s::interval),
               reserved_until = statement_timestamp()
                                + coalesce(job.visibility_timeout, %(visibility_timeout)s::interval)
          FROM next
         WHERE job.id = next.id
     RETURNING job.*, next.was_due
    ){told}
    SELECT id, type, queue, args::text, meta::text, priority, attempt, max_attempts, retry::text,
           retry_delay, timeout, visibility_timeout, scheduled_at, expires_at,
           {created_at}, {enqueued_at}, {started_at}, tags::text,
           CASE WHEN attributes <> '{{}}' THEN attributes::text END,
           CASE WHEN attempt > 1 THEN (
                SELECT json_agg(to_json(error) ORDER BY error.id)::text
                  FROM ojs_jobs_joberror AS error
                 WHERE error.job_id = claimed.id) END,
           reserved_until
      FROM claimed
  ORDER BY array_position(%(queues)s::text[], queue::text), priority DESC, enqueued_at, id
"""
# Written by the database: reading a timestamp and writing it again costs ten times as much.
TIME = """to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
TYPES = "\n               AND type = ANY(%(types)s::text[])"
TOLD = """, told AS (
        INSERT INTO ojs_jobs_event (type, subject, queue, job_type, worker_id, attempt, time)
        SELECT 'job.enqueued', id::text, queue, type, '', NULL, started_at
          FROM claimed
         WHERE was_due
     UNION ALL
        SELECT 'job.started', id::text, queue, type, reserved_by, attempt, started_at
          FROM claimed
    )"""


@cache
def _statement(limit: int, typed: bool, told: bool) -> str:
    times = {name: TIME.format(name) for name in ("created_at", "enqueued_at", "started_at")}
    return CLAIM.format(
        limit=limit, types=TYPES if typed else "", told=TOLD if told else "", **times
    )


def claim(
    queues: Sequence[str],
    *,
    worker_id: str = "",
    count: int = 1,
    types: Sequence[str] | None = None,
    visibility_timeout: timedelta | None = None,
    limited: bool = True,
) -> list[ClaimedJob]:
    """Reserve up to `count` jobs, queues in the order given, priority then age inside each (§6.3).

    Args:
        types: job types the worker can run; None means any.
        visibility_timeout: for jobs that name none of their own.
        limited: some of the queues may cap their active jobs; False spares the look.

    Paused queues give nothing. Never blocks; an empty list is a normal answer (§6.5).
    """
    if count < 1 or types == []:
        return []
    period = visibility_timeout or ojs_settings.VISIBILITY_TIMEOUT
    take = _claim_postgresql if is_postgresql() else _claim_portable
    if limited and Queue.objects.limited().filter(pk__in=queues).exists():
        claimed = _claim_within_limits(take, queues, worker_id, count, types, period)
    else:
        claimed = take(queues, worker_id, count, types, period)
    if claimed and jobs_claimed.has_listeners():
        send_on_commit(jobs_claimed, Job, jobs=claimed, worker_id=worker_id)
    return claimed


def _claim_within_limits(
    take: Any,
    queues: Sequence[str],
    worker_id: str,
    count: int,
    types: Sequence[str] | None,
    period: timedelta,
) -> list[ClaimedJob]:
    """Claim queue by queue, never over a queue's concurrency limit (§8.3).

    Claimers of a limited queue take turns at its row: counting alone would let two of them see
    the same free place.
    """
    claimed: list[ClaimedJob] = []
    with atomic():
        limits = dict(
            Queue.objects.limited()
            .filter(pk__in=queues)
            .order_by("pk")
            .select_for_update()
            .values_list("pk", "concurrency")
        )
        for queue in queues:
            room = count - len(claimed)
            if queue in limits:
                active = Job.objects.active().filter(queue=queue, reserved_until__isnull=False)
                room = min(room, (limits[queue] or 0) - active.count())
            if room > 0:
                claimed += take([queue], worker_id, room, types, period)
    return claimed


def _claim_postgresql(
    queues: Sequence[str],
    worker_id: str,
    count: int,
    types: Sequence[str] | None,
    period: timedelta,
) -> list[ClaimedJob]:
    statement = _statement(count, types is not None, ojs_settings.RECORD_EVENTS)
    parameters = {
        "queues": list(queues),
        "worker_id": worker_id,
        "visibility_timeout": period,
        "types": list(types or ()),
    }
    return [_from_row(row) for row in run(statement, parameters)]


def _fragment(text: str | None) -> orjson.Fragment | None:
    return None if text is None else orjson.Fragment(text)


def _from_row(row: Sequence[Any]) -> ClaimedJob:
    fields = list(row)
    for index in (3, 4, 8, 17):  # args, meta, retry, tags
        fields[index] = _fragment(fields[index])
    fields[18] = None if fields[18] is None else orjson.loads(fields[18])
    fields[19] = [] if fields[19] is None else orjson.loads(fields[19])
    return ClaimedJob._make([*fields, State.ACTIVE, None, None])


ROW = (
    "id",
    "type",
    "queue",
    Cast("args", models.TextField()),
    Cast("meta", models.TextField()),
    "priority",
    "attempt",
    "max_attempts",
    Cast("retry", models.TextField()),
    "retry_delay",
    "timeout",
    "visibility_timeout",
    "scheduled_at",
    "expires_at",
    "created_at",
    "enqueued_at",
    "started_at",
    Cast("tags", models.TextField()),
    Cast("attributes", models.TextField()),
    Value(None, output_field=models.TextField()),
    "reserved_until",
)


def _claim_portable(
    queues: Sequence[str],
    worker_id: str,
    count: int,
    types: Sequence[str] | None,
    period: timedelta,
) -> list[ClaimedJob]:
    """The tidy version, for databases where one statement cannot do it all."""
    with atomic():
        ids: list[UUID] = []
        paused = set(Queue.objects.paused().filter(pk__in=queues).values_list("pk", flat=True))
        open_queues = [queue for queue in queues if queue not in paused]
        fetchable = Job.objects.unexpired().filter(**({"type__in": types} if types else {}))
        fetchable = fetchable.select_for_update(
            skip_locked=connection().features.has_select_for_update_skip_locked
        )
        for order, jobs in (
            (("-priority", "enqueued_at", "id"), fetchable.filter(state=State.AVAILABLE)),
            (("scheduled_at",), fetchable.due()),
        ):
            for queue in open_queues:
                room = count - len(ids)
                if room > 0:
                    found = jobs.filter(queue=queue).order_by(*order)[:room]
                    ids += found.values_list("pk", flat=True)
        if not ids:
            return []
        chosen = Job.objects.filter(pk__in=ids)
        was_due = set(chosen.due().values_list("pk", flat=True))
        if was_due:
            chosen.filter(pk__in=was_due).transition(
                Event.TIMER, State.AVAILABLE, enqueued_at=Now()
            )
        chosen.transition(Event.FETCH, State.ACTIVE, **_reservation(worker_id, period))
        claimed = _read(chosen, ids)
        _tell(claimed, was_due, worker_id)
    return claimed


def _reservation(worker_id: str, period: timedelta) -> dict[str, Any]:
    length = Coalesce(F("visibility_timeout"), Value(period, output_field=models.DurationField()))
    return {
        "attempt": F("attempt") + Case(When(attempt_counted=True, then=0), default=1),
        "attempt_counted": False,
        "started_at": Now(),
        "reserved_by": worker_id,
        "reserved_for": length,
        "reserved_until": models.ExpressionWrapper(
            Now() + length, output_field=models.DateTimeField()
        ),
    }


def _read(chosen: models.QuerySet[Job], ids: Sequence[UUID]) -> list[ClaimedJob]:
    rows = {row[0]: list(row) for row in chosen.values_list(*ROW)}
    history: dict[UUID, list[Mapping[str, Any]]] = {}
    retried = [job_id for job_id, row in rows.items() if row[6] > 1]
    if retried:
        for error in JobError.objects.filter(job__in=retried).values("job_id", *ERROR_FIELDS):
            history.setdefault(error["job_id"], []).append(error)
    for row in rows.values():
        row[19] = None
        row[18] = None if row[18] == "{}" else row[18]
    return [_from_row(rows[job_id])._replace(errors=history.get(job_id, [])) for job_id in ids]


def _tell(claimed: Sequence[ClaimedJob], was_due: set[UUID], worker_id: str) -> None:
    now = timezone.now()
    record(
        [job_event("job.enqueued", job, time=now) for job in claimed if job.id in was_due]
        + [job_event("job.started", job, time=now, worker_id=worker_id) for job in claimed]
    )


__all__ = ["ClaimedJob", "claim"]
