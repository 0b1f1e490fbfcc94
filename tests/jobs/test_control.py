"""Verbs of producers and operators: cancel, activate, retry, delete, pause (HTTP §9, §11, §12)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs import engine
from jobs.errors import InvalidTransition, JobNotFound, NotFound
from jobs.models import Event, Job, JobError, Queue
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, ago, ahead

# Cancel


@pytest.mark.parametrize("state", ["available", "scheduled", "pending", "retryable", "active"])
def test_a_job_that_has_not_finished_can_be_cancelled(db, state):
    job = JobFactory(**({} if state == "available" else {state: True}))

    change = engine.cancel(job.pk, cancelled_by="billing", reason="Superseded")

    assert change.previous_state == state
    assert change.job.state == State.CANCELLED
    assert change.job.finished_at is not None
    assert change.job.reserved_until is None
    event = Event.objects.get()
    assert (event.type, event.subject) == ("job.cancelled", str(job.pk))
    assert event.data == {
        "cancelled_by": "billing",
        "reason": "Superseded",
        "previous_state": state,
    }


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_a_finished_job_cannot_be_cancelled(db, state):
    """The public cases decide: 409, not a silent success (conformance README, row 1)."""
    job = JobFactory(**{state: True})

    with pytest.raises(InvalidTransition) as refused:
        engine.cancel(job.pk)

    assert refused.value.details == {"job_id": str(job.pk), "current_state": state}


def test_cancelling_takes_an_active_job_from_its_worker(db):
    job = JobFactory(active=True, reserved_by="worker-1")

    engine.cancel(job.pk)

    assert Event.objects.get().worker_id == "worker-1"
    assert engine.extend([job.pk], worker_id="worker-1") == set()
    (outcome,) = engine.complete([engine.Completion(job.pk, worker_id="worker-1")])
    assert isinstance(outcome.error, InvalidTransition)
    assert Job.objects.get(pk=job.pk).state == State.CANCELLED


def test_a_cancelled_job_is_never_fetched(db):
    engine.cancel(JobFactory().pk)
    engine.cancel(JobFactory(retryable=True, scheduled_at=ago(60)).pk)

    assert engine.promote_due() == 0
    assert engine.claim(["default"], count=5) == []


@pytest.mark.parametrize("verb", [engine.cancel, engine.activate])
def test_a_job_that_does_not_exist_cannot_be_changed(db, verb):
    with pytest.raises(JobNotFound):
        verb(uuid7())


# Activate


def test_a_pending_job_is_activated(db):
    job = JobFactory(pending=True, enqueued_at=ago(3600))

    change = engine.activate(job.pk)

    assert (change.previous_state, change.job.state) == (State.PENDING, State.AVAILABLE)
    assert change.job.enqueued_at > ago(60)
    assert [event.type for event in Event.objects.all()] == ["job.enqueued"]
    assert [claimed.id for claimed in engine.claim(["default"])] == [job.pk]


def test_an_activation_does_not_wait_for_the_time_of_the_job(db):
    job = JobFactory(pending=True, scheduled_at=ahead(3600))

    engine.activate(job.pk)

    job.refresh_from_db()
    assert job.state == State.AVAILABLE


def test_only_pending_jobs_can_be_activated(db):
    job = JobFactory(scheduled=True)

    with pytest.raises(InvalidTransition) as refused:
        engine.activate(job.pk)

    assert "pending" in refused.value.message
    assert refused.value.details == {"job_id": str(job.pk), "current_state": "scheduled"}


# Retry from the dead letter (dead letter §6.1)


def test_a_retried_job_starts_afresh_and_keeps_its_history(db):
    job = JobFactory(
        dead=True,
        attempt=3,
        retry={"max_attempts": 3, "jitter": False},
        retry_delay=timedelta(seconds=4),
        scheduled_at=ago(100),
        enqueued_at=ago(3600),
        unfenced=True,
    )
    JobErrorFactory.create_batch(3, job=job)

    retried = engine.retry_one(job.pk)

    assert (retried.state, retried.attempt, retried.max_attempts) == (State.AVAILABLE, 0, 3)
    assert (retried.dead_letter, retried.finished_at, retried.finished_by) == (False, None, "")
    assert (retried.retry_delay, retried.started_at, retried.scheduled_at) == (None, None, None)
    assert retried.unfenced is False
    assert retried.retry == {"max_attempts": 3, "jitter": False}
    assert retried.enqueued_at > ago(60)
    assert retried.errors.count() == 3
    (claimed,) = engine.claim(["default"])
    assert (claimed.id, claimed.attempt) == (job.pk, 1)


def test_a_retried_job_keeps_its_new_result_although_the_old_ones_time_was_over(db):
    job = JobFactory(dead=True, finished_at=ago(100), result_ttl=timedelta(seconds=50))
    engine.prune_results()

    engine.retry_one(job.pk)
    engine.claim(["default"])
    engine.complete([engine.Completion(job.pk, result="fresh")])

    job.refresh_from_db()
    assert (job.result, job.result_pruned) == ("fresh", False)


def test_a_retried_job_has_all_its_attempts_again(db):
    job = JobFactory(dead=True, attempt=3, max_attempts=3)
    engine.retry([job.pk])

    for expected in (State.RETRYABLE, State.RETRYABLE, State.DISCARDED):
        Job.objects.filter(state=State.RETRYABLE).update(scheduled_at=ago(1))
        engine.claim(["default"])
        (outcome,) = engine.fail([engine.Failure(job.pk)])
        assert outcome.state == expected

    assert engine.retry([job.pk]) == 1


def test_a_job_that_expired_may_run_once_an_operator_says_so(db):
    job = JobFactory(expires_at=ago(1))
    engine.discard_expired()

    engine.retry([job.pk])

    assert [claimed.id for claimed in engine.claim(["default"])] == [job.pk]


def test_a_recovered_job_that_then_expired_starts_at_its_first_attempt_too(db):
    job = JobFactory(attempt=2, attempt_counted=True, expires_at=ago(1))
    engine.discard_expired()

    engine.retry([job.pk])

    (claimed,) = engine.claim(["default"])
    assert claimed.attempt == 1


def test_many_are_retried_at_once_and_the_others_left_alone(db):
    dead = JobFactory.create_batch(3, dead=True)
    done, waiting = JobFactory(completed=True), JobFactory(retryable=True)

    assert engine.retry([job.pk for job in [*dead, done, waiting]] + [uuid7()]) == 3

    assert Job.objects.filter(state=State.AVAILABLE).count() == 3
    events = Event.objects.filter(type="job.enqueued")
    retried = {"retried": True, "previous_state": "discarded"}
    assert [event.data for event in events] == [retried] * 3


@pytest.mark.parametrize("state", ["available", "active", "completed", "cancelled"])
def test_only_discarded_jobs_can_be_retried(db, state):
    job = JobFactory(**({} if state == "available" else {state: True}))

    with pytest.raises(NotFound) as refused:
        engine.retry_one(job.pk)

    assert refused.value.details["resource_type"] == "dead_letter_job"


# Delete


def test_a_deleted_job_is_gone_with_its_history(db):
    job, kept = JobFactory.create_batch(2, dead=True)
    JobErrorFactory(job=job)
    JobErrorFactory(job=kept)

    assert engine.delete_dead([job.pk]) == 1

    assert list(Job.objects.all()) == [kept]
    assert JobError.objects.count() == 1


def test_only_discarded_jobs_can_be_deleted(db):
    jobs = [JobFactory(), JobFactory(active=True), JobFactory(completed=True)]

    assert engine.delete_dead([job.pk for job in jobs]) == 0
    assert Job.objects.count() == 3


# Queues


def test_a_queue_is_paused_and_resumed(db):
    job = JobFactory(queue="billing")

    row = engine.pause("billing", paused_by="ops", reason="Maintenance")
    assert (row.is_paused, row.paused_by, row.pause_reason) == (True, "ops", "Maintenance")
    assert engine.claim(["billing"]) == []

    row = engine.resume("billing", resumed_by="ops")
    assert (row.is_paused, row.paused_by, row.pause_reason) == (False, "", "")
    assert [claimed.id for claimed in engine.claim(["billing"])] == [job.pk]
    assert [event.type for event in Event.objects.filter(type__startswith="queue.")] == [
        "queue.paused",
        "queue.resumed",
    ]


def test_active_jobs_of_a_paused_queue_are_not_affected(db):
    job = JobFactory(active=True)
    engine.pause("default")

    assert engine.extend([job.pk], worker_id="worker-1") == {job.pk}
    assert engine.complete([engine.Completion(job.pk)])[0].error is None


def test_pausing_again_keeps_the_time_of_the_first_pause(db):
    first = engine.pause("default", reason="One")
    again = engine.pause("default", reason="Two")

    assert again.paused_at == first.paused_at
    assert again.pause_reason == "Two"


def test_a_pause_that_ended_by_itself_begins_anew(db):
    QueueFactory(name="default", paused=True, paused_at=ago(7200), paused_until=ago(3600))

    row = engine.pause("default", until=ahead(60))

    assert abs(timezone.now() - row.paused_at) < timedelta(minutes=1)
    assert row.is_paused


def test_a_queue_can_be_paused_before_its_first_job(db):
    engine.pause("tomorrow")

    assert Queue.objects.get(pk="tomorrow").is_paused


def test_an_unknown_queue_cannot_be_resumed(db):
    with pytest.raises(NotFound):
        engine.resume("nowhere")
