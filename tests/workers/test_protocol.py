"""Settling jobs: ownership, fencing, refused finishes (OJS worker protocol §5.6, §10.4)."""

from __future__ import annotations

from uuid import uuid4

import pytest

from jobs.errors import InvalidTransition, JobNotFound, ReservationLost
from jobs.models import Job, RefusedFinish
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, ago
from workers import protocol
from workers.chores import reaper
from workers.models import Worker
from workers.protocol import Completion, Failure, Outcome

pytestmark = pytest.mark.django_db


def ack(job: Job, **said) -> Outcome:
    (outcome,) = protocol.ack([Completion(job.pk, **said)])
    return outcome


def fail(job: Job, **said) -> Outcome:
    (outcome,) = protocol.fail([Failure(job.pk, **said)])
    return outcome


VERBS = pytest.mark.parametrize("verb", [ack, fail])


def facts(job: Job) -> dict:
    """Everything that settling a job could have changed."""
    return {
        **Job.objects.filter(pk=job.pk).values().get(),
        "errors": list(job.errors.values_list("type", flat=True)),
    }


# Only the holder (§5.6)


def test_the_holder_completes_its_job():
    job = JobFactory(active=True, reserved_by="w", attempt=2)

    outcome = ack(job, worker_id="w", attempt=2, result={"sent": True})

    assert (outcome.state, outcome.attempt, outcome.error) == (State.COMPLETED, 2, None)
    job.refresh_from_db()
    assert (job.state, job.result, job.finished_by) == (State.COMPLETED, {"sent": True}, "w")
    assert (job.reserved_by, job.reserved_until, job.unfenced) == ("", None, False)


def test_the_holder_fails_its_job():
    job = JobFactory(active=True, reserved_by="w")

    outcome = fail(job, worker_id="w", attempt=1, type="SMTPError", message="refused")

    assert (outcome.state, outcome.attempt, outcome.error) == (State.RETRYABLE, 1, None)
    job.refresh_from_db()
    (error,) = job.errors.all()
    assert (error.attempt, error.type, error.message) == (1, "SMTPError", "refused")
    assert error.worker_id == "w"


@VERBS
@pytest.mark.parametrize(
    "said",
    [
        {"worker_id": "another"},
        {"worker_id": "another", "attempt": 2},
        {"worker_id": "w", "attempt": 1},
        {"worker_id": "w", "attempt": 3},
        {"attempt": 1},
    ],
    ids=str,
)
def test_no_other_worker_may_and_no_other_attempt_either(verb, said):
    job = JobFactory(active=True, reserved_by="w", attempt=2)
    before = facts(job)

    outcome = verb(job, **said)

    assert isinstance(outcome.error, ReservationLost)
    assert outcome.state is None
    assert outcome.error.details["current_state"] == "active"
    assert facts(job) == before


@VERBS
@pytest.mark.parametrize(
    "state", ["pending", "scheduled", "retryable", "completed", "cancelled", "discarded", ""]
)
def test_a_job_that_is_not_active_cannot_be_settled(verb, state):
    job = JobFactory(**({state: True} if state else {}))
    before = facts(job)

    outcome = verb(job, worker_id="w")

    assert isinstance(outcome.error, InvalidTransition)
    assert outcome.error.details["current_state"] == job.state
    assert facts(job) == before


@VERBS
def test_a_job_that_does_not_exist_is_said_to_be_missing(verb):
    outcome = verb(Job(id=uuid4()), worker_id="w")

    assert isinstance(outcome.error, JobNotFound)
    assert not RefusedFinish.objects.exists()


# Without a worker id (docs/architecture.md)


@VERBS
def test_a_finish_that_does_not_say_whose_it_is_is_accepted_while_the_job_is_active(verb):
    job = JobFactory(active=True, reserved_by="w")

    assert verb(job).error is None
    assert isinstance(verb(job).error, InvalidTransition), "and only then"


@pytest.mark.parametrize(("worker_id", "flagged"), [(None, True), ("w", False)])
def test_an_unfenced_finish_is_flagged_on_the_job(worker_id, flagged):
    done, dead = JobFactory.create_batch(2, active=True, reserved_by="w", attempt=3)

    ack(done, worker_id=worker_id)
    fail(dead, worker_id=worker_id)

    for job, state in ((done, State.COMPLETED), (dead, State.DISCARDED)):
        job.refresh_from_db()
        assert (job.state, job.unfenced, job.finished_by) == (state, flagged, "w")


# Refused finishes (§10.4)


@pytest.mark.parametrize(("verb", "operation"), [(ack, "ack"), (fail, "fail")])
def test_a_refused_finish_is_recorded(verb, operation):
    job = JobFactory(active=True, reserved_by="w", attempt=2)

    verb(job, worker_id="late", attempt=1)

    (refusal,) = RefusedFinish.objects.all()
    assert (refusal.job_id, refusal.operation) == (job.pk, operation)
    assert (refusal.worker_id, refusal.attempt) == ("late", 1)
    assert (refusal.held_by, refusal.state) == ("w", State.ACTIVE)


def test_an_accepted_finish_is_not():
    ack(JobFactory(active=True, reserved_by="w"), worker_id="w")

    assert not RefusedFinish.objects.exists()


