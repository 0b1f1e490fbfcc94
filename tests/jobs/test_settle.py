"""ACK: a worker finishes jobs, but only those it holds (core §7.3, worker §5.6, §10.4)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs import engine
from jobs.engine import Completion
from jobs.errors import InvalidTransition, JobNotFound, ReservationLost
from jobs.models import Event, Job, RefusedFinish
from jobs.signals import finish_refused, jobs_completed
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from tests.factories import JobErrorFactory, JobFactory, ago


def ack(job: Job, **fields):
    (outcome,) = engine.complete([Completion(job.pk, **fields)])
    return outcome


def test_an_ack_completes_the_job_and_keeps_its_result(db):
    job = JobFactory(active=True, reserved_by="worker-1", attempt=2)

    outcome = ack(job, worker_id="worker-1", result={"sent": 3})

    job.refresh_from_db()
    assert (job.state, job.result, job.attempt) == (State.COMPLETED, {"sent": 3}, 2)
    assert (job.finished_by, job.unfenced) == ("worker-1", False)
    assert (job.reserved_by, job.reserved_until, job.reserved_for) == ("", None, None)
    assert outcome.error is None
    assert (outcome.state, outcome.attempt, outcome.max_attempts) == (State.COMPLETED, 2, 3)
    assert outcome.at == job.finished_at
    assert abs(timezone.now() - job.finished_at) < timedelta(minutes=1)


@pytest.mark.parametrize("result", [None, 0, False, "", "done", 1.5, [], [1, {"a": None}], {}])
def test_any_json_value_may_be_the_result(db, result):
    job = JobFactory(active=True)

    ack(job, result=result)

    job.refresh_from_db()
    assert job.result == result
    assert type(job.result) is type(result)


def test_each_job_of_a_list_gets_its_own_result(db):
    results = [1, True, None, 1, 1.0, "1", [1], [True]]
    jobs = JobFactory.create_batch(len(results), active=True)

    engine.complete(
        [Completion(job.pk, result=result) for job, result in zip(jobs, results, strict=True)]
    )

    for job, result in zip(jobs, results, strict=True):
        job.refresh_from_db()
        assert repr(job.result) == repr(result)


def test_only_the_holder_may_ack(db):
    job = JobFactory(active=True, reserved_by="worker-1")

    outcome = ack(job, worker_id="worker-2", result="theirs")

    job.refresh_from_db()
    assert isinstance(outcome.error, ReservationLost)
    assert outcome.state is None
    assert (job.state, job.reserved_by, job.result) == (State.ACTIVE, "worker-1", None)


def test_a_named_worker_may_not_ack_a_job_fetched_without_a_worker_id(db):
    job = JobFactory(active=True, reserved_by="")

    assert isinstance(ack(job, worker_id="worker-1").error, ReservationLost)


def test_an_older_attempt_of_the_same_worker_may_not_ack(db):
    job = JobFactory(active=True, attempt=2)

    assert isinstance(ack(job, worker_id="worker-1", attempt=1).error, ReservationLost)
    assert isinstance(ack(job, attempt=3).error, ReservationLost)
    assert ack(job, worker_id="worker-1", attempt=2).error is None


def test_an_ack_that_tells_no_worker_is_accepted_and_marked(db):
    """No public SDK sends its worker id in an ACK (docs/architecture.md)."""
    job = JobFactory(active=True, reserved_by="worker-1")

    outcome = ack(job)

    job.refresh_from_db()
    assert outcome.error is None
    assert (job.state, job.unfenced, job.finished_by) == (State.COMPLETED, True, "worker-1")


@pytest.mark.parametrize(
    "state", ["pending", "scheduled", "retryable", "completed", "cancelled", "discarded"]
)
def test_a_job_that_is_not_active_cannot_be_acked(db, state):
    job = JobFactory(**{state: True})

    outcome = ack(job, worker_id="worker-1")

    assert isinstance(outcome.error, InvalidTransition)
    assert outcome.error.details == {
        "job_id": str(job.pk),
        "current_state": state,
        "expected_state": "active",
        "attempt": job.attempt,
    }


def test_a_second_ack_finds_the_job_completed(db):
    job = JobFactory(active=True)
    ack(job, result="first")

    assert isinstance(ack(job, result="second").error, InvalidTransition)

    job.refresh_from_db()
    assert job.result == "first"


def test_a_job_that_does_not_exist_cannot_be_acked(db):
    (outcome,) = engine.complete([Completion(uuid7())])

    assert isinstance(outcome.error, JobNotFound)
    assert not RefusedFinish.objects.exists()


def test_an_ack_after_the_deadline_counts_until_the_job_is_reclaimed(db):
    """The reservation is lost when the job is reclaimed, not when the time is up (§5.5)."""
    job = JobFactory(active=True, reserved_until=ago(60))

    assert ack(job, worker_id="worker-1").error is None


# Many at once


def test_each_outcome_of_a_list_is_answered_by_itself_and_in_order(db):
    held = JobFactory.create_batch(2, active=True)
    others = JobFactory(active=True, reserved_by="worker-2")
    done = JobFactory(completed=True)
    nobodys = uuid7()

    outcomes = engine.complete(
        [
            Completion(held[1].pk, worker_id="worker-1", result=1),
            Completion(others.pk, worker_id="worker-1", result=2),
            Completion(nobodys, worker_id="worker-1"),
            Completion(done.pk, worker_id="worker-1"),
            Completion(held[0].pk, worker_id="worker-1", result=3),
        ]
    )

    assert [outcome.job_id for outcome in outcomes] == [
        held[1].pk,
        others.pk,
        nobodys,
        done.pk,
        held[0].pk,
    ]
    assert [type(outcome.error) for outcome in outcomes] == [
        type(None),
        ReservationLost,
        JobNotFound,
        InvalidTransition,
        type(None),
    ]
    assert Job.objects.get(pk=held[1].pk).result == 1
    assert Job.objects.get(pk=held[0].pk).result == 3


def test_the_same_job_twice_in_one_request_is_completed_once(db):
    job = JobFactory(active=True)

    first, second = engine.complete([Completion(job.pk, result=1), Completion(job.pk, result=2)])

    job.refresh_from_db()
    assert (first.error, job.result) == (None, 1)
    assert isinstance(second.error, InvalidTransition)


def test_of_several_about_one_job_the_first_that_may_is_taken(db):
    job, other = JobFactory(active=True, attempt=2), JobFactory(active=True)
    items = [
        Completion(job.pk, attempt=1, result="old"),
        Completion(other.pk, result="other"),
        Completion(job.pk, attempt=2, result="new"),
        Completion(job.pk, attempt=2, result="late"),
    ]

    outcomes = engine.complete(items)

    assert [outcome.state for outcome in outcomes] == [None, "completed", "completed", None]
    job.refresh_from_db()
    assert job.result == "new"


def test_nothing_to_settle_is_no_error(db):
    assert engine.complete([]) == []


# Events and signals


def test_refused_finishes_are_remembered_for_operators(db, django_capture_on_commit_callbacks):
    job = JobFactory(active=True, reserved_by="worker-1", attempt=2)
    heard = []

    def listen(*, job_id, operation, worker_id, **kwargs):
        heard.append((job_id, operation, worker_id))

    finish_refused.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            ack(job, worker_id="worker-2", attempt=1)
    finally:
        finish_refused.disconnect(listen)

    refusal = RefusedFinish.objects.get()
    assert (refusal.job_id, refusal.operation, refusal.worker_id) == (job.pk, "ack", "worker-2")
    assert (refusal.attempt, refusal.held_by, refusal.state) == (1, "worker-1", "active")
    assert heard == [(job.pk, "ack", "worker-2")]


def test_the_record_tells_of_the_completion_and_how_long_it_took(db):
    job = JobFactory(active=True, started_at=ago(90), queue="billing", attempt=2)

    ack(job, worker_id="worker-1")

    event = Event.objects.get()
    assert (event.type, event.subject, event.queue) == ("job.completed", str(job.pk), "billing")
    assert (event.worker_id, event.attempt) == ("worker-1", 2)
    assert list(event.data) == ["duration_ms"]
    assert 90_000 <= event.data["duration_ms"] < 120_000


def test_a_refused_ack_is_no_event(db):
    ack(JobFactory(active=True), worker_id="worker-2")

    assert not Event.objects.exists()


def test_listeners_hear_which_jobs_were_completed(db, django_capture_on_commit_callbacks):
    job, others = JobFactory(active=True), JobFactory(active=True, reserved_by="worker-2")
    heard = []

    def listen(*, job_ids, **kwargs):
        heard.append(job_ids)

    jobs_completed.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            engine.complete([Completion(each.pk, worker_id="worker-1") for each in (job, others)])
    finally:
        jobs_completed.disconnect(listen)

    assert heard == [[job.pk]]


def test_the_errors_of_earlier_attempts_stay(db):
    job = JobFactory(active=True, attempt=2)
    JobErrorFactory(job=job, attempt=1)

    ack(job)

    assert job.errors.count() == 1


# Queries on PostgreSQL


@pytest.mark.postgres
@pytest.mark.parametrize("count", [1, 50])
def test_an_ack_is_one_statement_for_one_job_and_for_many(db, django_assert_num_queries, count):
    jobs = JobFactory.create_batch(count, active=True)

    with django_assert_num_queries(1):
        engine.complete([Completion(job.pk, worker_id="worker-1") for job in jobs])

    assert Job.objects.filter(state=State.COMPLETED).count() == count
