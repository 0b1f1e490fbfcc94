"""FAIL: an attempt went wrong, and the retry policy decides what follows (OJS core §7.4, retry).

Takes many failures at once and answers each separately, like `settle`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from ..models import Event as EventRow
from ..models import Job, JobError
from ..record.events import PREVIOUS, discarded_events, job_event, record
from ..signals import jobs_failed, send_on_commit
from ..spec.lifecycle import State
from ..spec.reports import Failure
from ..spec.retry import RetryPolicy
from ..spec.time_limits import enqueue_ttl, expires_at_once_started
from ..store import wakeup
from ..store.contract import Move
from ..store.rows import insert_rows
from ..store.stores import store
from . import limits
from .dependencies import cancel_strays
from .flow import ending
from .outcomes import Outcome, explain

Settled = tuple[Any, Failure, Outcome]
"""A locked job with the database's `now`, the failure reported, and its outcome."""
FINAL_CODES = frozenset({"DISCARD", "FAIL", "DEAD_LETTER"})
"""Handler response codes that end the job regardless of its policy (OJS retry §7.2)."""


def fail(failures: Sequence[Failure]) -> list[Outcome]:
    """Record failed attempts and decide what follows (FAIL, OJS core §7.4); see `complete()`."""
    outcomes: dict[int, Outcome] = {}
    for item in failures:
        item.tidy()
    with ending() as ended:
        ids = {item.job_id for item in failures}
        locked = {job.pk: job for job in store().lock_to_fail(ids)}
        settled: list[Settled] = []
        for index, item in enumerate(failures):
            job = locked.get(item.job_id)
            if job is not None and _holds(item, job):
                outcomes[index] = Outcome(job.pk, max_attempts=job.max_attempts)
                settled.append((job, item, outcomes[index]))
                del locked[item.job_id]
        _hold_limits(settled)
        ended += _settle_failed(settled)
    answers = [outcomes.get(index, Outcome(item.job_id)) for index, item in enumerate(failures)]
    explain(failures, answers, "fail")
    if settled and jobs_failed.has_listeners():
        send_on_commit(jobs_failed, Job, outcomes=[outcome for _, _, outcome in settled])
    return answers


def _hold_limits(settled: Sequence[Settled]) -> None:
    """Hold the rate limits that handlers met, before locking workflows, as a fetch does (§9)."""
    held = [
        (job.rate_key, item.rate_limit_until, item.message)
        for job, item, _ in settled
        if item.rate_limit_until is not None and job.rate_key
    ]
    keys = {key for key, _, _ in held}
    if len(keys) > 1:
        limits.lock(keys)
    for key, until, message in held:
        limits.hold(key, until, message)


def _holds(item: Failure, job: Job) -> bool:
    return (
        job.state == State.ACTIVE
        and item.worker_id in (None, job.reserved_by)
        and item.attempt in (None, job.attempt)
    )


def fail_locked(failed: Iterable[tuple[Any, Failure]]) -> tuple[list[Outcome], list[UUID]]:
    """Fail active jobs that the caller has locked, from `JobQuerySet.to_fail`.

    Returns one outcome for each, in order, and the ended jobs that have dependents or a workflow.
    """
    settled = [(job, item, Outcome(job.pk, max_attempts=job.max_attempts)) for job, item in failed]
    ended = _settle_failed(settled)
    return [outcome for _, _, outcome in settled], ended


def _settle_failed(settled: Sequence[Settled]) -> list[UUID]:
    """Apply each job's retry policy and move the jobs.

    Returns the ended jobs that have dependents or a workflow. Those that would wait again, but
    whose workflow was cancelled, are among them.
    """
    errors: list[JobError] = []
    moves: list[Move] = []
    for job, failure, outcome in settled:
        # When the retry is due is decided by the database's clock.
        now: datetime = job.now
        outcome.attempt, outcome.job_type, outcome.queue = job.attempt, job.type, job.queue
        outcome.failure = failure
        if failure.release:
            _release(job, failure, outcome, now)
        else:
            errors.append(_error(job, failure, now))
            outcome.dead_letter = _decide(job, failure, outcome, now)
            outcome.events = list(_failure_events(job, failure, outcome, now))
        moves.append(_move(failure, outcome))
    if not moves:
        return []
    insert_rows(errors)
    forget_enqueue_ttl(job for job, _, outcome in settled if outcome.state != State.DISCARDED)
    store().move_failed(moves)
    wakeup.notify({job.queue for job, _, outcome in settled if outcome.state == State.AVAILABLE})
    record(event for _, _, outcome in settled for event in outcome.events)
    followed = [outcome for job, _, outcome in settled if job.followed]
    ended = [outcome.job_id for outcome in followed if outcome.state == State.DISCARDED]
    cancelled = cancel_strays([one.job_id for one in followed if one.state != State.DISCARDED])
    for outcome in followed:
        if outcome.job_id in cancelled:
            outcome.state, outcome.released = State.CANCELLED, False
            outcome.retry_at = outcome.retry_delay = None
    return ended + cancelled


