"""Reclaimed jobs: expired reservations, overrun jobs, dead workers (OJS worker §5.5, §10)."""

from __future__ import annotations

import logging
import re
import threading
from datetime import timedelta

import pytest
from django.db import connections

from jobs import engine
from jobs.models import Event, Job
from jobs.spec.lifecycle import State
from tests.database import atomic
from tests.factories import JobFactory, QueueFactory, WorkerFactory, ago, ahead
from workers import protocol
from workers.chores import reaper
from workers.lifecycle import WorkerState
from workers.models import Worker
from workers.signals import workers_died

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def queue(db):
    """The queue of all jobs here, which their enqueue would have made."""
    QueueFactory(name="default")


def story(job: Job) -> tuple[str, int, list[tuple[int, str]]]:
    job.refresh_from_db()
    return job.state, job.attempt, [(error.attempt, error.type) for error in job.errors.all()]


# Visibility timeouts (§5.5)


def test_an_expired_reservation_returns_the_job_counts_the_attempt_and_says_why():
    job = JobFactory(active=True, reserved_by="w", reserved_until=ago(1))

    assert reaper.sweep() == {"expired-reservations": 1}

    assert story(job) == (State.AVAILABLE, 2, [(1, "visibility_timeout")])
    assert (job.reserved_by, job.reserved_until) == ("", None)
    (error,) = job.errors.all()
    assert error.worker_id == "w"
    assert error.message


@pytest.mark.parametrize(("on_exhaustion", "kept"), [(None, True), ("discard", False)])
def test_an_expired_reservation_with_no_attempts_left_discards_the_job(on_exhaustion, kept):
    retry = {"on_exhaustion": on_exhaustion} if on_exhaustion else None
    job = JobFactory(active=True, reserved_until=ago(1), attempt=3, max_attempts=3, retry=retry)

    reaper.sweep()

    assert story(job) == (State.DISCARDED, 3, [(3, "visibility_timeout")])
    assert job.finished_at is not None
    assert job.dead_letter is kept


def test_a_reservation_that_still_runs_is_left_alone():
    job = JobFactory(active=True, reserved_until=ahead(5))

    assert reaper.sweep() == {}
    assert story(job) == (State.ACTIVE, 1, [])


def test_a_job_fetched_without_a_worker_id_expires_like_any_other():
    job = JobFactory(active=True, reserved_by="", reserved_until=ago(1))

    reaper.sweep()

    assert story(job) == (State.AVAILABLE, 2, [(1, "visibility_timeout")])


def test_one_crash_costs_one_attempt_and_the_limit_is_never_passed():
    job = JobFactory(max_attempts=3)
    attempts = []

    while claimed := protocol.fetch(["default"], worker_id="w"):
        attempts += [one.attempt for one in claimed]
        Job.objects.update(reserved_until=ago(1))
        reaper.sweep()

    assert attempts == [1, 2, 3]
    assert story(job)[:2] == (State.DISCARDED, 3)
    assert [error.attempt for error in job.errors.all()] == [1, 2, 3]


def test_an_expiry_is_recorded_as_events():
    again = JobFactory(active=True, reserved_until=ago(1))
    last = JobFactory(active=True, reserved_until=ago(1), attempt=3)

    reaper.sweep()

    recorded = Event.objects.values_list("type", flat=True)
    assert list(recorded.filter(subject=str(again.pk))) == [
        "job.stalled",
        "job.failed",
        "job.retrying",
    ]
    assert list(recorded.filter(subject=str(last.pk))) == [
        "job.stalled",
        "job.failed",
        "job.retry_exhausted",
        "job.discarded",
        "job.dead_lettered",
    ]


