"""The jobs that a test keeps in memory (`testing`): they are made, run, wait and end as in the
database, by the rules that hold there."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.apps import apps
from django.utils import timezone

from ..engine import Completion, Failure, is_final
from ..engine.insertion import stamp
from ..engine.unique import Conflicts
from ..errors import InvalidTransition, JobNotFound
from ..spec.envelope import envelope
from ..spec.lifecycle import TERMINAL, State
from ..spec.retry import RetryPolicy
from ..spec.unique_policy import UniquePolicy
from ..spec.validation import NewJob
from .injection import planned

RUNNABLE = (State.AVAILABLE,)
WAITING = (State.SCHEDULED, State.RETRYABLE)
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
    due_at: datetime | None = None
    """When it is scheduled or its next attempt is due."""

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
    frozen: datetime | None = None
    """Where `freeze_time()` stopped it."""

    def deliver(self, new: Sequence[NewJob]) -> Sequence[NewJob]:
        now = self.now()
        stamp(new, now)
        conflicts = ConflictsInMemory(new, self.jobs, now)
        kept = [TestJob(job, job.state, due_at=job.scheduled_at) for job in conflicts.settle()]
        self.jobs += kept
        conflicts.cancel_replaced()
        for made in kept:
            if self.runs_inline and made.state != State.CANCELLED:
                self.perform(made, raising=True)
        return new

    def cancel(self, job_id: UUID, *, reason: str = "") -> None:
        """
        Raises:
            JobNotFound: no job of the test has this id.
            InvalidTransition: it has ended already.
        """
        job = next((job for job in self.jobs if job.id == job_id), None)
        if job is None:
            raise JobNotFound(job_id)
        if job.state in TERMINAL:
            raise InvalidTransition(
                f"Cannot cancel job in terminal state '{job.state}'.",
                job_id=str(job_id),
                current_state=str(job.state),
            )
        job.state = State.CANCELLED

    # The clock

    def now(self) -> datetime:
        return (self.frozen or timezone.now()) + self.ahead

    def freeze(self, moment: datetime) -> None:
        self.frozen, self.ahead = moment, timedelta(0)
        self.settle()

    def advance(self, by: timedelta) -> None:
        self.ahead += by
        self.settle()

    def settle(self) -> None:
        """Let happen what the time is up for: jobs become available, or are too late."""
        now = self.now()
        for job in self.jobs:
            if job.expires_at is not None and job.expires_at <= now:
                if job.state in RUNNABLE + WAITING:
                    job.state = State.DISCARDED
            elif job.state in WAITING and (job.due_at is None or job.due_at <= now):
                job.state = State.AVAILABLE

    def perform(self, job: TestJob, *, raising: bool) -> None:
        job.state = State.ACTIVE
        job.attempt += 1
        try:
            outcome = run_document(envelope(job), raising=raising)
        except BaseException as problem:
            failure = Failure(job.id, WORKER, job.attempt, type(problem).__name__)
            failure.message = str(problem)
            job.errors.append(failure)
            self._follow_failure(job, failure)
            raise
        if isinstance(outcome, Completion):
            job.state, job.result = State.COMPLETED, outcome.result
        elif outcome.release:
            job.attempt -= 1
            job.state = State.RETRYABLE if outcome.retry_in else State.AVAILABLE
            job.due_at = self.now() + (outcome.retry_in or timedelta(0))
        else:
            job.errors.append(outcome)
            self._follow_failure(job, outcome)

    def _follow_failure(self, job: TestJob, failure: Failure) -> None:
        policy = RetryPolicy.parse(job.retry)
        if is_final(failure, policy) or job.attempt >= job.max_attempts:
            job.state = State.DISCARDED
            return
        delay = policy.delay(job.attempt) if failure.retry_in is None else failure.retry_in
        job.state, job.due_at = State.RETRYABLE, self.now() + delay


def run_document(document: dict[str, Any], *, raising: bool) -> Completion | Failure:
    """Run a job as a worker would. Who runs jobs is not known here: the workers app is asked."""
    workers: Any = apps.get_app_config("ojs_workers")
    outcome: Completion | Failure = workers.perform(
        document, worker_id=WORKER, error=planned(document["type"]), raising=raising
    )
    return outcome


class ConflictsInMemory(Conflicts):
    """Conflicts with jobs of a list, at `now`."""

    def __init__(self, new: Sequence[NewJob], jobs: Sequence[Any], now: datetime) -> None:
        super().__init__(new)
        self.jobs = jobs
        self.now = now

    def lock(self, policies: Sequence[UniquePolicy]) -> None:
        """Nobody else is there."""

    def stored(self, policy: UniquePolicy) -> list[Any]:
        since = None if policy.period is None else self.now - policy.period
        return [
            job
            for job in reversed(self.jobs)
            if job.unique is not None
            and job.unique.key == policy.key
            and job.state in policy.states
            and (since is None or job.created_at > since)
        ]

    def cancel(self, job_ids: Collection[UUID], *, reason: str) -> None:
        for job in self.jobs:
            if job.id in job_ids:
                job.state = State.CANCELLED
