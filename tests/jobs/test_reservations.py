"""Reservations: extended by heartbeats, lost by expiry or with their worker (worker §5, §10)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs import engine
from jobs.models import Event, Job, JobError
from jobs.signals import jobs_reclaimed
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from jobs.store.contract import BATCH_SIZE
from tests.database import atomic, connection
from tests.factories import JobErrorFactory, JobFactory, ago, ahead


def seconds(value: float | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def left(job: Job) -> float:
    """Seconds until the job's reservation expires."""
    job.refresh_from_db()
    return (job.reserved_until - timezone.now()).total_seconds()


# Extending (§5.4)


@pytest.mark.parametrize(
    ("own", "reserved_for", "requested", "at_least", "expected"),
    [
        # The period of the reservation starts again …
        (None, 600, None, None, 600),
        # … or the one that the worker requests …
        (None, 600, 900, None, 900),
        (None, 600, 120, None, 120),
        # … but never less than a job's own.
        (300, 300, 900, None, 900),
        (300, 300, 120, None, 300),
        # A terminating worker's reservations last its grace period.
        (None, 600, None, 900, 900),
        (None, 600, 120, 900, 900),
        (None, 600, 1200, 900, 1200),
        (None, 1800, None, 900, 1800),
        (None, 120, 1200, 900, 1200),
        (None, 1800, 120, 900, 900),
        (300, 300, None, 900, 900),
        (1200, 1200, 120, 900, 1200),
    ],
)
def test_how_long_an_extended_reservation_lasts(
    db, own, reserved_for, requested, at_least, expected
):
    job = JobFactory(
        active=True,
        visibility_timeout=seconds(own),
        reserved_for=seconds(reserved_for),
        reserved_until=ahead(5),
    )

    held = engine.extend(
        [job.pk],
        worker_id="worker-1",
        requested=seconds(requested),
        at_least=seconds(at_least),
    )

    assert held == {job.pk}
    assert expected - 60 < left(job) <= expected


def test_only_jobs_that_the_worker_holds_are_extended(db):
    mine = JobFactory(active=True, reserved_until=ahead(5))
    theirs = JobFactory(active=True, reserved_by="worker-2", reserved_until=ahead(5))
    waiting, done = JobFactory(), JobFactory(completed=True)

    held = engine.extend([mine.pk, theirs.pk, waiting.pk, done.pk, uuid7()], worker_id="worker-1")

    assert held == {mine.pk}
    assert left(theirs) <= 5


def test_jobs_the_heartbeat_does_not_name_are_not_extended(db):
    named, unnamed = JobFactory.create_batch(2, active=True, reserved_until=ahead(5))

    engine.extend([named.pk], worker_id="worker-1")

    assert left(unnamed) <= 5


def test_a_job_fetched_without_a_worker_id_is_adopted_by_the_worker_that_reports_it(db):
    job = JobFactory(active=True, reserved_by="")

    assert engine.extend([job.pk], worker_id="worker-3") == {job.pk}

    job.refresh_from_db()
    assert job.reserved_by == "worker-3"
    assert engine.extend([job.pk], worker_id="worker-4") == set()


def test_a_reservation_whose_time_is_up_can_still_be_extended(db):
    """It has not been reclaimed yet, and the worker is alive."""
    job = JobFactory(active=True, reserved_until=ago(5))

    engine.extend([job.pk], worker_id="worker-1")

    assert engine.expire() == 0


