"""FETCH: reserve available jobs for a worker, each for one only (OJS worker protocol §6).

`attempt` is the number of the attempt being made. FETCH raises it, except when a recovery has
already counted the attempt that is due: an expired or orphaned attempt *n* leaves *n* + 1 marked
as counted, so that one crash costs exactly one attempt, the counter grows at expiry as §5.5 asks
and at FETCH as core §6.3 asks, and `max_attempts` is never passed.

Scheduled and retryable jobs whose time has come are taken too, as if the timer had made them
available a moment before: a fetch does not depend on the reaper.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from functools import cache

import orjson

from ..conf import ojs_settings
from ..database import is_postgresql, run
from ..envelope import ERRORS_SHOWN
from ..models import Job, Queue
from ..signals import jobs_claimed, send_on_commit
from . import claim_portable, limits
from .claimed import ClaimedJob, from_row
from .workflows import mark_started

# The lateral join visits queues in the order given and stops at the limit, so only rows about to
# be claimed are ever locked. MATERIALIZED keeps the planner from running it again for each
# updated row. The limits are literals: bound as parameters, or with a number of queues that the
# planner must guess, the statement is planned anew each time, which costs as much as running it.
# Whether there is maintenance is asked once, of an empty table.
# Due jobs are only looked at for the places that available ones leave.
CLAIM = """
    WITH wanted AS MATERIALIZED (
        SELECT name
          FROM (SELECT unnest(%(queues)s::text[]) AS name LIMIT {queues}) AS named
         WHERE NOT coalesce((
               SELECT paused_at IS NOT NULL
                      AND coalesce(paused_until > statement_timestamp(), true)
                 FROM ojs_jobs_queue AS queue
                WHERE queue.name = named.name), false)
           AND NOT EXISTS (SELECT 1
                             FROM ojs_jobs_maintenance
                            WHERE coalesce(until > statement_timestamp(), true))
    ), available AS MATERIALIZED (
        SELECT job.id
          FROM wanted
    CROSS JOIN LATERAL (
            SELECT id
              FROM ojs_jobs_job
             WHERE state = 'available'
               AND queue = wanted.name
               AND rate_key = ''{types}{able}{project}
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
               AND queue = wanted.name
               AND rate_key = ''{types}{able}{project}
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
                SELECT json_agg(to_json(newest) ORDER BY newest.id)::text
                  FROM (SELECT *
                          FROM ojs_jobs_joberror AS error
                         WHERE error.job_id = claimed.id
                      ORDER BY id DESC
                         LIMIT {shown}) AS newest) END,
           reserved_until, workflow_id, parent_results::text,
           (SELECT jsonb_build_object('state', kept.state, 'sequence', kept.sequence)::text
              FROM ojs_jobs_checkpoint AS kept
             WHERE kept.job_id = claimed.id AND NOT kept.is_cleared)
      FROM claimed
  ORDER BY array_position(%(queues)s::text[], queue::text), priority DESC, enqueued_at, id
"""
# Written by the database: reading a timestamp and writing it again costs ten times as much.
TIME = """to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
TYPES = "\n               AND type = ANY(%(types)s::text[])"
# A job that needs something goes only to a worker that has all of it.
UNABLE = "\n               AND needs IS NULL"
ABLE = "\n               AND (needs IS NULL OR needs <@ %(able)s::jsonb)"
# The second condition is what the partial index says: a parameter could be empty.
PROJECT = "\n               AND project = %(project)s AND project <> ''"
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
def _statement(limit: int, queues: int, typed: bool, told: bool, able: bool, owned: bool) -> str:
    times = {name: TIME.format(name) for name in ("created_at", "enqueued_at", "started_at")}
    return CLAIM.format(
        limit=limit,
        queues=queues,
        shown=ERRORS_SHOWN,
        types=TYPES if typed else "",
        able=ABLE if able else UNABLE,
        project=PROJECT if owned else "",
        told=TOLD if told else "",
        **times,
    )


def claim(
    queues: Sequence[str],
    *,
    worker_id: str = "",
    count: int = 1,
    types: Sequence[str] | None = None,
    able: Sequence[str] = (),
    visibility_timeout: timedelta | None = None,
    limited: bool = True,
    project: str = "",
) -> list[ClaimedJob]:
    """Reserve up to `count` jobs, queues in the order given, priority then age inside each (§6.3).

    Args:
        types: job types the worker can run; None means any.
        able: what the worker can do; jobs that need anything else are left to others.
        visibility_timeout: for jobs that name none of their own.
        limited: some of the queues may cap their active jobs; False spares the look.
        project: whose jobs; empty means everybody's.

    Paused queues give nothing. Never blocks; an empty list is a normal answer (§6.5).
    """
    if count < 1 or types == []:
        return []
    queues = list(dict.fromkeys(queues))
    period = visibility_timeout or ojs_settings.VISIBILITY_TIMEOUT
    take = _claim_postgresql if is_postgresql() else claim_portable.take
    if limited and Queue.objects.limited().filter(pk__in=queues).exists():
        claimed = limits.claim_within(take, queues, worker_id, count, types, period, able, project)
    else:
        claimed = take(queues, worker_id, count, types, period, able, project)
    belonging = {job.workflow_id for job in claimed if job.workflow_id is not None}
    if belonging:
        mark_started(belonging)
    if claimed and jobs_claimed.has_listeners():
        send_on_commit(jobs_claimed, Job, jobs=claimed, worker_id=worker_id)
    return claimed


def _claim_postgresql(
    queues: Sequence[str],
    worker_id: str,
    count: int,
    types: Sequence[str] | None,
    period: timedelta,
    able: Sequence[str],
    project: str,
) -> list[ClaimedJob]:
    statement = _statement(
        count,
        len(queues),
        types is not None,
        ojs_settings.RECORD_EVENTS,
        bool(able),
        bool(project),
    )
    parameters = {
        "queues": list(queues),
        "worker_id": worker_id,
        "visibility_timeout": period,
        "types": list(types or ()),
        "able": orjson.dumps(list(able)).decode(),
        "project": project,
    }
    return [from_row(row) for row in run(statement, parameters)]


__all__ = ["ClaimedJob", "claim"]