def test_the_error_of_a_workers_death_says_how_long_it_was_silent(api):
    """OJS timeouts §8."""
    minute = timedelta(minutes=1)
    WorkerFactory(worker_id="gone", last_heartbeat_at=ago(90), heartbeat_timeout=minute)
    WorkerFactory(worker_id="left", state="terminated", left_at=ago(5), last_heartbeat_at=ago(90))
    lost = JobFactory(active=True, reserved_by="gone")
    left = JobFactory(active=True, reserved_by="left")

    reaper.sweep()

    error = lost.errors.get().details
    assert (error["timeout_kind"], repr(error["limit_seconds"])) == ("stalled", "60")
    assert error["elapsed_seconds"] >= 90
    assert api.job(str(lost.pk))["error"].items() >= error.items()
    assert (left.errors.get().type, left.errors.get().details) == ("worker_death", None)


def test_a_fetch_and_a_look_write_the_time_of_an_error_alike(api):
    job = JobFactory(active=True, reserved_until=ago(1))
    reaper.sweep()

    (fetched,) = api.fetch("default", worker_id="w")

    (seen,) = api.job(str(job.pk))["errors"]
    assert fetched["errors"] == [seen]
    assert re.fullmatch(r"....-..-..T..:..:..\.[0-9]{3}Z", seen["occurred_at"])
    assert seen["timestamp"] == seen["occurred_at"]


# Execution timeouts (OJS core §5.2)


def test_a_job_that_runs_longer_than_its_timeout_fails_and_its_policy_decides():
    long = JobFactory(active=True, timeout=timedelta(seconds=2), started_at=ago(3))
    last = JobFactory(active=True, timeout=timedelta(seconds=2), started_at=ago(3), attempt=3)
    short = JobFactory(active=True, timeout=timedelta(seconds=2), started_at=ago(1))
    free = JobFactory(active=True, started_at=ago(9999))

    assert reaper.sweep() == {"timeouts": 2}

    assert story(long) == (State.RETRYABLE, 1, [(1, "timeout")])
    assert story(last) == (State.DISCARDED, 3, [(3, "timeout")])
    assert story(short)[0] == story(free)[0] == State.ACTIVE


def test_heartbeats_extend_the_reservation_but_not_the_execution_timeout():
    job = JobFactory(active=True, timeout=timedelta(seconds=2), started_at=ago(3))
    protocol.beat("worker-1", active_job_ids=[str(job.pk)])

    reaper.sweep()

    assert story(job)[0] == State.RETRYABLE


# Dead workers (§10.1, §10.2)


def test_a_worker_is_declared_dead_after_its_heartbeat_timeout_and_not_before():
    alive, dead = WorkerFactory(last_heartbeat_at=ago(28)), WorkerFactory(last_heartbeat_at=ago(31))

    assert reaper.sweep() == {"dead-workers": 1}

    assert list(Worker.objects.live()) == [alive]
    dead.refresh_from_db()
    assert (dead.state, dead.died_at is not None) == (WorkerState.TERMINATED, True)


def test_the_timeout_is_the_sites_to_choose(settings):
    settings.OJS = {"HEARTBEAT_TIMEOUT": 5}
    worker = WorkerFactory(last_heartbeat_at=ago(6))
    assert worker.heartbeat_timeout == timedelta(seconds=5)

    assert reaper.declare_dead_workers() == 1


@pytest.mark.parametrize("state", [WorkerState.QUIET, WorkerState.TERMINATE])
def test_a_draining_worker_that_falls_silent_is_dead_too(state):
    worker = WorkerFactory(state=state, silent=True)
    job = JobFactory(active=True, reserved_by=worker.pk)

    reaper.sweep()

    assert story(job) == (State.AVAILABLE, 2, [(1, "worker_death")])


def test_a_brief_delay_costs_nothing():
    worker = WorkerFactory(last_heartbeat_at=ago(28))
    job = JobFactory(active=True, reserved_by=worker.pk)

    reaper.sweep()
    protocol.beat(worker.pk, active_job_ids=[str(job.pk)])
    Worker.objects.update(last_heartbeat_at=ago(28))
    reaper.sweep()

    assert story(job) == (State.ACTIVE, 1, [])
    assert not Worker.objects.get().died_at


