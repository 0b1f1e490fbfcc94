"""ACK: a worker finished its jobs (OJS core §7.3; worker protocol §5.6).

Takes many outcomes at once and answers each by itself: one refusal does not undo the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import UUID

import orjson
from django.db.models import F

from ..conf import ojs_settings
from ..errors import ResultTooLarge
from ..models import Job
from ..record.events import job_event, record
from ..signals import jobs_completed, send_on_commit
from ..spec.lifecycle import Event, State
from ..store.database import atomic, is_postgresql, run
from .dependents import follow
from .outcomes import Completion, Outcome, explain

# Rows are locked in the order of their ids: two batches that share jobs cannot deadlock. The
# limit cuts nothing off: it tells the planner, who takes any recordset for a hundred rows, how
# many there are. Else it reads all jobs to settle one.
COMPLETE = """
    WITH done AS MATERIALIZED (
        SELECT *
          FROM ROWS FROM (
               jsonb_to_recordset(%s::jsonb)
               AS (id uuid, worker_id text, attempt integer, result jsonb)) WITH ORDINALITY
            AS done (id, worker_id, attempt, result, place)
      ORDER BY id
         LIMIT {limit}
    ), held AS MATERIALIZED (
        SELECT job.id, done.place, done.result, done.worker_id IS NULL AS unfenced, job.followed
          FROM done
    CROSS JOIN LATERAL (
            SELECT id, followed
              FROM ojs_jobs_job
             WHERE id = done.id
               AND state = 'active'
               AND (done.worker_id IS NULL OR reserved_by = done.worker_id)
               AND (done.attempt IS NULL OR attempt = done.attempt)
               FOR UPDATE
          ) AS job
    ), completed AS (
        UPDATE ojs_jobs_job AS job
           SET state = 'completed',
               result = held.result,
               finished_at = statement_timestamp(),
               finished_by = job.reserved_by,
               unfenced = held.unfenced,
               reserved_by = '',
               reserved_until = NULL,
               reserved_for = NULL
          FROM held
         WHERE job.id = held.id{alone}
     RETURNING held.place, job.id, job.type, job.queue, job.attempt, job.max_attempts,
               job.finished_at, job.finished_by, job.started_at
    ){recorded}
    SELECT place, attempt, max_attempts, finished_at FROM completed{left}
