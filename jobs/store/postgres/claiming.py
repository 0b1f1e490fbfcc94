"""Claims on PostgreSQL: for one worker, or for several that ask at the same time."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import orjson

from ...conf import ojs_settings
from ...spec.envelope import ERRORS_SHOWN
from ...spec.pools import pool_of
from ..claimed import from_row
from ..contract import OPEN, Claimed, ClaimRequest, Gate
from ..database import run, run_together
from ..sql import Statement, load
from . import heads

Rows = list[tuple[Any, ...]]
Query = tuple[Statement, dict[str, Any]]

CLAIM = load(__package__, "claim")
# The second condition lets the planner use the partial index on projects: a parameter may be empty.
CLAIM_OF_PROJECT = CLAIM.replacing(
    "AND :'project' IN ('', project)", "AND project = :'project' AND project <> ''"
).replacing("'ojs_job_fetchable'", "'ojs_job_project'")


def _through_pool(claim: Statement) -> Statement:
    """Return the variant for a worker pool, which the events name."""
    for part, other in (
        ("able::text LIKE '%\"pool:%' AS is_pooled", "false AS is_pooled"),
        (
            "AND name = ANY(:'queues'::text[])) AS is_limited",
            """AND name = ANY(:'queues'::text[])
               UNION ALL
               SELECT 1 FROM ojs_jobs_pool WHERE name = :'pool' AND has_rules) AS is_limited""",
        ),
        ("OR isolated_by <> ''", "OR isolated_by NOT IN ('', :'pool')"),
        ("worker_id, attempt, time)", "worker_id, attempt, time, data)"),
        ("'', attempts_made, started_at", "'', attempts_made, started_at, NULL::jsonb"),
        (
            "reserved_by, attempt, started_at",
            "reserved_by, attempt, started_at, CASE WHEN :'pool' <> '' "
            "THEN jsonb_build_object('pool', :'pool'::text) END",
        ),
    ):
        claim = claim.replacing(part, other)
    return claim


CLAIM_THROUGH_POOL = _through_pool(CLAIM)
CLAIM_OF_PROJECT_THROUGH_POOL = _through_pool(CLAIM_OF_PROJECT)


@cache
def _for_several(claim: Statement, gate: Gate) -> Statement:
    """Return the variant for several workers that ask for one job each.

    To most of the statement, they are one worker that can do what any of them can, and has room for
    one job each. Workers with version bounds or a pool are left to other statements, as usual. If a
    job that was found needs something, all are: nothing here decides which of them can run it.
    """
    for part, other in (
        (
            f"WITH gate AS MATERIALIZED (\n    {OPEN.sql}",
            f"""WITH asking AS MATERIALIZED (
    SELECT place, worker_id, greatest(least(room, 1), 0) AS room, able, versions, is_pooled,
           CASE WHEN is_usual
                THEN count(*) FILTER (WHERE is_usual) OVER (ORDER BY place) END AS turn
      FROM (SELECT place, worker_id, room, able, versions,
                   able::text LIKE '%"pool:%' AS is_pooled,
                   coalesce(room, 1) > 0 AND versions IS NULL
                   AND able::text NOT LIKE '%"pool:%' AS is_usual
              FROM unnest(:'workers'::text[]) WITH ORDINALITY AS asking (worker_id, place)
        CROSS JOIN LATERAL ({gate.sql.replace(":'worker_id'", "asking.worker_id")}) AS gate
           ) AS asking
), gate AS MATERIALIZED (
    SELECT count(turn)::integer AS room,
           (SELECT coalesce(jsonb_agg(word), '[]')
              FROM asking, jsonb_array_elements(able) AS word
             WHERE turn IS NOT NULL) AS able,
           NULL::jsonb AS versions
      FROM asking""",
        ),
        ("SELECT job.id\n", "SELECT job.id, job.needs IS NOT NULL AS is_choosy\n"),
        ("SELECT id\n          FROM ojs_jobs_job", "SELECT id, needs\n          FROM ojs_jobs_job"),
        (
            "SELECT job.id, job.attempt\n",
            "SELECT job.id, job.attempt, job.needs IS NOT NULL AS is_choosy\n",
        ),
        (
            "SELECT id, attempt\n          FROM ojs_jobs_job",
            "SELECT id, attempt, needs\n          FROM ojs_jobs_job",
        ),
        ("next AS MATERIALIZED", "found AS MATERIALIZED"),
        ("AS attempts_made FROM available", "AS attempts_made, is_choosy FROM available"),
        (
            "SELECT id, true, attempt FROM due",
            """SELECT id, true, attempt, is_choosy FROM due
), next AS MATERIALIZED (
    SELECT given.id, given.was_due, given.attempts_made, asking.worker_id, asking.place
      FROM (SELECT *, row_number() OVER () AS turn, bool_or(is_choosy) OVER () AS is_left
              FROM found) AS given
      JOIN asking USING (turn)
     WHERE NOT is_left""",
        ),
        ("reserved_by = :'worker_id'", "reserved_by = next.worker_id"),
        ("next.was_due, next.attempts_made", "next.was_due, next.attempts_made, next.place"),
        (
            "is_limited OR is_pooled OR versions IS NOT NULL\n",
            "is_limited OR asking.is_pooled OR asking.versions IS NOT NULL\n"
            "              OR EXISTS (SELECT 1 FROM found WHERE is_choosy)\n",
        ),
        (
            "jsonb_build_array(room, able, versions, is_limited, is_pooled)",
            "jsonb_build_array(asking.room, asking.able, asking.versions, is_limited,"
            " asking.is_pooled)",
        ),
        (
            "FROM entry\n  LEFT JOIN claimed ON true",
            "FROM entry\n CROSS JOIN asking\n  LEFT JOIN claimed ON claimed.place = asking.place",
        ),
        (
            "ORDER BY array_position(:'queues'::text[], queue::text), priority DESC,"
            " enqueued_at, id",
            "ORDER BY asking.place",
        ),
    ):
        claim = claim.replacing(part, other)
    return claim


@cache
def _from_heads(claim: Statement) -> Statement:
    """Return the variant that begins where the available jobs of each queue begin (`heads`)."""
    claim = claim.replacing(
        """SELECT name
      FROM (SELECT unnest(:'queues'::text[]) AS name LIMIT :queue_count) AS named""",
        """SELECT named.*
      FROM (SELECT *
              FROM unnest(:'queues'::text[], :'urgency'::integer[], :'level'::timestamptz[],
                          :'above'::timestamptz[], :'below'::timestamptz[])
                   AS head (name, urgency, level, above, below)
             LIMIT :queue_count) AS named""",
    )
    return heads.in_ranges(claim)


def claim(request: ClaimRequest) -> Claimed:
    return finish(request, run(*query(request)))


def claim_each(requests: Sequence[ClaimRequest]) -> list[Claimed]:
    """Claim for all in one round trip, and in a second one for those that were left."""
    found: dict[int, Claimed] = {}
    left: dict[int, ClaimRequest] = {}
    groups = list(_alike(requests))
    queries = [query(*map(requests.__getitem__, places)) for places in groups]
    for places, rows in zip(groups, run_together(*queries), strict=True):
        answers = [rows] if len(places) == 1 else [[row] for row in rows]
        for place, answer in zip(places, answers, strict=True):
            outcome = taken(requests[place], answer)
            if isinstance(outcome, Claimed):
                found[place] = outcome
            else:
                left[place] = outcome
    if left:
        answered = run_together(*map(query, left.values()))
        for (place, request), rows in zip(left.items(), answered, strict=True):
            found[place] = finish(request, rows)
    return [found[place] for place in range(len(requests))]


def _alike(requests: Sequence[ClaimRequest]) -> Iterator[list[int]]:
    """Yield the places of requests that one statement can claim for."""
    groups: dict[Any, list[int]] = {}
    workers: set[str] = set()
    for place, request in enumerate(requests):
        # The gate counts what a worker holds, so a worker's second request needs another statement.
        if request.is_plain and request.worker_id not in workers:
            if request.worker_id:
                workers.add(request.worker_id)
            groups.setdefault(_kind(request), []).append(place)
        else:
            yield [place]
    yield from groups.values()


def _kind(request: ClaimRequest) -> Hashable:
    queues, types = tuple(request.queues), tuple(request.types or ())
    return queues, types, request.period, request.project, request.asks_limits, request.gate


def query(request: ClaimRequest, *others: ClaimRequest) -> Query:
    """Return the statement for a request and those that are like it except for the worker."""
    if request.pool is None:
        statement = CLAIM_OF_PROJECT if request.project else CLAIM
    else:
        statement = CLAIM_OF_PROJECT_THROUGH_POOL if request.project else CLAIM_THROUGH_POOL
    parameters = {
        "queues": request.queues,
        "visibility_timeout": request.period,
        "types": list(request.types or ()),
        "able": orjson.dumps(list(request.able)).decode(),
        "versions": orjson.dumps(request.versions).decode(),
        "project": request.project,
        "asks_limits": request.asks_limits,
        "records_events": ojs_settings.RECORD_EVENTS,
    }
    if others:
        workers = [request.worker_id, *(other.worker_id for other in others)]
        parameters["workers"] = workers
        statement = _for_several(statement, request.gate)
        # A power of two, so that there are few statements to prepare.
        limit = 1 << (len(workers) - 1).bit_length()
    else:
        parameters["worker_id"] = request.worker_id
        statement = gated(statement, request.gate)
        limit = request.count
    if request.pool is not None:
        parameters["pool"] = request.pool
    if beginnings := heads.heads(request.queues):
        statement = _from_heads(statement)
        parameters |= dict(
            zip(heads.Head._fields, map(list, zip(*beginnings, strict=True)), strict=True)
        )
    return statement.sized(
        limit=limit,
        queue_count=len(request.queues),
        errors_shown=ERRORS_SHOWN,
        many=heads.MANY,
    ), parameters


@cache
def gated(statement: Statement, gate: Gate) -> Statement:
    return statement.replacing(OPEN.sql, gate.sql)


def finish(request: ClaimRequest, rows: Rows) -> Claimed:
    """Return the jobs that the statement claimed; claim now those that it left."""
    found = taken(request, rows)
    while not isinstance(found, Claimed):
        found = taken(found, run(*query(found)))
    return found


def taken(request: ClaimRequest, rows: Rows) -> Claimed | ClaimRequest:
    """Return the jobs that the statement claimed, or the request for those that it left."""
    left = rows[0][-1]
    if left == "true":
        heads.notice(request.queues)
        left = None
    if left is None:
        return Claimed([from_row(row[:-1]) for row in rows if row[0] is not None])
    room, able, versions, is_limited, is_pooled = orjson.loads(left)
    if not room:
        return Claimed([])
    pool = pool_of(able) if is_pooled else request.pool
    if is_limited:
        return Claimed([], is_limited=True, pool=pool)
    return replace(
        request,
        count=room,
        able=able,
        versions=versions or request.versions,
        # Whether a pool that only the labels name has rules is not known yet.
        asks_limits=is_pooled,
        gate=request.gate.again,
        pool=pool,
    )