def test_the_jobs_of_a_dead_worker_are_recovered_long_before_their_visibility_timeout():
    worker = WorkerFactory(silent=True)
    job = JobFactory(active=True, reserved_by=worker.pk, reserved_until=ahead(1700))

    assert reaper.sweep() == {"dead-workers": 1, "orphaned-jobs": 1}

    assert story(job) == (State.AVAILABLE, 2, [(1, "worker_death")])
    (error,) = job.errors.all()
    assert error.worker_id == worker.pk


def test_reported_and_unreported_jobs_of_a_dead_worker_are_recovered_and_no_others():
    """The union of the last heartbeat's jobs and of those fetched since (docs/architecture.md)."""
    reported, fetched = JobFactory.create_batch(2, active=True, reserved_by="w")
    moved_on = JobFactory(active=True, reserved_by="v")
    WorkerFactory(worker_id="v")
    WorkerFactory(
        worker_id="w", silent=True, active_job_ids=[str(reported.pk), str(moved_on.pk), "x"]
    )

    reaper.sweep()

    assert story(reported)[0] == story(fetched)[0] == State.AVAILABLE
    assert story(moved_on) == (State.ACTIVE, 1, [])


def test_a_dead_workers_job_with_no_attempts_left_is_discarded():
    worker = WorkerFactory(silent=True)
    job = JobFactory(active=True, reserved_by=worker.pk, attempt=3)

    reaper.sweep()

    assert story(job) == (State.DISCARDED, 3, [(3, "worker_death")])
    assert job.dead_letter


def test_a_job_that_expired_already_is_not_recovered_a_second_time():
    worker = WorkerFactory(silent=True)
    job = JobFactory(active=True, reserved_by=worker.pk, reserved_until=ago(1))
    engine.expire()

    reaper.sweep()

    assert story(job) == (State.AVAILABLE, 2, [(1, "visibility_timeout")])


def test_a_recovered_job_is_given_to_the_next_worker_as_its_second_attempt():
    worker = WorkerFactory(silent=True)
    job = JobFactory(active=True, reserved_by=worker.pk)
    reaper.sweep()

    (claimed,) = protocol.fetch(["default"], worker_id="another")

    assert (claimed.id, claimed.attempt) == (job.pk, 2)
    assert [error["type"] for error in claimed.errors] == ["worker_death"]


def test_a_death_is_an_event_a_signal_and_a_line_in_the_log(
    caplog, django_capture_on_commit_callbacks
):
    worker = WorkerFactory(silent=True, directive=WorkerState.QUIET, active_job_ids=["j"])
    died = []

    def receiver(worker_ids, **kwargs):
        died.append(worker_ids)

    workers_died.connect(receiver)
    try:
        with django_capture_on_commit_callbacks(execute=True), caplog.at_level(logging.WARNING):
            reaper.sweep()
    finally:
        workers_died.disconnect(receiver)

    assert died == [[worker.pk]]
    assert f"{worker.pk!r} was declared dead" in caplog.text
    (event,) = Event.objects.filter(type="worker.stopped")
    assert (event.subject, event.data["reason"]) == (worker.pk, "error")
    worker.refresh_from_db()
    assert (worker.directive, worker.active_job_ids) == ("quiet", [])


@pytest.mark.parametrize("state", [WorkerState.QUIET, WorkerState.TERMINATE])
def test_a_worker_that_drained_and_fell_silent_has_left_without_an_alarm(
    caplog, django_capture_on_commit_callbacks, state
):
    """Public clients stop their heartbeats while they drain, and never deregister (CLIENTS.md)."""
    worker = WorkerFactory(state=state, silent=True)

    with caplog.at_level(logging.INFO), django_capture_on_commit_callbacks(execute=True):
        assert reaper.sweep() == {"dead-workers": 1}

    worker.refresh_from_db()
    assert (worker.state, worker.died_at) == (WorkerState.TERMINATED, None)
    assert worker.left_at is not None
    assert Event.objects.get(type="worker.stopped").data["reason"] == "shutdown"
    assert "dead" not in caplog.text
    assert f"{worker.pk!r} left" in caplog.text


