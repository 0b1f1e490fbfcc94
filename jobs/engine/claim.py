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
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

import orjson

from ..conf import ojs_settings
from ..models import Job, Queue
from ..signals import jobs_claimed, send_on_commit
from ..spec.envelope import ERRORS_SHOWN
from ..store.database import atomic, is_postgresql, run
from . import claim_portable, limits
from .claimed import OPEN, Asked, ClaimedJob, Gate, from_row
from .workflows import mark_started

# The lateral join visits queues in the order given and stops at the limit, so only rows about to
# be claimed are ever locked. MATERIALIZED keeps the planner from running it again for each
# updated row. The limits are literals: bound as parameters, or with a number of queues that the
# planner must guess, the statement is planned anew each time, which costs as much as running it.
# Whether there is maintenance is asked once, of an empty table.
# Due jobs are only looked at for the places that available ones leave.
# There is always a row to read: it says too that nothing was taken, because of limits or because
# the worker takes some versions of jobs only. Another statement takes them then: neither makes this
# one longer for all others.
CLAIM = """
    WITH gate AS MATERIALIZED ({gate}
    ), entry AS MATERIALIZED (
        SELECT greatest(least(room, {limit}), 0) AS room, able, versions, {limited} AS is_limited
          FROM gate
    ), wanted AS MATERIALIZED (
        SELECT name
          FROM (SELECT unnest(%(queues)s::text[]) AS name LIMIT {queues}) AS named
         WHERE EXISTS (SELECT 1 FROM entry WHERE room > 0 AND NOT is_limited AND versions IS NULL)
           AND NOT coalesce((
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
               AND rate_key = ''{types}
               AND (needs IS NULL OR needs <@ (SELECT able FROM entry)){versions}{project}
               AND (expires_at IS NULL OR expires_at > statement_timestamp())
          ORDER BY priority DESC, enqueued_at, id
             LIMIT {limit}
               FOR UPDATE SKIP LOCKED
          ) AS job
         LIMIT (SELECT room FROM entry)
    ), due AS MATERIALIZED (
        SELECT job.id, job.attempt
          FROM wanted
    CROSS JOIN LATERAL (
            SELECT id, attempt
              FROM ojs_jobs_job
             WHERE state IN ('scheduled', 'retryable')
               AND queue = wanted.name
               AND rate_key = ''{types}
               AND (needs IS NULL OR needs <@ (SELECT able FROM entry)){versions}{project}
               AND scheduled_at <= statement_timestamp()
               AND (expires_at IS NULL OR expires_at > statement_timestamp())
          ORDER BY scheduled_at
             LIMIT {limit}
               FOR UPDATE SKIP LOCKED
          ) AS job
         LIMIT greatest((SELECT room FROM entry) - (SELECT count(*) FROM available), 0)
    ), next AS MATERIALIZED (
        SELECT id, false AS was_due, NULL::integer AS attempts_made FROM available
     UNION ALL
        SELECT id, true, attempt FROM due
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
     RETURNING job.*, next.was_due, next.attempts_made
    ){recorded}
    SELECT id, type, queue, args::text, meta::text, tags::text, priority, attempt, max_attempts,
           {created_at}, CASE WHEN enqueued_at <> created_at THEN {enqueued_at} END, {started_at},
           retry::text, retry_delay, timeout, visibility_timeout, scheduled_at, expires_at,
           CASE WHEN attributes <> '{{}}' THEN attributes::text END,
           CASE WHEN attempt > 1 THEN (
                SELECT json_agg(to_json(newest) ORDER BY newest.id)::text
                  FROM (SELECT *
                          FROM ojs_jobs_joberror AS error
                         WHERE error.job_id = claimed.id
                      ORDER BY id DESC
                         LIMIT {shown}) AS newest) END,
           workflow_id, parent_results::text,
           (SELECT jsonb_build_object('state', kept.state, 'sequence', kept.sequence)::text
              FROM ojs_jobs_checkpoint AS kept
             WHERE kept.job_id = claimed.id AND NOT kept.is_cleared),
           CASE WHEN is_limited OR versions IS NOT NULL
                THEN jsonb_build_array(room, able, versions, is_limited)::text END
      FROM entry
 LEFT JOIN claimed ON true
  ORDER BY array_position(%(queues)s::text[], queue::text), priority DESC, enqueued_at, id
"""
# Written by the database: reading a timestamp and writing it again costs ten times as much.
TIME = """to_char({0} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')"""
# In a query of its own it is written once, not for each job.
STARTED = f"(SELECT {TIME.format('statement_timestamp()')})"
# Jobs behind limits are chosen under locks, by `limits`.
LIMITED = """EXISTS (
               SELECT 1
                 FROM ojs_jobs_queue
                WHERE (concurrency IS NOT NULL OR has_limits) AND name = ANY(%(queues)s::text[]))"""
# Of a type that the worker says nothing about both bounds are null: a range of everything.
VERSIONS = """
               AND (version_number IS NULL OR version_number <@ int8range(
                    (%(versions)s::jsonb -> type ->> 0)::bigint,
                    (%(versions)s::jsonb -> type ->> 1)::bigint))"""