def test_nothing_to_extend_costs_nothing(db, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert engine.extend([], worker_id="worker-1") == set()


# Expiry (§5.5)


def test_an_expired_reservation_gives_the_job_back_with_the_next_attempt_counted(db):
    job = JobFactory(active=True, reserved_until=ago(1), attempt=1, enqueued_at=ago(3600))

    assert engine.expire() == 1

    job.refresh_from_db()
    assert (job.state, job.attempt, job.attempt_counted) == (State.AVAILABLE, 2, True)
    assert (job.reserved_by, job.reserved_until, job.reserved_for) == ("", None, None)
    assert job.enqueued_at > ago(60)
    assert job.started_at is None  # core §6.3
    error = job.errors.get()
    assert (error.attempt, error.type, error.code) == (1, *["visibility_timeout"] * 2)
    assert error.worker_id == "worker-1"
    assert error.message


def test_one_crash_costs_exactly_one_attempt(db):
    job = JobFactory(active=True, reserved_until=ago(1), attempt=1, max_attempts=3)

    engine.expire()
    (again,) = engine.claim(["default"], worker_id="worker-2")

    assert (again.id, again.attempt) == (job.pk, 2)
    assert [error["attempt"] for error in again.errors] == [1]


def test_an_expired_reservation_with_no_attempts_left_discards_the_job(db):
    job = JobFactory(active=True, reserved_until=ago(1), attempt=3, max_attempts=3)

    engine.expire()

    job.refresh_from_db()
    assert (job.state, job.attempt) == (State.DISCARDED, 3)
    assert job.finished_at is not None
    assert [error.type for error in job.errors.all()] == ["visibility_timeout"]


@pytest.mark.parametrize("max_attempts", [0, 1])
def test_a_job_that_may_run_once_is_not_run_again_after_a_crash(db, max_attempts):
    job = JobFactory(active=True, reserved_until=ago(1), attempt=1, max_attempts=max_attempts)

    engine.expire()

    job.refresh_from_db()
    assert job.state == State.DISCARDED


@pytest.mark.parametrize(
    ("retry", "kept"),
    [
        (None, True),
        ({"max_attempts": 1}, True),
        ({"on_exhaustion": None}, True),
        ({"on_exhaustion": "dead_letter"}, True),
        ({"on_exhaustion": "discard"}, False),
        ({"onExhaustion": "discard"}, False),
        ({"on_exhaustion": None, "onExhaustion": "discard"}, False),
        ({"on_exhaustion": "dead_letter", "onExhaustion": "discard"}, True),
    ],
)
def test_who_is_kept_in_the_dead_letter_after_the_last_crash(db, retry, kept):
    job = JobFactory(active=True, reserved_until=ago(1), attempt=3, retry=retry)

    engine.expire()

    job.refresh_from_db()
    assert (job.state, job.dead_letter) == (State.DISCARDED, kept)


def test_a_crash_is_retried_whatever_the_policy_says_of_errors(db):
    """Retry §9.2: timeouts are always retryable."""
    policy = {"non_retryable_errors": ["visibility_timeout", "*", ".*"]}
    job = JobFactory(active=True, reserved_until=ago(1), retry=policy)

    engine.expire()

    job.refresh_from_db()
    assert job.state == State.AVAILABLE


def test_reservations_that_still_run_are_left_alone(db):
    job = JobFactory(active=True, reserved_until=ahead(60))
    JobFactory(retryable=True)
    JobFactory(completed=True)

    assert engine.expire() == 0

    job.refresh_from_db()
    assert job.state == State.ACTIVE
    assert not JobError.objects.exists()


def test_the_history_keeps_earlier_attempts(db):
    job = JobFactory(active=True, reserved_until=ago(1), attempt=2)
    JobErrorFactory(job=job, attempt=1)

    engine.expire()

    assert [error.attempt for error in job.errors.all()] == [1, 2]


def test_a_batch_is_bounded_and_the_next_takes_the_rest(db):
    now = timezone.now()
    Job.objects.bulk_create(
        Job(
            created_at=now,
            enqueued_at=now,
            state=State.ACTIVE,
            attempt=1,
            reserved_for=timedelta(minutes=30),
            reserved_until=ago(1),
            started_at=now,
        )
        for _ in range(BATCH_SIZE + 1)
    )

    assert [engine.expire(), engine.expire(), engine.expire()] == [BATCH_SIZE, 1, 0]
    assert Job.objects.filter(state=State.AVAILABLE).count() == BATCH_SIZE + 1


# Reclaiming jobs of dead workers (§10.2)


def test_the_jobs_of_a_dead_worker_are_taken_back_before_their_time(db):
    job = JobFactory(active=True, reserved_until=ahead(600), reserved_by="worker-1")
    other = JobFactory(active=True, reserved_by="worker-2")

    engine.reclaim(["worker-1"])

    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.state, job.attempt) == (State.AVAILABLE, 2)
    assert [error.type for error in job.errors.all()] == ["worker_death"]
    assert other.state == State.ACTIVE