"""
# A job that others wait for is left for a second statement, in one transaction with what its end
# sets free; all others need no more than this one.
ALONE = "\n           AND NOT held.followed"
LEFT = """
 UNION ALL
    SELECT place, NULL, NULL, NULL FROM held WHERE followed"""
EVENTS = """, recorded AS (
        INSERT INTO ojs_jobs_event
               (type, subject, queue, job_type, worker_id, attempt, time, data)
        SELECT 'job.completed', id::text, queue, type, finished_by, attempt, finished_at,
               jsonb_build_object('duration_ms',
                   floor(extract(epoch FROM finished_at - started_at) * 1000)::bigint)
          FROM completed
    )"""
SIZES = (1, 10, 100, 1_000, 10_000, 100_000)
Rows = list[tuple[Any, ...]]


@cache
def _statement(size: int, recorded: bool, followed: bool) -> str:
    limit = next(limit for limit in SIZES if limit >= size)
    return COMPLETE.format(
        limit=limit,
        recorded=EVENTS if recorded else "",
        alone="" if followed else ALONE,
        left="" if followed else LEFT,
    )


def complete(
    completions: Sequence[Completion], *, execute: Callable[..., Rows] = run
) -> list[Outcome]:
    """Record that jobs finished successfully (ACK, OJS core §7.3); one outcome for each, in order.

    Args:
        execute: runs the statement, on PostgreSQL, which may be done beside another one.

    A refused one carries its error: `JobNotFound`, `ReservationLost` (another worker or attempt
    holds the job) or `InvalidTransition` (it is not active).
    """
    large = [index for index, item in enumerate(completions) if is_too_large(item.result)]
    if large:
        return _all_but(large, completions, execute)
    # The same job several times in one request: only one of them can win.
    first = {item.job_id: item for item in reversed(completions)}
    if len(first) < len(completions):
        outcomes = _each(completions, list(first.values()), execute)
    else:
        outcomes = _complete(completions, execute)
    explain(completions, outcomes, "ack")
    if jobs_completed.has_listeners():
        done = [outcome.job_id for outcome in outcomes if outcome.state is not None]
        if done:
            send_on_commit(jobs_completed, Job, job_ids=done)
    return outcomes


def _complete(completions: Sequence[Completion], execute: Callable[..., Rows]) -> list[Outcome]:
    """One outcome for each, in order; without a state where nothing happened."""
    if is_postgresql():
        return _complete_postgresql(completions, execute)
    return _complete_portable(completions)


def _each(
    completions: Sequence[Completion], first: Sequence[Completion], execute: Callable[..., Rows]
) -> list[Outcome]:
    """Complete the `first` about each job; another one only counts where that was refused."""
    found = {id(item): one for item, one in zip(first, _complete(first, execute), strict=True)}
    settled = {one.job_id for one in found.values() if one.state is not None}
    outcomes = []
    for item in completions:
        outcome = found.get(id(item)) or Outcome(item.job_id)
        if id(item) not in found and item.job_id not in settled:
            (outcome,) = _complete_portable([item])
            if outcome.state is not None:
                settled.add(item.job_id)
        outcomes.append(outcome)
    return outcomes


def is_too_large(result: Any) -> bool:
    return (
        isinstance(result, dict | list | str)
        and len(orjson.dumps(result)) > ojs_settings.MAX_RESULT_SIZE
    )


def too_large() -> ResultTooLarge:
    limit = ojs_settings.MAX_RESULT_SIZE
    return ResultTooLarge(f"The result may have at most {limit} bytes of JSON.", max_size=limit)


def _all_but(
    large: Sequence[int], completions: Sequence[Completion], execute: Callable[..., Rows]
) -> list[Outcome]:
    """Complete the others; those with too large a result stay active (OJS results §7.2)."""
    others = [item for n, item in enumerate(completions) if n not in set(large)]
    rest = iter(complete(others, execute=execute))
    return [
        Outcome(item.job_id, error=too_large()) if n in set(large) else next(rest)
        for n, item in enumerate(completions)
    ]


def _complete_postgresql(
    completions: Sequence[Completion], execute: Callable[..., Rows]
) -> list[Outcome]:
    outcomes = _run(completions, execute, followed=False)
    left = [n for n, one in enumerate(outcomes) if one.state is not None and not one.attempt]
    if left:
        with atomic():
            settled = _run([completions[n] for n in left], run, followed=True)
            follow([one.job_id for one in settled if one.state is not None])
        for n, outcome in zip(left, settled, strict=True):
            outcomes[n] = outcome
    return outcomes


def _run(
    completions: Sequence[Completion], execute: Callable[..., Rows], *, followed: bool
) -> list[Outcome]:
    document = orjson.dumps(
        [
            {
                "id": item.job_id,
                "worker_id": item.worker_id,
                "attempt": item.attempt,
                "result": item.result,
            }
            for item in completions
        ]
    ).decode()
    statement = _statement(len(completions), ojs_settings.RECORD_EVENTS, followed)
    outcomes = [Outcome(item.job_id) for item in completions]
    for place, attempt, most, at in execute(statement, [document]):
        outcome = outcomes[place - 1]
        outcome.state, outcome.at = State.COMPLETED, at
        outcome.attempt, outcome.max_attempts = attempt or 0, most or 0
    return outcomes


def _complete_portable(completions: Sequence[Completion]) -> list[Outcome]:
    outcomes = [Outcome(item.job_id) for item in completions]
    followed: list[UUID] = []
    with atomic():
        for item, outcome in zip(completions, outcomes, strict=True):
            moved = _held(item).transition(
                Event.ACK,
                State.COMPLETED,
                result=item.result,
                finished_by=F("reserved_by"),
                unfenced=item.worker_id is None,
            )
            if moved:
                job = Job.objects.defer("args", "meta", "result").get(pk=item.job_id)
                outcome.state, outcome.at = State.COMPLETED, job.finished_at
                outcome.attempt, outcome.max_attempts = job.attempt, job.max_attempts
                record([_completed_event(job)])
                if job.followed:
                    followed.append(job.pk)
        follow(followed)
    return outcomes


def _completed_event(job: Job) -> Any:
    assert job.finished_at is not None and job.started_at is not None
    duration = (job.finished_at - job.started_at) // timedelta(milliseconds=1)
    return job_event(
        "job.completed",
        job,
        time=job.finished_at,
        worker_id=job.finished_by,
        data={"duration_ms": duration},
    )


def _held(item: Completion) -> Any:
    """The job if the sender holds it: by worker, and by attempt where it says which."""
    jobs = Job.objects.active().filter(pk=item.job_id)
    if item.worker_id is not None:
        jobs = jobs.filter(reserved_by=item.worker_id)
    if item.attempt is not None:
        jobs = jobs.filter(attempt=item.attempt)
    return jobs
