"""Random operations on the engine against a small model of OJS core §6.3.

The model is a dictionary and a few rules from the documents. After any sequence of operations, the
database must agree with the model about every job: its state, its attempt, its holder and its
number of errors. No job is ever lost, none runs more often than it may, and an active job always
has a reservation.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run

from jobs import engine
from jobs.engine import Completion, Failure
from jobs.errors import OJSError
from jobs.models import Event, Job, JobError
from jobs.spec.lifecycle import TERMINAL, WAITING, State
from jobs.spec.validation import new_job
from tests.database import alias, atomic

LONG_AGO = timedelta(hours=1)
WORKERS = ["", "worker-1", "worker-2"]
"""The first one is a client without a worker id."""

workers = st.sampled_from(WORKERS)
attempts = st.sampled_from([0, 1, 2, 2, 3, 3])


@dataclass
class Expected:
    """The model's state of a job."""

    state: State
    max_attempts: int
    discard: bool
    """The policy is `on_exhaustion: discard`."""
    attempt: int = 0
    counted: bool = False
    """A recovery, or a release, has counted the next attempt."""
    due: bool = False
    """Its scheduled time has come, but it has not been promoted yet."""
    expired: bool = False
    holder: str = ""
    errors: int = 0
    dead_letter: bool = False
    runs: int = 0
    """Attempts since it last got fresh ones, without released ones."""

    @property
    def fetchable(self) -> bool:
        waiting = self.state == State.AVAILABLE or self.due
        return waiting and not self.expired

    def leave(self, state: State) -> None:
        """Move to `state`; no longer held, no longer due."""
        self.state, self.holder, self.due = state, "", False

    def fail_for_good(self, *, kept: bool) -> None:
        self.leave(State.DISCARDED)
        self.dead_letter = kept

    def give_back(self) -> None:
        """`requeue: true`: the attempt does not count (docs/architecture.md)."""
        self.leave(State.AVAILABLE)
        self.counted = True

    def lose_worker(self) -> None:
        """Expiry and death (worker §5.5, §10.2)."""
        self.errors += 1
        if self.attempt < self.max_attempts:
            self.leave(State.AVAILABLE)
            self.attempt, self.counted = self.attempt + 1, True
        else:
            self.fail_for_good(kept=not self.discard)

    def fail(self, code: str = "") -> None:
        """FAIL and execution timeout (core §7.4, retry §7)."""
        self.errors += 1
        if code == "DISCARD":
            self.fail_for_good(kept=False)
        elif code == "DEAD_LETTER":
            self.fail_for_good(kept=True)
        elif self.attempt < self.max_attempts:
            self.leave(State.RETRYABLE)
        else:
            self.fail_for_good(kept=not self.discard)