def test_a_death_is_declared_once():
    WorkerFactory(silent=True)

    assert reaper.sweep() == {"dead-workers": 1}
    assert reaper.sweep() == {}


def test_a_crash_between_death_and_recovery_is_healed_by_the_next_round():
    worker = WorkerFactory(silent=True)
    job = JobFactory(active=True, reserved_by=worker.pk)
    reaper.declare_dead_workers()
    assert story(job)[0] == State.ACTIVE

    assert reaper.sweep() == {"orphaned-jobs": 1}


def test_a_worker_that_speaks_again_before_its_jobs_were_taken_keeps_them():
    worker = WorkerFactory(silent=True)
    job = JobFactory(active=True, reserved_by=worker.pk)
    reaper.declare_dead_workers()

    reply = protocol.beat(worker.pk, active_job_ids=[str(job.pk)])
    reaper.sweep()

    assert reply.jobs_extended == [str(job.pk)]
    assert story(job) == (State.ACTIVE, 1, [])


def test_jobs_of_an_unknown_worker_wait_for_their_visibility_timeout():
    job = JobFactory(active=True, reserved_by="never-seen")

    reaper.sweep()

    assert story(job)[0] == State.ACTIVE


def test_recovery_works_on_sets(django_assert_max_num_queries):
    WorkerFactory.create_batch(20, silent=True)
    for worker in Worker.objects.all():
        JobFactory.create_batch(5, active=True, reserved_by=worker.pk)

    with django_assert_max_num_queries(30):
        done = reaper.sweep(["dead-workers", "orphaned-jobs"])

    assert done == {"dead-workers": 20, "orphaned-jobs": 100}


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_worker_whose_heartbeat_is_being_recorded_is_not_dead():
    """A locked row is a heartbeat in progress (§10.3; docs/architecture.md)."""
    worker = WorkerFactory(silent=True)
    locked, looked = threading.Event(), threading.Event()

    def heartbeat_in_progress():
        try:
            with atomic():
                list(Worker.objects.select_for_update())
                locked.set()
                looked.wait(120)
        finally:
            connections.close_all()

    other = threading.Thread(target=heartbeat_in_progress)
    other.start()
    try:
        assert locked.wait(120)
        assert reaper.declare_dead_workers() == 0
    finally:
        looked.set()
        other.join()
    assert reaper.declare_dead_workers() == 1
    worker.refresh_from_db()
    assert worker.died_at is not None


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_being_settled_is_not_taken_back():
    job = JobFactory(active=True, reserved_until=ago(1))
    locked, looked = threading.Event(), threading.Event()

    def ack_in_progress():
        try:
            with atomic():
                protocol.ack([protocol.Completion(job.pk, "worker-1")])
                locked.set()
                looked.wait(120)
        finally:
            connections.close_all()

    other = threading.Thread(target=ack_in_progress)
    other.start()
    try:
        assert locked.wait(120)
        assert engine.expire() == 0
    finally:
        looked.set()
        other.join()
    assert engine.expire() == 0
    assert story(job) == (State.COMPLETED, 1, [])


# Due and expired jobs


def test_what_fell_due_becomes_available():
    due = [JobFactory(**{state: True}, scheduled_at=ago(1)) for state in ("scheduled", "retryable")]
    later = JobFactory(scheduled=True)

    assert reaper.sweep() == {"due-jobs": 2}

    assert [story(job)[0] for job in due] == [State.AVAILABLE] * 2
    assert story(later)[0] == State.SCHEDULED


def test_what_expired_before_it_ran_is_discarded():
    job = JobFactory(expires_at=ago(1))

    assert reaper.sweep() == {"expired-jobs": 1}
    assert story(job) == (State.DISCARDED, 0, [(0, "expired")])
