"""For the tests of a site that enqueues jobs (OJS testing).

* `fake()`: jobs are kept in memory and not run; no database is touched.
* `inline()`: each job runs at once where it is enqueued, and its errors come out there.
* neither: jobs go to the database, inside the test's transaction, and `run_jobs()` runs them.

The assertions look at the jobs of the innermost `fake()` or `inline()`, else at the database.
Modes are never guessed (§4.3), and belong to the process: what a test's threads enqueue is seen.

    with testing.fake():
        sign_up("user@example.com")
        testing.assert_enqueued("email.send", args=["user@example.com"], queue="mail")

What differs from real life: `inline()` ignores delays, retries and expiry; `fake()` has no retries
by itself, and neither knows queue limits or pauses (§8).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from asgiref.sync import sync_to_async
from django.apps import apps
from django.db.models import F
from django.utils import timezone

from . import engine, producer
from .engine import Completion, Failure
from .engine.insertion import stamp
from .envelope import envelope
from .fakes import ConflictsInMemory
from .injection import fail_all, fail_next, forget_failures, planned
from .lifecycle import State
from .models import Job
from .retry import RetryPolicy
from .validation import NewJob

RUNNABLE = (State.AVAILABLE,)
WAITING = (State.SCHEDULED, State.RETRYABLE)
FAILED = (State.RETRYABLE, State.DISCARDED)
WORKER = "ojs-testing"


@dataclass
class TestJob:
    """A job of `fake()` or `inline()`, with what has become of it."""

    __test__ = False

    new: NewJob
    state: State
    attempt: int = 0
    result: Any = None
    errors: list[Failure] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.new, name)

    @property
    def performed(self) -> bool:
        return self.attempt > 0


@dataclass
class Session:
    """The jobs of one test."""

    runs_inline: bool = False
    jobs: list[TestJob] = field(default_factory=list)
    ahead: timedelta = timedelta(0)
    """How far `advance_time()` has moved the clock."""

    def deliver(self, new: Sequence[NewJob]) -> Sequence[NewJob]:
        now = self.now()
        stamp(new, now)
        conflicts = ConflictsInMemory(new, self.jobs, now)
        kept = [TestJob(job, job.state) for job in conflicts.settle()]
        self.jobs += kept
        conflicts.cancel_replaced()
        for made in kept:
            if self.runs_inline and made.state != State.CANCELLED:
                _perform_in_memory(made, raising=True)
        return new

    def now(self) -> datetime:
        return timezone.now() + self.ahead

    def is_due(self, job: TestJob) -> bool:
        return job.scheduled_at is None or job.scheduled_at <= self.now()


_sessions: list[Session] = []


@contextlib.contextmanager
def fake() -> Iterator[Session]:
    """Keep the jobs enqueued inside in memory, unrun (§5.1)."""
    with _session(Session()) as session:
        yield session


@contextlib.contextmanager
def inline() -> Iterator[Session]:
    """Run each job enqueued inside at once; what its handler raises comes out (§5.2)."""
    with _session(Session(runs_inline=True)) as session:
        yield session


@contextlib.contextmanager
def _session(session: Session) -> Iterator[Session]:
    before = producer.deliver
    producer.deliver = session.deliver
    _sessions.append(session)
    try:
        yield session
    finally:
        _sessions.remove(session)
        producer.deliver = before
        forget_failures()


# What was enqueued and what became of it (§6)


def all_enqueued(
    type: str | None = None,
    *,
    args: Sequence[Any] | None = None,
    queue: str | None = None,
    meta: Mapping[str, Any] | None = None,
) -> list[Any]:
    """The jobs enqueued so far, oldest first; `meta` need only be a part of theirs."""
    return [
        job
        for job in _all()
        if (type is None or job.type == type)
        and (args is None or job.args == list(args))
        and (queue is None or job.queue == queue)
        and (meta is None or meta.items() <= job.meta.items())
    ]


def assert_enqueued(type: str, *, count: int | None = None, **criteria: Any) -> None:
    """At least one such job was enqueued, or exactly `count` (§6.1)."""
    _check("enqueued", type, count, criteria, lambda job: True)


def refute_enqueued(type: str, **criteria: Any) -> None:
    _check("enqueued", type, 0, criteria, lambda job: True)


def assert_performed(type: str, *, count: int | None = None, **criteria: Any) -> None:
    """Such a job was run, whatever became of it (§6.2)."""
    _check("performed", type, count, criteria, lambda job: job.attempt > 0)


def refute_performed(type: str, **criteria: Any) -> None:
    _check("performed", type, 0, criteria, lambda job: job.attempt > 0)


def assert_completed(type: str, *, count: int | None = None, **criteria: Any) -> None:
    _check("completed", type, count, criteria, lambda job: job.state == State.COMPLETED)


def assert_failed(type: str, *, count: int | None = None, **criteria: Any) -> None:
    """Such a job failed: it is retryable or discarded."""
    _check("failed", type, count, criteria, lambda job: job.attempt > 0 and job.state in FAILED)


def assert_job_state(job_id: UUID | str, expected: str) -> None:
    """The job with this id is in that state (§6.3)."""
    for job in _all():
        if str(job.id) == str(job_id):
            assert job.state == expected, f"Job {job_id} is {job.state}, not {expected}."
            return
    raise AssertionError(f"There is no job {job_id}.")


def clear_all() -> None:
    """Forget all jobs, in the database too if no mode is active."""
    if _sessions:
        _sessions[-1].jobs.clear()
    else:
        Job.objects.all().delete()


def _all() -> list[Any]:
    return list(_sessions[-1].jobs) if _sessions else list(Job.objects.order_by("id"))


def _check(
    what: str,
    type: str,
    count: int | None,
    criteria: dict[str, Any],
    holds: Callable[[Any], bool],
) -> None:
    found = sum(holds(job) for job in all_enqueued(type, **criteria))
    if found == count or (count is None and found):
        return
    wanted = ", ".join([repr(type), *(f"{name}={value!r}" for name, value in criteria.items())])
    number = "at least one" if count is None else count
    there = "\n".join(
        f"  {job.type} args={job.args!r} queue={job.queue!r} meta={job.meta!r} {job.state}"
        for job in _all()
    )
    raise AssertionError(
        f"Expected {number} {what} job(s) of {wanted}; found {found}. All jobs:\n"
        f"{there or '  none'}"
    )


# Running them (§7.1)


def run_jobs(
    queue: str | None = None, *, max_jobs: int | None = None, with_scheduled: bool = False
) -> int:
    """Run what is available, and what that enqueues in turn; return how many were run.

    Errors of handlers become failed jobs, as in a worker.

    Args:
        with_scheduled: also what is scheduled or waits for a retry, as if its time had come.
    """
    take = _take_from_memory if _sessions else _take_from_database
    count = 0
    while max_jobs is None or count < max_jobs:
        run = take(queue, with_scheduled)
        if run is None:
            break
        run()
        count += 1
    return count


drain = run_jobs


def advance_time(by: timedelta | None = None, **parts: float) -> None:
    """Let time pass for the jobs: `advance_time(hours=24)`. Delays and deadlines come nearer, and
    recurring schedules enqueue what falls due (outside `fake()`).

    Nothing else notices: Django and the database keep their clocks.
    """
    by = by if by is not None else timedelta(**parts)
    if _sessions:
        _sessions[-1].ahead += by
        for job in _sessions[-1].jobs:
            if job.state in WAITING and _sessions[-1].is_due(job):
                job.state = State.AVAILABLE
        return
    for name in ("scheduled_at", "expires_at"):
        jobs = Job.objects.filter(**{f"{name}__isnull": False})
        jobs.update(**{name: F(name) - by})
    engine.let_time_pass(by)


async def arun_jobs(queue: str | None = None, **how: Any) -> int:
    """`run_jobs()` for async tests."""
    return await sync_to_async(run_jobs)(queue, **how)


def _take_from_memory(queue: str | None, with_scheduled: bool) -> Callable[[], None] | None:
    session = _sessions[-1]
    states = RUNNABLE + WAITING if with_scheduled else RUNNABLE
    for job in session.jobs:
        if job.state in states and queue in (None, job.queue):
            return lambda: _perform_in_memory(job, raising=False)
    return None


def _perform_in_memory(job: TestJob, *, raising: bool) -> None:
    job.state = State.ACTIVE
    job.attempt += 1
    outcome = _run(envelope(job), raising=raising)
    if isinstance(outcome, Completion):
        job.state, job.result = State.COMPLETED, outcome.result
    elif outcome.release:
        job.attempt -= 1
        job.state = State.RETRYABLE if outcome.retry_in else State.AVAILABLE
    else:
        job.errors.append(outcome)
        final = engine.is_final(outcome, RetryPolicy.parse(job.retry))
        is_last = final or job.attempt >= job.max_attempts
        job.state = State.DISCARDED if is_last else State.RETRYABLE


def _take_from_database(queue: str | None, with_scheduled: bool) -> Callable[[], None] | None:
    if with_scheduled:
        Job.objects.filter(state__in=WAITING).update(scheduled_at=timezone.now())
    queues = [queue] if queue else sorted(set(Job.objects.values_list("queue", flat=True)))
    claimed = engine.claim(queues, worker_id=WORKER) if queues else []
    if not claimed:
        return None
    (job,) = claimed

    def run() -> None:
        outcome = _run(envelope(job, job.errors), raising=False)
        if isinstance(outcome, Completion):
            engine.complete([outcome])
        else:
            engine.fail([outcome])

    return run


def _run(document: dict[str, Any], *, raising: bool) -> Completion | Failure:
    """Run a job as a worker would. Who runs jobs is not known here: the workers app is asked."""
    workers: Any = apps.get_app_config("ojs_workers")
    outcome: Completion | Failure = workers.perform(
        document, worker_id=WORKER, error=planned(document["type"]), raising=raising
    )
    return outcome


__all__ = [
    "TestJob",
    "advance_time",
    "all_enqueued",
    "arun_jobs",
    "assert_completed",
    "assert_enqueued",
    "assert_failed",
    "assert_job_state",
    "assert_performed",
    "clear_all",
    "drain",
    "fail_all",
    "fail_next",
    "fake",
    "forget_failures",
    "inline",
    "refute_enqueued",
    "refute_performed",
    "run_jobs",
]
