"""Reservations taken back: their time has passed, or their worker is gone (OJS worker §5.5, §10.2).

Each job gets an error of the attempt it was in. With attempts left it becomes available at once
with the next attempt already counted (see `claim`) and not begun (core §6.3), else it is discarded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from django.db.models import F
from django.db.models.functions import Now

from ..conf import ojs_settings
from ..models import Job, JobError
from ..models.querysets import JobQuerySet
from ..record.events import job_event, record
from ..signals import jobs_reclaimed, send_on_commit
from ..spec.envelope import timeout_details
from ..spec.lifecycle import Event, State
from ..store import clock, wakeup
from ..store.database import atomic, compiled, connection, is_postgresql
from .dependents import follow
from .failure import by_dead_letter, forget_enqueue_ttl

BATCH_SIZE = 1000
Details = Mapping[str, dict[str, Any] | None]


@dataclass(frozen=True)
class Cause:
    """Why a reservation was taken back; `type` is a word of Appendix B."""

    type: str
    message: str


VISIBILITY_TIMEOUT = Cause(
    "visibility_timeout", "The visibility timeout passed without ACK, FAIL or heartbeat."
)
WORKER_DEATH = Cause("worker_death", "The worker that held the job was declared dead.")


def expire() -> int:
    """Take back one batch of reservations whose time has passed (§5.5); return how many."""
    return reclaim(Job.objects.overdue(), VISIBILITY_TIMEOUT)


COLUMNS = (
    "id",
    "type",
    "queue",
    "attempt",
    "max_attempts",
    "retry",
    "reserved_by",
    "reserved_for",
    "reserved_until",
    "followed",
)

# A worker's death may orphan thousands of jobs, and each of them writes four rows: one statement
# takes a batch. `{lost}` is the caller's own SELECT ... FOR UPDATE SKIP LOCKED. Who keeps a dead
# letter is `keeps_dead_letter()`, said once more, and `details` is `timeout_details()`.
RECLAIM = """
    WITH lost AS MATERIALIZED ({lost}
    ), judged AS MATERIALIZED (
        SELECT *, attempt < max_attempts AS again,
               CASE WHEN %s THEN jsonb_build_object(
                    'timeout_kind', 'stalled',
                    'limit_seconds', trim_scale(round(
                        coalesce(extract(epoch FROM reserved_for), 0), 3)),
                    'elapsed_seconds', trim_scale(round(extract(epoch FROM statement_timestamp()
                        - reserved_until + coalesce(reserved_for, '0')), 3)))
               ELSE nullif(%s::jsonb -> reserved_by, 'null') END AS details
          FROM lost
    ), returned AS (
        UPDATE ojs_jobs_job AS job
           SET state = 'available', attempt = job.attempt + 1, attempt_counted = true,
               enqueued_at = statement_timestamp(), started_at = NULL,
               reserved_by = '', reserved_until = NULL, reserved_for = NULL
          FROM judged
         WHERE job.id = judged.id AND judged.again AND job.state = 'active'
     RETURNING job.id, job.attributes ? 'enqueue_ttl' AS had_to_start
    ), discarded AS (
        UPDATE ojs_jobs_job AS job
           SET state = 'discarded', finished_at = statement_timestamp(),
               dead_letter = coalesce(judged.retry->>'on_exhaustion',
                                      judged.retry->>'onExhaustion') IS DISTINCT FROM 'discard',
               reserved_by = '', reserved_until = NULL, reserved_for = NULL
          FROM judged
         WHERE job.id = judged.id AND NOT judged.again AND job.state = 'active'
    ), errors AS (
        INSERT INTO ojs_jobs_joberror
               (job_id, attempt, type, code, message, worker_id, details, occurred_at)
        SELECT id, attempt, %s, %s, %s, reserved_by, details, statement_timestamp() FROM judged
    ), rung AS (
        SELECT count(pg_notify('ojs_jobs', queue))
          FROM (SELECT DISTINCT queue FROM judged WHERE again) AS queues
         WHERE EXISTS (SELECT 1 FROM ojs_jobs_listener)
    ){recorded}
    SELECT (SELECT count(*) FROM lost),
           (SELECT array_agg(id) FROM judged WHERE followed AND NOT again),
           (SELECT array_agg(id) FROM judged WHERE NOT again),
           (SELECT array_agg(id) FROM returned WHERE had_to_start)
      FROM rung
