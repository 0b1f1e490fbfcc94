"""Jobs of one `fake()` or `inline()`, kept by the engine in a database in memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from django.apps import apps
from django.db.models.expressions import RawSQL
from django.utils import timezone

from .. import engine
from ..engine import ClaimedJob, Completion
from ..models import Job, JobError
from ..options import JSON, JobState
from ..place import Place
from ..spec.envelope import claimed_envelope
from ..spec.lifecycle import State
from ..spec.validation import NewJob
from ..store.memory import Clock, Database
from .injection import planned

WAITING = (State.SCHEDULED, State.RETRYABLE)
WORKER = "ojs-testing"
CHORES: tuple[Callable[[], int], ...] = (
    engine.discard_expired,
    engine.discard_overdrawn,
    engine.time_out,
    partial(engine.promote_due, timedelta(0)),
    engine.release_more,
)
"""Sweeps that depend only on time. Reservations do not expire: a live worker extends them."""
IN_ORDER = RawSQL("ojs_jobs_job.rowid", ())
"""The order in which SQLite received the rows: ids may be chosen by the producer."""


class TestJob:
    """A job of `fake()` or `inline()` as it is now, with the attributes of `jobs.models.Job`."""

    __test__ = False

    def __init__(self, session: Session, row: Job) -> None:
        self._session = session
        self._row = row

    # Type checkers see names; this would make every misspelt one right.
    if TYPE_CHECKING:
        id: UUID
        pk: UUID
        type: str
        queue: str
        args: list[JSON]
        meta: dict[str, JSON]
        tags: list[str]
        priority: int
        attempt: int
        max_attempts: int
        result: JSON
        created_at: datetime
        scheduled_at: datetime | None
        expires_at: datetime | None
        started_at: datetime | None
        finished_at: datetime | None
        dead_letter: bool
        rate_key: str
        workflow_id: UUID | None
    else:

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(name)
            return getattr(self._current, name)

    def __repr__(self) -> str:
        return f"<TestJob {self.type} {self.id}: {self.state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TestJob) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def _current(self) -> Job:
        # A job that was cleared stays as it was.
        self._row = self._session.rows().get(self._row.pk, self._row)
        return self._row

    @property
    def state(self) -> JobState:
        return cast(JobState, State(self._current.state))

    @property
    def errors(self) -> list[JobError]:
        """Its failed attempts, oldest first."""
        return list(self._current.errors.all())

    @property
    def due_at(self) -> datetime | None:
        """When it is scheduled or its next attempt is due."""
        return self._current.scheduled_at

    @property
    def performed(self) -> bool:
        return self._current.attempt > 0


class Session(Place):
    """The jobs of one test."""

    is_memory = True

    def __init__(self, *, runs_inline: bool = False) -> None:
        self.runs_at_once = runs_inline
        self.clock = Clock()
        self._database = Database(self.clock)
        self._rows: dict[UUID, Job] | None = None
        self._told_of = threading.local()

    @property
    def jobs(self) -> list[TestJob]:
        """Oldest first."""
        return [TestJob(self, row) for row in self.rows().values()]

    def rows(self) -> dict[UUID, Job]:
        rows = self._rows
        if rows is None:
            with self._database.using():
                found = Job.objects.order_by(IN_ORDER).prefetch_related("errors")
                rows = self._rows = {job.pk: job for job in found}
        return rows

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Let the engine work on these jobs."""
        with self._database.using():
            self._rows = None
            yield

    @contextlib.contextmanager
    def begun(self) -> Iterator[Session]:
        # The process remembers which queues exist, and each session has its own queues.
        with self.inside():
            engine.forget_queues()
        try:
            yield self
        finally:
            with self.inside():
                engine.forget_queues()

    # For producers

    def deliver(self, new: Sequence[NewJob]) -> Sequence[NewJob]:
        with self.inside():
            engine.enqueue(new)
        if self.runs_at_once:
            made = [job for job in new if job.existing is None]
            held = self._held()
            if held is not None:
                held += made
            else:
                for job in made:
                    self._run(job)
        return new

    @contextlib.contextmanager
    def announcing(self) -> Iterator[None]:
        around = self._held()
        held: list[NewJob] = []
        self._told_of.jobs = held
        try:
            yield
        finally:
            self._told_of.jobs = around
        for job in held:
            self._run(job)

    def _held(self) -> list[NewJob] | None:
        """The jobs that this thread is telling of."""
        return getattr(self._told_of, "jobs", None)

    def began(self, workflow: Any) -> None:
        if self.runs_at_once:
            self._run_workflow(workflow.pk)

    def _run_workflow(self, root_id: UUID) -> None:
        """Run its jobs until it has ended or waits; then raise the first error of a handler."""
        tried: set[UUID] = set()
        problems: list[BaseException] = []
        while True:
            with self.inside():
                jobs = Job.objects.filter(
                    workflow__root_id=root_id, state__in=(State.AVAILABLE, State.SCHEDULED)
                )
                job = jobs.exclude(pk__in=tried).order_by(IN_ORDER).first()
                if job is None:
                    break
                tried.add(job.pk)
                if job.state == State.SCHEDULED:
                    engine.run_now([job.pk])
                claimed = engine.claim_chosen([job.pk], worker_id=WORKER)
            for one in claimed:
                problem = execute(one, self.inside)
                if problem is not None:
                    problems.append(problem)
        if problems:
            raise problems[0]

    def _run(self, job: NewJob) -> None:
        with self.inside():
            if job.state == State.SCHEDULED:
                engine.run_now([job.id])
            claimed = engine.claim_chosen([job.id], worker_id=WORKER)
        for one in claimed:
            problem = execute(one, self.inside)
            if problem is not None:
                raise problem

    # The clock

    def now(self) -> datetime:
        return self.clock.now()

    def freeze(self, moment: datetime) -> None:
        aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
        self.clock.stopped_at, self.clock.ahead = aware, timedelta(0)
        with self.inside():
            sweep()

    def advance(self, by: timedelta) -> None:
        self.clock.ahead += by
        with self.inside():
            sweep()


def sweep() -> None:
    """Run the sweeps: jobs that are due become available, and late ones expire."""
    for each in CHORES:
        while each():
            pass


def execute(
    job: ClaimedJob, inside: Callable[[], AbstractContextManager[None]]
) -> BaseException | None:
    """Run a job as a worker would, report its outcome, and return the error.

    This app does not know how jobs are run: it calls the workers app.

    Args:
        inside: the context in which the job was claimed. Its handler runs outside it.
    """
    workers: Any = apps.get_app_config("ojs_workers")
    outcome, problem = workers.perform(
        claimed_envelope(job), worker_id=WORKER, error=planned(job.type)
    )
    with inside():
        if isinstance(outcome, Completion):
            engine.complete([outcome])
        else:
            engine.fail([outcome])
    return problem