class Lifecycle(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[UUID, Expected] = {}
        self.starts = 0
        self.transaction = atomic()
        self.transaction.__enter__()

    def teardown(self) -> None:
        transaction.set_rollback(True, using=alias())
        self.transaction.__exit__(None, None, None)

    # Helpers

    def some(self, data: Any, *states: State) -> UUID:
        """Draw a job, most often one in one of `states`."""
        likely = [job_id for job_id, job in self.jobs.items() if job.state in states]
        choices = st.sampled_from(sorted(self.jobs))
        if likely:
            choices = st.sampled_from(sorted(likely)) | choices
        return data.draw(choices)

    def an_active_job(self, data: Any) -> UUID:
        """Draw an active job. If there is none, create one: most rules need it."""
        if not self.in_state(State.ACTIVE):
            self.make(State.AVAILABLE, data.draw(attempts), discard=data.draw(st.booleans()))
            self.take(data.draw(workers), count=5)
        return data.draw(st.sampled_from(sorted(self.in_state(State.ACTIVE))))

    def in_state(self, *states: State) -> list[UUID]:
        return [job_id for job_id, job in self.jobs.items() if job.state in states]

    def holds(self, job_id: UUID, worker_id: str, attempt: int | None) -> bool:
        job = self.jobs[job_id]
        return (
            job.state == State.ACTIVE
            and worker_id in ("", job.holder)
            and attempt in (None, job.attempt)
        )

    def backdate(self, job_id: UUID, **fields: Any) -> None:
        Job.objects.filter(pk=job_id).update(
            **{name: timezone.now() - LONG_AGO for name in fields if fields[name]}
        )

    def expect(self, outcome: Any, allowed: bool) -> bool:
        """Check that an outcome was accepted or refused as in the model; return which."""
        assert (outcome.error is None) is allowed, (outcome, allowed)
        return allowed

    def attempt_of(self, verb: Any, job_id: UUID, allowed: bool) -> bool:
        """Call a verb that raises when it refuses; check it against the model."""
        try:
            with atomic():
                verb(job_id)
        except OJSError:
            assert not allowed
            return False
        assert allowed
        return True

    # PUSH

    @rule(
        kind=st.sampled_from([State.AVAILABLE, State.SCHEDULED, State.PENDING]),
        max_attempts=attempts,
        discard=st.booleans(),
        count=st.integers(1, 3),
    )
    def enqueue(self, kind, max_attempts, discard, count):
        self.make(kind, max_attempts, discard=discard, count=count)

    def make(self, kind: State, max_attempts: int, *, discard: bool, count: int = 1) -> None:
        # An hour: on a slow machine a second may pass, and make a job due that is not in the model.
        retry: dict[str, Any] = {"max_attempts": max_attempts}
        retry |= {"initial_interval": "PT1H", "max_interval": "PT1H"}
        options: dict[str, Any] = {"retry": retry}
        if discard:
            retry["on_exhaustion"] = "discard"
        if kind == State.SCHEDULED:
            options["delay_until"] = "+PT1H"
        if kind == State.PENDING:
            options["pending"] = True
        document = {"type": "email.send", "args": [], "options": options}
        for job in engine.enqueue([new_job(document, timezone.now()) for _ in range(count)]):
            self.jobs[job.id] = Expected(kind, max_attempts, discard)

    # FETCH

    @rule(worker_id=workers, count=st.integers(1, 4))
    def claim(self, worker_id, count):
        self.take(worker_id, count)

    def take(self, worker_id: str, count: int) -> None:
        fetchable = {job_id for job_id, job in self.jobs.items() if job.fetchable}

        claimed = engine.claim(["default"], worker_id=worker_id, count=count)

        assert {each.id for each in claimed} <= fetchable
        assert len(claimed) == min(count, len(fetchable))
        for each in claimed:
            job = self.jobs[each.id]
            job.leave(State.ACTIVE)
            job.holder = worker_id
            job.attempt += 0 if job.counted else 1
            job.runs += 0 if job.counted and job.runs >= job.attempt else 1
            job.counted = False
            assert each.attempt == job.attempt
        self.starts += len(claimed)

    # ACK and FAIL

    @rule(data=st.data(), worker_id=workers, attempt=st.none() | st.integers(1, 3))
    def ack(self, data, worker_id, attempt):
        job_id = self.an_active_job(data)

        (outcome,) = engine.complete([Completion(job_id, worker_id or None, attempt)])

        if self.expect(outcome, self.holds(job_id, worker_id, attempt)):
            self.jobs[job_id].leave(State.COMPLETED)

    @precondition(lambda self: self.jobs)
    @rule(worker_id=workers)
    def ack_everything_at_once(self, worker_id):
        ids = sorted(self.jobs)

        outcomes = engine.complete([Completion(job_id, worker_id or None) for job_id in ids])

        for job_id, outcome in zip(ids, outcomes, strict=True):
            if self.expect(outcome, self.holds(job_id, worker_id, None)):
                self.jobs[job_id].leave(State.COMPLETED)

    @rule(
        data=st.data(),
        worker_id=workers,
        attempt=st.none() | st.integers(1, 3),
        code=st.sampled_from(["", "RETRY", "DISCARD", "DEAD_LETTER"]),
    )
    def fail(self, data, worker_id, attempt, code):
        job_id = self.an_active_job(data)
        failure = Failure(job_id, worker_id or None, attempt, code=code)

        (outcome,) = engine.fail([failure])

        if self.expect(outcome, self.holds(job_id, worker_id, attempt)):
            self.jobs[job_id].fail(code)

    @rule(data=st.data(), worker_id=workers)
    def release(self, data, worker_id):
        job_id = self.an_active_job(data)

        (outcome,) = engine.fail([Failure(job_id, worker_id or None, release=True)])

        if self.expect(outcome, self.holds(job_id, worker_id, None)):
            self.jobs[job_id].give_back()

    @precondition(lambda self: self.jobs)
    @rule(worker_id=workers, release=st.booleans())
    def fail_everything_at_once(self, worker_id, release):
        ids = sorted(self.jobs)

        outcomes = engine.fail(
            [Failure(job_id, worker_id or None, release=release) for job_id in ids]
        )

        for job_id, outcome in zip(ids, outcomes, strict=True):
            if self.expect(outcome, self.holds(job_id, worker_id, None)):
                self.jobs[job_id].give_back() if release else self.jobs[job_id].fail()

    # BEAT

    @precondition(lambda self: self.in_state(State.ACTIVE))
    @rule(worker_id=st.sampled_from(WORKERS[1:]))
    def heartbeat(self, worker_id):
        held = engine.extend(list(self.jobs), worker_id=worker_id)

        expected = {
            job_id
            for job_id in self.in_state(State.ACTIVE)
            if self.jobs[job_id].holder in (worker_id, "")
        }
        assert held == expected
        for job_id in held:
            self.jobs[job_id].holder = worker_id

    # Time, and death

    @rule(data=st.data())
    def a_reservation_expires(self, data):
        job_id = self.an_active_job(data)
        self.backdate(job_id, reserved_until=True)

        assert engine.expire() == 1

        self.jobs[job_id].lose_worker()

    @precondition(lambda self: self.in_state(State.ACTIVE))
    @rule(worker_id=st.sampled_from(WORKERS[1:]))
    def a_worker_dies(self, worker_id):
        orphans = [
            job
            for job in self.jobs.values()
            if (job.state, job.holder) == (State.ACTIVE, worker_id)
        ]

        reclaimed = engine.reclaim([worker_id])

        assert reclaimed == len(orphans)
        for job in orphans:
            job.lose_worker()

    @rule(data=st.data())
    def a_job_overruns(self, data):
        job_id = self.an_active_job(data)
        self.backdate(job_id, started_at=True)
        Job.objects.filter(pk=job_id).update(timeout=timedelta(seconds=1))

        assert engine.time_out() == 1

        Job.objects.filter(pk=job_id).update(timeout=None)
        self.jobs[job_id].fail()

    @precondition(lambda self: self.in_state(State.SCHEDULED, State.RETRYABLE))
    @rule(data=st.data())
    def a_job_falls_due(self, data):
        waiting = self.in_state(State.SCHEDULED, State.RETRYABLE)
        job_id = data.draw(st.sampled_from(sorted(waiting)))
        self.backdate(job_id, scheduled_at=True)
        self.jobs[job_id].due = True

    @rule()
    def promote(self):
        due = [job for job in self.jobs.values() if job.due]

        assert engine.promote_due() == len(due)

        for job in due:
            job.leave(State.AVAILABLE)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def a_deadline_passes(self, data):
        job_id = self.some(data, *WAITING)
        self.backdate(job_id, expires_at=True)
        self.jobs[job_id].expired = True

    @rule()
    def discard_expired(self):
        stale = [job for job in self.jobs.values() if job.expired and job.state in WAITING]

        assert engine.discard_expired() == len(stale)

        for job in stale:
            job.errors += 1
            job.fail_for_good(kept=False)

    # Producers and operators

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data):
        job_id = self.some(data, *WAITING, State.ACTIVE)
        job = self.jobs[job_id]

        if self.attempt_of(engine.cancel, job_id, job.state not in TERMINAL):
            job.leave(State.CANCELLED)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def activate(self, data):
        job_id = self.some(data, State.PENDING)
        job = self.jobs[job_id]

        if self.attempt_of(engine.activate, job_id, job.state == State.PENDING):
            job.leave(State.AVAILABLE)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def retry(self, data):
        job_id = self.some(data, State.DISCARDED)
        job = self.jobs[job_id]

        if self.attempt_of(engine.retry_one, job_id, job.state == State.DISCARDED):
            job.leave(State.AVAILABLE)
            job.attempt, job.counted, job.runs = 0, False, 0
            job.dead_letter = job.expired = False
            # Immediately, to check that the attempts are fresh.
            self.take("worker-1", count=10)

    @precondition(lambda self: self.in_state(State.DISCARDED))
    @rule(data=st.data())
    def delete(self, data):
        job_id = self.some(data, State.DISCARDED)
        gone = self.jobs[job_id].state == State.DISCARDED

        assert engine.delete_dead([job_id]) == gone

        if gone:
            del self.jobs[job_id]

    # Invariants after every step

    @invariant()
    def the_database_agrees_with_the_model(self):
        rows = {job.pk: job for job in Job.objects.all()}
        assert set(rows) == set(self.jobs), "a job was lost, or made"
        for job_id, expected in self.jobs.items():
            row = rows[job_id]
            assert row.state == expected.state
            assert row.attempt == expected.attempt
            assert row.attempt_counted == expected.counted
            assert row.reserved_by == expected.holder
            assert row.dead_letter == expected.dead_letter

    @invariant()
    def active_jobs_and_only_they_have_a_reservation(self):
        for job in Job.objects.all():
            reserved = job.reserved_until is not None and job.reserved_for is not None
            assert reserved is (job.state == State.ACTIVE)
            assert (job.finished_at is not None) is (job.state in TERMINAL)

    @invariant()
    def no_job_runs_more_often_than_it_may(self):
        for job in self.jobs.values():
            assert job.attempt <= max(1, job.max_attempts)
            assert job.runs <= max(1, job.max_attempts)

    @invariant()
    def every_failure_is_on_record(self):
        counts = dict.fromkeys(self.jobs, 0)
        for job_id in JobError.objects.values_list("job_id", flat=True):
            counts[job_id] += 1
        assert counts == {job_id: job.errors for job_id, job in self.jobs.items()}

    @invariant()
    def every_attempt_that_began_is_recorded(self):
        assert Event.objects.filter(type="job.started").count() == self.starts


@pytest.mark.django_db
@pytest.mark.slow
def test_random_operations_never_leave_the_model():
    run(
        Lifecycle,
        settings=settings(
            max_examples=15,
            stateful_step_count=50,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
