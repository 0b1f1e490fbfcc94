"""ACK and FAIL: a worker settles jobs it holds (OJS core §7.3, §7.4; worker protocol §5.6).

Both take many outcomes at once and answer each by itself: one refusal does not undo the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
from django.db.models import Case, DateTimeField, DurationField, F, Value, When
from django.db.models.functions import Now
from django.utils import timezone

from .. import wakeup
from ..conf import ojs_settings
from ..database import atomic, connection, is_postgresql
from ..errors import Conflict, InvalidTransition, JobNotFound, OJSError, ReservationLost
from ..events import job_event, record
from ..lifecycle import Event, State
from ..models import Job, JobError, RefusedFinish
from ..retry import RetryPolicy
from ..signals import finish_refused, jobs_completed, jobs_failed, send_on_commit

BACKTRACE_FRAMES = 50
BACKTRACE_CHARACTERS = 10_000
FINAL_CODES = frozenset({"DISCARD", "FAIL", "DEAD_LETTER"})
"""Handler response codes that end the job whatever its policy says (OJS retry §7.2)."""


@dataclass(slots=True)
class Completion:
    """An ACK as received."""

    job_id: UUID
    worker_id: str | None = None
    """Who says so; None for a request that does not tell."""
    attempt: int | None = None
    """Fences against the same worker's older attempt."""
    result: Any = None


@dataclass(slots=True)
class Failure:
    """A FAIL as received (OJS core §8, retry §7.3)."""

    job_id: UUID
    worker_id: str | None = None
    attempt: int | None = None
    type: str = "handler_error"
    code: str = ""
    message: str = ""
    backtrace: list[str] | None = None
    details: dict[str, Any] | None = None
    retryable: bool | None = None
    release: bool = False
    """Give the job back unfinished: no error, no backoff, and the attempt does not count."""


@dataclass(slots=True)
class Outcome:
    """What became of one ACK or FAIL."""

    job_id: UUID
    state: State | None = None
    attempt: int = 0
    max_attempts: int = 0
    at: datetime | None = None
    """When the job was completed, discarded or released."""
    retry_at: datetime | None = None
    retry_delay: timedelta | None = None
    error: OJSError | None = None
    """Why it was refused; nothing changed then."""
    events: list[Any] = field(default_factory=list, repr=False)


# Rows are locked in the order of their ids: two batches that share jobs cannot deadlock.
COMPLETE = """
    WITH done AS MATERIALIZED (
        SELECT *
          FROM jsonb_to_recordset(%s::jsonb)
            AS done (id uuid, worker_id text, attempt integer, result jsonb)
    ), held AS MATERIALIZED (
        SELECT job.id, done.result, done.worker_id IS NULL AS unfenced
          FROM ojs_jobs_job AS job
          JOIN done USING (id)
         WHERE job.state = 'active'
           AND (done.worker_id IS NULL OR job.reserved_by = done.worker_id)
           AND (done.attempt IS NULL OR job.attempt = done.attempt)
      ORDER BY job.id
           FOR UPDATE OF job
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
         WHERE job.id = held.id
     RETURNING job.id, job.type, job.queue, job.attempt, job.max_attempts, job.finished_at,
               job.finished_by, job.started_at
    ){told}
    SELECT id, attempt, max_attempts, finished_at FROM completed
"""
TOLD = """, told AS (
        INSERT INTO ojs_jobs_event
               (type, subject, queue, job_type, worker_id, attempt, time, data)
        SELECT 'job.completed', id::text, queue, type, finished_by, attempt, finished_at,
               jsonb_build_object('duration_ms',
                   floor(extract(epoch FROM finished_at - started_at) * 1000)::bigint)
          FROM completed
    )"""
COMPLETE_TOLD = COMPLETE.format(told=TOLD)
COMPLETE_UNTOLD = COMPLETE.format(told="")


def complete(completions: Sequence[Completion]) -> list[Outcome]:
    """Record that jobs finished successfully (ACK, OJS core §7.3); one outcome for each, in order.

    A refused one carries its error: `JobNotFound`, `ReservationLost` (another worker or attempt
    holds the job) or `InvalidTransition` (it is not active).
    """
    settle = _complete_postgresql if is_postgresql() else _complete_portable
    # The same job twice in one request: only the first can win.
    first = {item.job_id: item for item in reversed(completions)}
    done = settle(list(first.values()))
    outcomes = [
        done[item.job_id]
        if item.job_id in done and first[item.job_id] is item
        else Outcome(item.job_id)
        for item in completions
    ]
    _explain(completions, outcomes, "ack")
    if done and jobs_completed.has_listeners():
        send_on_commit(jobs_completed, Job, job_ids=list(done))
    return outcomes


def _complete_postgresql(completions: Sequence[Completion]) -> dict[UUID, Outcome]:
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
    statement = COMPLETE_TOLD if ojs_settings.RECORD_EVENTS else COMPLETE_UNTOLD
    with connection().cursor() as cursor:
        cursor.execute(statement, [document])
        return {
            job_id: Outcome(job_id, State.COMPLETED, attempt, most, at)
            for job_id, attempt, most, at in cursor.fetchall()
        }