@pytest.mark.parametrize("verb", ["complete", "fail"])
def test_a_job_that_was_taken_back_is_no_longer_its_old_workers(db, verb):
    job = JobFactory(active=True, reserved_until=ago(1), reserved_by="worker-1", attempt=1)
    engine.expire()
    engine.claim(["default"], worker_id="worker-1")
    late = engine.Completion if verb == "complete" else engine.Failure

    (outcome,) = getattr(engine, verb)([late(job.pk, worker_id="worker-1", attempt=1)])

    job.refresh_from_db()
    assert outcome.error is not None
    assert (job.state, job.attempt) == (State.ACTIVE, 2)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_being_settled_right_now_is_left_alone():
    settled = JobFactory(active=True, reserved_until=ago(1))
    lost = JobFactory(active=True, reserved_until=ago(1))
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM ojs_jobs_job WHERE id = %s FOR UPDATE", [settled.pk])
            with atomic():
                assert engine.expire() == 1
            cursor.execute("ROLLBACK")
    finally:
        other.close()

    assert Job.objects.get(pk=lost.pk).state == State.AVAILABLE
    assert Job.objects.get(pk=settled.pk).state == State.ACTIVE


# Events and signals


def test_the_record_tells_of_the_crash_and_of_what_follows(db):
    again = JobFactory(active=True, reserved_until=ago(1), attempt=1)
    spent = JobFactory(active=True, reserved_until=ago(1), attempt=3)

    engine.expire()

    def recorded_events(job):
        events = Event.objects.filter(subject=str(job.pk)).order_by("id")
        return {event.type: event for event in events}

    retried, ended = recorded_events(again), recorded_events(spent)
    assert list(retried) == ["job.stalled", "job.failed", "job.retrying"]
    assert list(ended) == [
        *("job.stalled", "job.failed"),
        *("job.retry_exhausted", "job.discarded", "job.dead_lettered"),
    ]
    stalled = retried["job.stalled"]
    assert stalled.data["timeout_kind"] == "stalled" and stalled.attempt == 1
    assert stalled.data["elapsed_seconds"] > stalled.data["limit_seconds"] > 0
    failure = retried["job.failed"]
    assert (failure.worker_id, failure.attempt, failure.queue) == ("worker-1", 1, "default")
    assert failure.data["state"] == "available"
    assert failure.data["error"]["code"] == "visibility_timeout"
    assert failure.data["error"]["retryable"] is True
    assert retried["job.retrying"].data["max_attempts"] == 3
    assert ended["job.failed"].data["error"]["retryable"] is False
    assert ended["job.discarded"].data["total_attempts"] == 3
    assert ended["job.discarded"].data["last_error"]["code"] == "visibility_timeout"


def test_the_error_of_an_expiry_says_how_long_nothing_was_heard(db, api):
    """OJS timeouts §8, §11.1; even if no events are recorded."""
    hour = timedelta(hours=1)
    job = JobFactory(active=True, reserved_until=ago(90), reserved_for=hour, attempt=1)
    odd = JobFactory(active=True, reserved_until=ago(90), reserved_for=timedelta(seconds=0.25))

    engine.expire()

    error = job.errors.get().details
    assert error == Event.objects.get(type="job.stalled", subject=str(job.pk)).data
    assert (error["timeout_kind"], repr(error["limit_seconds"])) == ("stalled", "3600")
    assert error["elapsed_seconds"] >= 3690
    assert odd.errors.get().details["limit_seconds"] == 0.25
    assert api.job(str(job.pk))["error"].items() >= error.items()


def test_the_error_of_an_expiry_says_it_where_no_events_are_recorded(db, settings):
    settings.OJS = {"RECORD_EVENTS": False}
    job = JobFactory(active=True, reserved_until=ago(90), reserved_for=timedelta(hours=1))

    engine.expire()

    assert job.errors.get().details["limit_seconds"] == 3600


def test_nothing_is_recorded_where_events_are_off(db, settings):
    settings.OJS = {"RECORD_EVENTS": False}
    JobFactory(active=True, reserved_until=ago(1))

    engine.expire()

    assert JobError.objects.count() == 1
    assert not Event.objects.exists()


def test_listeners_hear_how_many_and_why(db, django_capture_on_commit_callbacks):
    JobFactory.create_batch(2, active=True, reserved_until=ago(1))
    heard = []

    def listen(*, count, error_type, **kwargs):
        heard.append((count, error_type))

    jobs_reclaimed.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            engine.expire()
            engine.expire()
    finally:
        jobs_reclaimed.disconnect(listen)

    assert heard == [(2, "visibility_timeout")]


@pytest.mark.postgres
def test_a_batch_is_taken_back_in_one_statement(db, django_assert_num_queries):
    JobFactory.create_batch(20, active=True, reserved_until=ago(1))

    # One, between the two for the savepoint.
    with django_assert_num_queries(3):
        assert engine.expire() == 20