def _release(job: Job, failure: Failure, outcome: Outcome, now: datetime) -> None:
    """Fill in the outcome of a released job: available at once, or at the time requested."""
    outcome.released = True
    if failure.retry_in:
        outcome.state, outcome.retry_delay = State.RETRYABLE, failure.retry_in
        outcome.retry_at = now + failure.retry_in
        data = {"released": True, "next_retry_at": outcome.retry_at.isoformat()}
        outcome.events = [
            job_event("job.retrying", job, time=now, worker_id=job.reserved_by, data=data)
        ]
    else:
        outcome.state, outcome.at = State.AVAILABLE, now
        outcome.events = [job_event("job.enqueued", job, time=now, data={PREVIOUS: "active"})]


def _decide(job: Job, failure: Failure, outcome: Outcome, now: datetime) -> bool:
    """Fill in the outcome; return whether the job goes to the dead letter (OJS retry §7.2)."""
    policy = RetryPolicy.parse(job.retry)
    asked = failure.retry_in
    delay = policy.delay(job.attempt) if asked is None else asked
    if not is_final(failure, policy) and job.has_attempts_left and _has_time_left(job, now + delay):
        outcome.state = State.RETRYABLE
        outcome.retry_delay = delay
        outcome.retry_at = now + delay
        return False
    outcome.state, outcome.at = State.DISCARDED, now
    if failure.code in ("DISCARD", "FAIL"):
        return False
    return failure.code == "DEAD_LETTER" or policy.keeps_dead_letter


def is_final(failure: Failure, policy: RetryPolicy) -> bool:
    """Whether a failure is final, however many attempts are left (OJS retry §6, §7.3)."""
    return (
        failure.code in FINAL_CODES
        or (failure.retryable is False and failure.code != "RETRY")
        or not policy.is_retryable(failure.type, failure.code)
    )


def _has_time_left(job: Job, start: datetime) -> bool:
    """Whether an attempt begun at `start` could end within `total_timeout` (OJS timeouts §9.1)."""
    return job.deadline is None or start + (job.timeout or timedelta(0)) <= job.deadline


def _move(failure: Failure, outcome: Outcome) -> Move:
    at = outcome.retry_at or outcome.at
    assert outcome.state is not None and at is not None
    return Move(
        outcome.job_id,
        outcome.state,
        at,
        outcome.retry_delay,
        failure.release,
        outcome.dead_letter,
        failure.worker_id is None,
    )


def forget_enqueue_ttl(jobs: Iterable[Job]) -> None:
    """Let jobs that started in time wait indefinitely for another attempt.

    A job whose deadline was removed by an operator's retry stays without one.
    """
    for job in jobs:
        if enqueue_ttl(job) is not None:
            bounded = Job.objects.filter(pk=job.pk, expires_at__isnull=False)
            bounded.update(expires_at=expires_at_once_started(job))


def _error(job: Job, failure: Failure, now: datetime) -> JobError:
    return JobError(
        job=job,
        attempt=job.attempt,
        type=failure.type,
        code=failure.code,
        message=failure.message,
        backtrace=failure.backtrace,
        details=failure.details,
        retryable=failure.retryable,
        worker_id=failure.worker_id or job.reserved_by,
        occurred_at=now,
    )


def _failure_events(
    job: Job, failure: Failure, outcome: Outcome, now: datetime
) -> Iterable[EventRow]:
    error = {"code": failure.code or failure.type, "message": failure.message}
    retrying = outcome.state == State.RETRYABLE
    about: dict[str, Any] = {"time": now, "worker_id": failure.worker_id or job.reserved_by}
    yield job_event(
        "job.failed",
        job,
        data={"error": error | {"retryable": retrying}, "state": str(outcome.state)},
        **about,
    )
    if retrying and outcome.retry_at is not None:
        retry = {"max_attempts": job.max_attempts, "next_retry_at": outcome.retry_at.isoformat()}
        yield job_event("job.retrying", job, data=retry | {"error": error}, **about)
    else:
        last = {"total_attempts": job.attempt, "last_error": error}
        yield from discarded_events(
            job,
            data=last,
            exhausted=not job.has_attempts_left,
            dead_letter=outcome.dead_letter,
            **about,
        )