def _complete_portable(completions: Sequence[Completion]) -> dict[UUID, Outcome]:
    done: dict[UUID, Outcome] = {}
    with atomic():
        for item in completions:
            moved = _held(item).transition(
                Event.ACK,
                State.COMPLETED,
                result=item.result,
                finished_by=F("reserved_by"),
                unfenced=item.worker_id is None,
            )
            if moved:
                job = Job.objects.defer("args", "meta", "result").get(pk=item.job_id)
                done[job.pk] = Outcome(
                    job.pk, State.COMPLETED, job.attempt, job.max_attempts, job.finished_at
                )
                record([_completed_event(job)])
    return done


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


def _held(item: Completion | Failure) -> Any:
    """The job if the sender holds it: by worker, and by attempt where it says which."""
    jobs = Job.objects.active().filter(pk=item.job_id)
    if item.worker_id is not None:
        jobs = jobs.filter(reserved_by=item.worker_id)
    if item.attempt is not None:
        jobs = jobs.filter(attempt=item.attempt)
    return jobs


def fail(failures: Sequence[Failure]) -> list[Outcome]:
    """Record failed attempts and decide what follows (FAIL, OJS core §7.4); see `complete()`."""
    outcomes: dict[int, Outcome] = {}
    with atomic():
        locked = {
            job.pk: job
            for job in Job.objects.filter(pk__in={item.job_id for item in failures})
            .defer("args", "meta", "result")
            .select_for_update()
            .order_by("pk")
        }
        settled: list[tuple[Job, Failure, Outcome]] = []
        for index, item in enumerate(failures):
            job = locked.get(item.job_id)
            if job is not None and _holds(item, job):
                outcomes[index] = Outcome(job.pk, max_attempts=job.max_attempts)
                settled.append((job, item, outcomes[index]))
                del locked[item.job_id]
        _settle_failed(settled)
    answers = [outcomes.get(index, Outcome(item.job_id)) for index, item in enumerate(failures)]
    _explain(failures, answers, "fail")
    if settled and jobs_failed.has_listeners():
        send_on_commit(jobs_failed, Job, outcomes=[outcome for _, _, outcome in settled])
    return answers


def _holds(item: Failure, job: Job) -> bool:
    return (
        job.state == State.ACTIVE
        and item.worker_id in (None, job.reserved_by)
        and item.attempt in (None, job.attempt)
    )


def fail_locked(jobs: Iterable[Job], failure: Failure) -> list[Outcome]:
    """Fail active jobs the caller has locked, all in the same way (an execution timeout)."""
    settled = [(job, failure, Outcome(job.pk, max_attempts=job.max_attempts)) for job in jobs]
    _settle_failed(settled)
    return [outcome for _, _, outcome in settled]


def _settle_failed(settled: Sequence[tuple[Job, Failure, Outcome]]) -> None:
    """Decide for each job by its retry policy and move them, one UPDATE for each target state."""
    now = timezone.now()
    errors: list[JobError] = []
    moves: dict[tuple[State, bool, bool], list[tuple[Job, Outcome]]] = {}
    for job, failure, outcome in settled:
        outcome.attempt = job.attempt
        unfenced = failure.worker_id is None
        if failure.release:
            outcome.state, outcome.at, dead_letter = State.AVAILABLE, now, False
            outcome.events = [job_event("job.enqueued", job, time=now)]
        else:
            errors.append(_error(job, failure, now))
            dead_letter = _decide(job, failure, outcome, now)
            outcome.events = list(_failure_events(job, failure, outcome, now))
        assert outcome.state is not None
        moves.setdefault((outcome.state, dead_letter, unfenced), []).append((job, outcome))
    JobError.objects.bulk_create(errors)
    for (state, dead_letter, unfenced), group in moves.items():
        _move(state, group, dead_letter=dead_letter, unfenced=unfenced)
    record(event for _, _, outcome in settled for event in outcome.events)


def _decide(job: Job, failure: Failure, outcome: Outcome, now: datetime) -> bool:
    """Fill in what follows the failure; return whether it is the dead letter (OJS retry §7.2)."""
    policy = RetryPolicy.parse(job.retry)
    final = (
        failure.code in FINAL_CODES
        or (failure.retryable is False and failure.code != "RETRY")
        or not policy.is_retryable(failure.type, failure.code)
    )
    if not final and job.has_attempts_left:
        outcome.state = State.RETRYABLE
        outcome.retry_delay = policy.delay(job.attempt)
        outcome.retry_at = now + outcome.retry_delay
        return False
    outcome.state, outcome.at = State.DISCARDED, now
    if failure.code in ("DISCARD", "FAIL"):
        return False
    return failure.code == "DEAD_LETTER" or keeps_dead_letter(policy)


def keeps_dead_letter(policy: RetryPolicy) -> bool:
    """Whether an exhausted job is kept for an operator (OJS dead letter §4.1).

    It is, unless somebody asked for `discard`: core §6.1 has every discarded job in the dead
    letter, the retry document's default has none, and losing fewer jobs is the better surprise.
    """
    return policy.on_exhaustion == "dead_letter" or not policy.explicit_exhaustion


