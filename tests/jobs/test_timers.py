"""Effects of time on jobs: they become due, overrun, expire (core §5.2, §6.3)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs import engine
from jobs.models import Event, Job
from jobs.spec.lifecycle import State
from jobs.store.contract import BATCH_SIZE
from tests.factories import JobFactory, QueueFactory, ago, ahead

SECOND = timedelta(seconds=1)


def events_of(job: Job) -> list[str]:
    events = Event.objects.filter(subject=str(job.pk)).order_by("id")
    return list(events.values_list("type", flat=True))


# Due


@pytest.mark.parametrize("state", ["scheduled", "retryable"])
def test_a_job_becomes_available_when_its_time_has_come(db, state):
    job = JobFactory(**{state: True}, scheduled_at=ago(5), enqueued_at=ago(3600), attempt=1)

    assert engine.promote_due() == 1

    job.refresh_from_db()
    assert (job.state, job.attempt, job.attempt_counted) == (State.AVAILABLE, 1, False)
    assert job.enqueued_at > ago(60)
    assert events_of(job) == ["job.enqueued"]


@pytest.mark.parametrize("state", ["scheduled", "retryable"])
def test_no_job_becomes_available_before_its_time(db, state):
    """RET-11: not before the backoff has passed."""
    job = JobFactory(**{state: True}, scheduled_at=ahead(60))

    assert engine.promote_due() == 0

    job.refresh_from_db()
    assert job.state == state


def test_pending_jobs_wait_for_an_activation_and_for_no_clock(db):
    JobFactory(pending=True, scheduled_at=ago(60))

    assert engine.promote_due() == 0


def test_a_paused_queues_jobs_become_available_and_wait_there(db):
    QueueFactory(name="default", paused=True)
    JobFactory(scheduled=True, scheduled_at=ago(5))

    assert engine.promote_due() == 1
    assert engine.claim(["default"]) == []


def test_what_is_due_longest_comes_first_and_batches_are_bounded(db):
    now = timezone.now()
    Job.objects.bulk_create(
        Job(
            created_at=now,
            enqueued_at=now,
            state=State.SCHEDULED,
            scheduled_at=ago(10 + number),
            type=f"job-{number}",
        )
        for number in range(BATCH_SIZE + 1)
    )

    assert engine.promote_due() == BATCH_SIZE
    assert [job.type for job in Job.objects.filter(state=State.SCHEDULED)] == ["job-0"]
    assert engine.promote_due() == 1


# Overrun (core §5.2, `timeout`)


def test_a_job_past_its_timeout_fails_like_any_other(db):
    job = JobFactory(active=True, timeout=2 * SECOND, started_at=ago(5), attempt=1)

    assert engine.time_out() == 1

    job.refresh_from_db()
    assert job.state == State.RETRYABLE
    assert job.retry_delay is not None
    error = job.errors.get()
    assert (error.type, error.code, error.attempt) == ("timeout", "timeout", 1)
    assert error.details["timeout_ms"] == 2000
    about = {"timeout_kind": "execution", "limit_seconds": 2}
    assert about.items() <= error.details.items() and error.details["elapsed_seconds"] >= 5
    assert error.worker_id == "worker-1"
    assert events_of(job) == ["job.timeout", "job.failed", "job.retrying"]
    assert about.items() <= Event.objects.get(type="job.timeout").data.items()


def test_its_policy_decides_what_follows(db):
    last = JobFactory(active=True, timeout=SECOND, started_at=ago(5), attempt=3)
    final = JobFactory(
        active=True,
        timeout=SECOND,
        started_at=ago(5),
        retry={"non_retryable_errors": ["timeout"], "on_exhaustion": "discard"},
    )

    assert engine.time_out() == 2

    last.refresh_from_db()
    final.refresh_from_db()
    assert (last.state, last.dead_letter) == (State.DISCARDED, True)
    assert (final.state, final.dead_letter) == (State.DISCARDED, False)


@pytest.mark.parametrize("timeout", [None, timedelta(hours=1)])
def test_a_job_within_its_time_is_left_alone(db, timeout):
    JobFactory(active=True, timeout=timeout, started_at=ago(5))

    assert engine.time_out() == 0


def test_heartbeats_do_not_lengthen_the_timeout(db):
    """A reservation concerns the worker's life, a timeout the job's (worker §5.4)."""
    job = JobFactory(active=True, timeout=SECOND, started_at=ago(5))
    engine.extend([job.pk], worker_id="worker-1")

    assert engine.time_out() == 1


def test_each_attempt_has_the_whole_timeout(db):
    job = JobFactory(timeout=timedelta(hours=1), attempt=1, started_at=ago(7200))

    engine.claim(["default"])

    assert engine.time_out() == 0
    assert Job.objects.get(pk=job.pk).state == State.ACTIVE


# Expired before it was fetched (core §5.2, `expires_at`)


@pytest.mark.parametrize("state", ["available", "scheduled", "pending", "retryable"])
def test_a_job_that_was_not_fetched_in_time_is_discarded(db, state):
    trait = {} if state == "available" else {state: True}
    job = JobFactory(**trait, expires_at=ago(1), created_at=ago(61))

    assert engine.discard_expired() == 1

    job.refresh_from_db()
    assert (job.state, job.dead_letter) == (State.DISCARDED, False)
    assert job.finished_at is not None
    assert [error.code for error in job.errors.all()] == ["expired"]
    assert events_of(job) == ["job.expired"]
    assert 59_000 <= Event.objects.get().data["ttl_ms"] <= 61_000


def test_a_job_that_was_taken_in_time_may_finish(db):
    job = JobFactory(active=True, expires_at=ago(1))

    assert engine.discard_expired() == 0
    assert engine.complete([engine.Completion(job.pk)])[0].error is None


def test_a_job_with_time_left_is_left_alone(db):
    JobFactory(expires_at=ahead(60))
    JobFactory(expires_at=None)

    assert engine.discard_expired() == 0


def test_a_job_taken_back_after_its_deadline_is_not_run_again(db):
    job = JobFactory(active=True, expires_at=ago(1), reserved_until=ago(1))

    engine.expire()

    assert engine.claim(["default"]) == []
    assert engine.discard_expired() == 1
    assert Job.objects.get(pk=job.pk).state == State.DISCARDED