# Split brain (§5.6, §10.4)


def recovered_from(worker_id: str) -> Job:
    """A job that was reclaimed from a worker declared dead."""
    job = JobFactory(active=True, reserved_by=worker_id)
    protocol.beat(worker_id, active_job_ids=[str(job.pk)])
    Worker.objects.filter(pk=worker_id).update(last_heartbeat_at=ago(31))
    reaper.sweep()
    job.refresh_from_db()
    assert job.state == State.AVAILABLE
    return job


@VERBS
def test_a_worker_taken_for_dead_cannot_settle_a_job_that_waits_again(verb):
    job = recovered_from("a")

    assert verb(job, worker_id="a").error.code == "conflict"
    assert facts(job)["state"] == State.AVAILABLE


@VERBS
def test_a_worker_taken_for_dead_cannot_settle_what_another_worker_does_now(verb):
    job = recovered_from("a")
    (taken,) = protocol.fetch(["default"], worker_id="b")
    before = facts(job)

    refused = verb(job, worker_id="a")

    assert isinstance(refused.error, ReservationLost)
    assert facts(job) == before
    assert ack(job, worker_id="b", attempt=taken.attempt).error is None


@VERBS
def test_a_worker_that_was_given_its_lost_job_again_cannot_settle_the_first_attempt(verb):
    job = recovered_from("a")
    protocol.beat("a")
    protocol.fetch(["default"], worker_id="a")

    assert isinstance(verb(job, worker_id="a", attempt=1).error, ReservationLost)
    assert verb(job, worker_id="a", attempt=2).error is None


@VERBS
def test_a_finish_after_the_visibility_timeout_is_refused_once_the_job_was_taken_back(verb):
    job = JobFactory(active=True, reserved_by="w", reserved_until=ago(1))
    reaper.sweep()

    assert verb(job, worker_id="w").error.code == "conflict"


@VERBS
def test_a_finish_after_the_visibility_timeout_counts_until_the_job_is_reclaimed(verb):
    job = JobFactory(active=True, reserved_by="w", reserved_until=ago(1))

    assert verb(job, worker_id="w").error is None
    assert reaper.sweep(["expired-reservations"]) == {}


# Many outcomes at once


def test_each_outcome_of_a_list_is_answered_by_itself_and_in_order():
    held, foreign, done = (
        JobFactory(active=True, reserved_by="w"),
        JobFactory(active=True, reserved_by="v"),
        JobFactory(completed=True),
    )
    missing = uuid4()

    outcomes = protocol.ack(
        [Completion(job_id, "w") for job_id in (foreign.pk, held.pk, missing, done.pk)]
    )

    assert [type(outcome.error) for outcome in outcomes] == [
        ReservationLost,
        type(None),
        JobNotFound,
        InvalidTransition,
    ]
    held.refresh_from_db()
    foreign.refresh_from_db()
    assert (held.state, foreign.state) == (State.COMPLETED, State.ACTIVE)


def test_failures_of_a_list_follow_each_its_own_policy():
    again, last, final, release = (
        JobFactory(active=True, reserved_by="w"),
        JobFactory(active=True, reserved_by="w", attempt=3),
        JobFactory(active=True, reserved_by="w", retry={"non_retryable_errors": ["Fatal"]}),
        JobFactory(active=True, reserved_by="w"),
    )

    outcomes = protocol.fail(
        [
            Failure(again.pk, "w", type="A", message="a"),
            Failure(last.pk, "w", type="B", message="b"),
            Failure(final.pk, "w", type="Fatal", message="c"),
            Failure(release.pk, "w", release=True),
        ]
    )

    states = [State.RETRYABLE, State.DISCARDED, State.DISCARDED, State.AVAILABLE]
    assert [outcome.state for outcome in outcomes] == states
    assert [error.message for job in (again, last, final) for error in job.errors.all()] == [
        "a",
        "b",
        "c",
    ]
    assert not release.errors.exists()


@pytest.mark.parametrize(("verb", "kind"), [(protocol.ack, Completion), (protocol.fail, Failure)])
def test_the_same_job_twice_in_one_list_is_settled_once(verb, kind):
    job = JobFactory(active=True, reserved_by="w", attempt=3)

    first, second = verb([kind(job.pk, "w"), kind(job.pk, "w")])

    assert first.error is None
    assert isinstance(second.error, InvalidTransition)
    assert facts(job)["errors"] == (["handler_error"] if kind is Failure else [])


@pytest.mark.parametrize(("verb", "kind"), [(protocol.ack, Completion), (protocol.fail, Failure)])
def test_a_stale_outcome_beside_the_right_one_does_not_spoil_it(verb, kind):
    """A worker that got its lost job again may report both attempts in one request."""
    job = JobFactory(active=True, reserved_by="w", attempt=2)

    outcomes = verb([kind(job.pk, "w", 1), kind(job.pk, "w", 2), kind(job.pk, "w", 2)])

    assert [outcome.error is None for outcome in outcomes] == [False, True, False]
    assert RefusedFinish.objects.count() == 2


@pytest.mark.parametrize("verb", [protocol.ack, protocol.fail])
def test_no_outcomes_are_no_error(verb):
    assert verb([]) == []