"""
EVENTS = """, recorded AS (
        INSERT INTO ojs_jobs_event
               (type, subject, queue, job_type, worker_id, attempt, time, data)
        SELECT event.type, judged.id::text, queue, judged.type, reserved_by, attempt,
               statement_timestamp(), event.data
          FROM judged
    CROSS JOIN LATERAL (
               SELECT jsonb_build_object('code', %s::text, 'message', %s::text) AS object
          ) AS error
    CROSS JOIN LATERAL (VALUES
               (CASE WHEN %s THEN 'job.stalled' END, judged.details),
               ('job.failed', jsonb_build_object(
                    'error', error.object || jsonb_build_object('retryable', again),
                    'state', CASE WHEN again THEN 'available' ELSE 'discarded' END)),
               (CASE WHEN again THEN 'job.retrying' ELSE 'job.discarded' END,
                CASE WHEN again
                     THEN jsonb_build_object(
                          'max_attempts', max_attempts, 'next_retry_at', statement_timestamp(),
                          'error', error.object, 'state', 'available')
                     ELSE jsonb_build_object(
                          'total_attempts', attempt, 'last_error', error.object) END)
          ) AS event (type, data)
         WHERE event.type IS NOT NULL
    )"""


def reclaim(jobs: JobQuerySet, cause: Cause, details: Details | None = None) -> int:
    """Take active jobs back from their workers, one batch; return how many.

    Jobs locked by somebody else are being settled or extended right now, and left alone.

    Args:
        details: what the error says besides, by the id of the job's worker. That of a visibility
            timeout says how long the job was reserved, and for how long nothing was heard of it.
    """
    skip = connection().features.has_select_for_update_skip_locked
    lost = jobs.order_by("pk").select_for_update(skip_locked=skip)
    take_back = _take_back_postgresql if is_postgresql() else _take_back_portable
    with atomic():
        count, discarded = take_back(lost, cause, details or {})
    if count:
        recorded = {"count": count, "error_type": cause.type, "discarded": discarded}
        send_on_commit(jobs_reclaimed, Job, **recorded)
    return count


def _take_back_postgresql(
    lost: JobQuerySet, cause: Cause, details: Details
) -> tuple[int, list[UUID]]:
    select, parameters = compiled(lost.values(*COLUMNS)[:BATCH_SIZE])
    known = orjson.dumps(details).decode()
    stalled = cause == VISIBILITY_TIMEOUT
    parameters = (*parameters, stalled, known, cause.type, cause.type, cause.message)
    recorded = ""
    if ojs_settings.RECORD_EVENTS:
        recorded = EVENTS
        parameters = (*parameters, cause.type, cause.message, stalled)
    with connection().cursor() as cursor:
        cursor.execute(RECLAIM.format(lost=select, recorded=recorded), parameters)
        count, ended, discarded, begun = cursor.fetchone()
    if begun:
        # Their own `expires_at` is text, as their client spelled it: for Python to read.
        forget_enqueue_ttl(Job.objects.filter(pk__in=begun).only("attributes"))
    follow(ended or ())
    return int(count), discarded or []


def _take_back_portable(
    lost: JobQuerySet, cause: Cause, details: Details
) -> tuple[int, list[UUID]]:
    now = clock.now()
    jobs = list(lost.only(*COLUMNS, "state", "attributes")[:BATCH_SIZE])
    known = {job.pk: _details(job, cause, details, now) for job in jobs}
    JobError.objects.bulk_create(
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
    _return([job.pk for job in again])
    forget_enqueue_ttl(again)
    _discard(spent)
    record(event for job in jobs for event in _events(job, cause, known[job.pk], now))
    wakeup.notify({job.queue for job in jobs if job.has_attempts_left})
    follow([job.pk for job in spent if job.followed])
    return len(jobs), [job.pk for job in spent]


def _return(ids: Sequence[UUID]) -> None:
    Job.objects.filter(pk__in=ids).transition(
        Event.TIMEOUT,
        State.AVAILABLE,
        attempt=F("attempt") + 1,
        attempt_counted=True,
        enqueued_at=Now(),
        started_at=None,
    )


def _discard(spent: Collection[Job]) -> None:
    for dead_letter, ids in by_dead_letter(spent):
        Job.objects.filter(pk__in=ids).transition(
            Event.TIMEOUT, State.DISCARDED, dead_letter=dead_letter
        )


def _details(job: Job, cause: Cause, details: Details, now: datetime) -> dict[str, Any] | None:
    if cause != VISIBILITY_TIMEOUT:
        return details.get(job.reserved_by)
    length = job.reserved_for or timedelta(0)
    return timeout_details("stalled", length, now - (job.reserved_until or now) + length)


def _events(job: Job, cause: Cause, details: dict[str, Any] | None, now: datetime) -> list[Any]:
    error = {"code": cause.type, "message": cause.message}
    recorded: dict[str, Any] = {"time": now, "worker_id": job.reserved_by}
    again = job.has_attempts_left
    failed = {"error": error | {"retryable": again}, "state": "available" if again else "discarded"}
    events = [job_event("job.failed", job, data=failed, **recorded)]
    if cause == VISIBILITY_TIMEOUT:
        events.insert(0, job_event("job.stalled", job, data=details, **recorded))
    if again:
        retry = {"max_attempts": job.max_attempts, "next_retry_at": now.isoformat(), "error": error}
        events.append(
            job_event("job.retrying", job, data=retry | {"state": "available"}, **recorded)
        )
    else:
        last = {"total_attempts": job.attempt, "last_error": error}
        events.append(job_event("job.discarded", job, data=last, **recorded))
    return events