TYPES = "\n               AND type = ANY(%(types)s::text[])"
# The second condition is what the partial index says: a parameter could be empty.
PROJECT = "\n               AND project = %(project)s AND project <> ''"
EVENTS = """, recorded AS (
        INSERT INTO ojs_jobs_event (type, subject, queue, job_type, worker_id, attempt, time)
        SELECT 'job.enqueued', id::text, queue, type, '', attempts_made, started_at
          FROM claimed
         WHERE was_due
     UNION ALL
        SELECT 'job.started', id::text, queue, type, reserved_by, attempt, started_at
          FROM claimed
    )"""


ANY_VERSION: Mapping[str, Sequence[int | None]] = {}


@cache
def _statement(
    gate: str,
    limit: int,
    queues: int,
    limited: bool,
    typed: bool,
    recorded: bool,
    owned: bool,
    versioned: bool,
) -> str:
    times = {name: TIME.format(name) for name in ("created_at", "enqueued_at")}
    return CLAIM.format(
        gate=gate,
        limit=limit,
        queues=queues,
        limited=LIMITED if limited else "false",
        shown=ERRORS_SHOWN,
        types=TYPES if typed else "",
        project=PROJECT if owned else "",
        versions=VERSIONS if versioned else "",
        recorded=EVENTS if recorded else "",
        started_at=STARTED,
        **times,
    )


def claim(queues: Sequence[str], **asked: Any) -> list[ClaimedJob]:
    """Reserve jobs, queues in the order given, priority then age inside each (§6.3).

    Paused queues give nothing. Never blocks; an empty list is a normal answer (§6.5).

    Args:
        asked: see `ask`.
    """
    claim = ask(queues, **asked)
    if claim is None:
        return []
    if is_postgresql():
        return given(claim, run(*statement(claim)))
    return _tell(claim, _claim_portable(claim))


def ask(
    queues: Sequence[str],
    *,
    worker_id: str = "",
    count: int = 1,
    types: Sequence[str] | None = None,
    able: Sequence[str] = (),
    versions: Mapping[str, Sequence[int | None]] = ANY_VERSION,
    visibility_timeout: timedelta | None = None,
    limited: bool = True,
    project: str = "",
    gate: Gate = OPEN,
) -> Asked | None:
    """What a claim asks for; None where that can be nothing.

    Args:
        count: most jobs it takes.
        types: job types the worker can run; None means any.
        able: what the worker can do; jobs that need anything else are left to others.
        visibility_timeout: for jobs that name none of their own.
        limited: some of the queues may cap their active jobs; False spares the look.
        project: whose jobs; empty means everybody's.
        versions: bounds of the versions it takes, by job type; any of a type not named.
        gate: what else must be asked of the worker, instead of both.
    """
    if count < 1 or types == []:
        return None
    return Asked(
        list(dict.fromkeys(queues)),
        worker_id,
        count,
        types,
        visibility_timeout or ojs_settings.VISIBILITY_TIMEOUT,
        able,
        versions,
        project,
        limited,
        gate,
    )


def given(asked: Asked, rows: Sequence[Sequence[Any]]) -> list[ClaimedJob]:
    """The jobs that the statement took, or those that it left, and that are taken now."""
    left = rows[0][-1]
    if left is None:
        return _tell(asked, _read(rows))
    room, able, versions, is_limited = orjson.loads(left)
    if not room:
        return []
    if is_limited:
        # It will wait for locks: the worker is looked at again then.
        return _tell(asked, limits.claim_within(_take, replace(asked, limited=False)))
    versions = versions or asked.versions
    within = replace(asked, count=room, able=able, versions=versions, limited=False, gate=OPEN)
    return _tell(asked, _take(within))


def _take(asked: Asked) -> list[ClaimedJob]:
    return _read(run(*statement(asked)))


def statement(asked: Asked) -> tuple[str, dict[str, Any]]:
    """What claims on PostgreSQL, and its parameters."""
    text = _statement(
        asked.gate.sql,
        asked.count,
        len(asked.queues),
        asked.limited,
        asked.types is not None,
        ojs_settings.RECORD_EVENTS,
        bool(asked.project),
        bool(asked.versions),
    )
    return text, {
        "queues": asked.queues,
        "worker_id": asked.worker_id,
        "visibility_timeout": asked.period,
        "types": list(asked.types or ()),
        "able": orjson.dumps(list(asked.able)).decode(),
        "versions": orjson.dumps(asked.versions).decode(),
        "project": asked.project,
    }


def _read(rows: Sequence[Sequence[Any]]) -> list[ClaimedJob]:
    return [from_row(row[:-1]) for row in rows if row[0] is not None]


def _claim_portable(asked: Asked) -> list[ClaimedJob]:
    # SQLite's one lock is got as the transaction begins: what was read before the wait for it, of
    # the worker or of the queues, may not be so any more.
    with atomic():
        asked = asked.looked()
        if asked.count < 1:
            return []
        if asked.limited and Queue.objects.limited().filter(pk__in=asked.queues).exists():
            return limits.claim_within(claim_portable.take, asked)
        return claim_portable.take(asked)


def _tell(asked: Asked, claimed: list[ClaimedJob]) -> list[ClaimedJob]:
    belonging = {job.workflow_id for job in claimed if job.workflow_id is not None}
    if belonging:
        mark_started(belonging)
    if claimed and jobs_claimed.has_listeners():
        send_on_commit(jobs_claimed, Job, jobs=claimed, worker_id=asked.worker_id)
    return claimed


__all__ = ["ClaimedJob", "Gate", "ask", "claim", "given", "statement"]