def _move(
    state: State, group: Sequence[tuple[Job, Outcome]], *, dead_letter: bool, unfenced: bool
) -> None:
    jobs = Job.objects.filter(pk__in=[job.pk for job, _ in group])
    if state == State.AVAILABLE:
        # Back with its attempt number kept: the next FETCH takes the same one again.
        jobs.transition(Event.RELEASE, state, attempt_counted=True, enqueued_at=Now())
        wakeup.notify_on_commit({job.queue for job, _ in group})
    elif state == State.RETRYABLE:
        jobs.transition(
            Event.FAIL,
            state,
            scheduled_at=_each(group, "retry_at", DateTimeField()),
            retry_delay=_each(group, "retry_delay", DurationField()),
        )
    else:
        jobs.transition(
            Event.FAIL,
            state,
            dead_letter=dead_letter,
            unfenced=unfenced,
            finished_by=F("reserved_by"),
        )


def _each(group: Sequence[tuple[Job, Outcome]], name: str, output_field: Any) -> Any:
    whens = [When(pk=job.pk, then=Value(getattr(outcome, name))) for job, outcome in group]
    if len(group) == 1:
        return getattr(group[0][1], name)
    return Case(*whens, output_field=output_field)


def _error(job: Job, failure: Failure, now: datetime) -> JobError:
    return JobError(
        job=job,
        attempt=job.attempt,
        type=failure.type[:255],
        code=failure.code[:255],
        message=failure.message,
        backtrace=_shortened(failure.backtrace),
        details=failure.details,
        retryable=failure.retryable,
        worker_id=failure.worker_id or job.reserved_by,
        occurred_at=now,
    )


def _shortened(backtrace: list[str] | None) -> list[str] | None:
    """At most 50 frames and 10,000 characters (OJS core §8.1)."""
    if not backtrace:
        return None
    room = BACKTRACE_CHARACTERS
    kept: list[str] = []
    for frame in backtrace[:BACKTRACE_FRAMES]:
        kept.append(frame[:room])
        room -= len(frame)
        if room <= 0:
            break
    return kept


def _failure_events(job: Job, failure: Failure, outcome: Outcome, now: datetime) -> Iterable[Any]:
    error = {"code": failure.code or failure.type, "message": failure.message}
    retrying = outcome.state == State.RETRYABLE
    told = {"time": now, "worker_id": failure.worker_id or job.reserved_by}
    yield job_event(
        "job.failed",
        job,
        data={"error": error | {"retryable": retrying}, "state": str(outcome.state)},
        **told,
    )
    if retrying and outcome.retry_at is not None:
        retry = {"max_attempts": job.max_attempts, "next_retry_at": outcome.retry_at.isoformat()}
        yield job_event("job.retrying", job, data=retry | {"error": error}, **told)
    else:
        last = {"total_attempts": job.attempt, "last_error": error}
        yield job_event("job.discarded", job, data=last, **told)


def _explain(
    items: Sequence[Completion] | Sequence[Failure], outcomes: Sequence[Outcome], operation: str
) -> None:
    """Say of each outcome that did not happen why, and remember the refusal (§10.4)."""
    refused = [index for index, outcome in enumerate(outcomes) if outcome.state is None]
    if not refused:
        return
    jobs = Job.objects.only("state", "attempt", "reserved_by").in_bulk(
        [items[index].job_id for index in refused]
    )
    records = []
    for index in refused:
        item, job = items[index], jobs.get(items[index].job_id)
        if job is None:
            outcomes[index].error = JobNotFound(item.job_id)
            continue
        outcomes[index].error = _refusal(item, job, operation)
        records.append(
            RefusedFinish(
                job_id=job.pk,
                operation=operation,
                worker_id=item.worker_id or "",
                attempt=item.attempt,
                held_by=job.reserved_by,
                state=job.state,
            )
        )
    RefusedFinish.objects.bulk_create(records)
    for refusal in records:
        send_on_commit(
            finish_refused,
            Job,
            job_id=refusal.job_id,
            operation=operation,
            worker_id=refusal.worker_id,
        )


def _refusal(item: Completion | Failure, job: Job, operation: str) -> Conflict:
    details = {
        "job_id": str(job.pk),
        "current_state": str(job.state),
        "expected_state": str(State.ACTIVE),
        "attempt": job.attempt,
    }
    verb = "acknowledge" if operation == "ack" else "fail"
    if job.state == State.ACTIVE and (item.worker_id is not None or item.attempt is not None):
        return ReservationLost(
            f"Cannot {verb} job '{job.pk}': its reservation is not yours (any more).",
            hint="The reservation expired, or the worker was declared dead, and the job was "
            "given to another. Drop the outcome and go on.",
            **details,
        )
    return InvalidTransition(
        f"Cannot {verb} job not in 'active' state. Current state: '{job.state}'.", **details
    )


__all__ = ["Completion", "Failure", "Outcome", "complete", "fail", "fail_locked"]
