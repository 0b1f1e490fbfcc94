"""Workers arrive and leave: registration and deregistration (OJS worker protocol §3, §10.4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from jobs.models import Event, Job
from jobs.spec.lifecycle import State
from jobs.store.contract import BATCH_SIZE
from tests.factories import JobFactory, WorkerFactory, ago
from workers import protocol
from workers.chores import reaper
from workers.lifecycle import WorkerState
from workers.models import Worker
from workers.protocol import Description

STARTED = datetime(2025, 6, 1, 8, tzinfo=UTC)

pytestmark = pytest.mark.django_db


def description(**other) -> Description:
    """The registration of the worker in §3.2."""
    said = {
        "hostname": "web-server-1",
        "pid": 12345,
        "queues": ["email", "default"],
        "concurrency": 10,
        "labels": ["canary", "v2.1"],
        "started_at": STARTED,
    }
    return Description(**(said | other))


def recovered(job) -> tuple[str, int, list[str]]:
    job.refresh_from_db()
    return job.state, job.attempt, [error.type for error in job.errors.all()]


def events_of(worker_id: str) -> list[str]:
    return list(Event.objects.filter(worker_id=worker_id).values_list("type", flat=True))


# Registration (§3.1)


def test_a_registration_stores_what_the_worker_says_of_itself():
    protocol.register("w", description())

    worker = Worker.objects.get(pk="w")
    assert (worker.hostname, worker.pid) == ("web-server-1", 12345)
    assert worker.queues == ["email", "default"], "in the order given"
    assert worker.concurrency == 10
    assert worker.labels == ["canary", "v2.1"]
    assert worker.started_at == STARTED
    assert (worker.state, worker.directive, worker.incarnation) == ("running", "", 1)
    assert worker.registered_at is not None


def test_labels_and_start_are_optional():
    protocol.register("w", description(labels=None, started_at=None))

    worker = Worker.objects.get(pk="w")
    assert (worker.labels, worker.started_at) == ([], None)


def test_a_registration_is_a_sign_of_life():
    protocol.register("w", description())

    assert Worker.objects.live().filter(pk="w").exists()
    assert not Worker.objects.silent().exists()


def test_a_registration_is_recorded_as_an_event():
    protocol.register("w", description())

    (event,) = Event.objects.filter(type="worker.started")
    assert (event.subject, event.data) == ("w", {"queues": ["email", "default"], "concurrency": 10})


# The same process again (§10.4)


def test_a_process_that_registers_again_keeps_its_jobs_and_its_directive():
    protocol.register("w", description())
    Worker.objects.filter(pk="w").direct(WorkerState.QUIET)
    job = JobFactory(active=True, reserved_by="w")

    protocol.register("w", description(queues=["bulk"]))

    worker = Worker.objects.get(pk="w")
    assert (worker.incarnation, worker.directive, worker.queues) == (1, "quiet", ["bulk"])
    assert recovered(job) == (State.ACTIVE, 1, [])


def test_registering_again_leads_no_process_back_from_terminate():
    protocol.register("w", description())
    protocol.beat("w", state=WorkerState.TERMINATE)

    protocol.register("w", description())

    assert protocol.beat("w", state=WorkerState.RUNNING).state == "terminate"


def test_a_worker_known_by_its_heartbeats_may_register_late():
    protocol.beat("w", state=WorkerState.RUNNING)
    job = JobFactory(active=True, reserved_by="w")

    protocol.register("w", description())

    worker = Worker.objects.get(pk="w")
    assert (worker.incarnation, worker.hostname) == (1, "web-server-1")
    assert recovered(job) == (State.ACTIVE, 1, [])


def test_one_that_was_known_by_its_heartbeats_and_ended_is_followed_by_another():
    protocol.beat("w", state=WorkerState.TERMINATE)
    JobFactory()

    protocol.register("w", description(), starts=True)

    worker = Worker.objects.get(pk="w")
    assert (worker.state, worker.incarnation) == (WorkerState.RUNNING, 2)
    assert len(protocol.fetch(["default"], worker_id="w")) == 1


@pytest.mark.parametrize("name", ["hostname", "pid", "started_at"])
def test_what_a_process_does_not_say_does_not_make_it_another(name):
    protocol.register("w", description())
    job = JobFactory(active=True, reserved_by="w")

    protocol.register("w", description(**{name: None}))

    assert Worker.objects.get(pk="w").incarnation == 1
    assert recovered(job) == (State.ACTIVE, 1, [])


def test_a_worker_that_was_taken_for_dead_may_register_again():
    protocol.register("w", description())
    Worker.objects.filter(pk="w").update(last_heartbeat_at=ago(31))
    reaper.declare_dead_workers()

    protocol.register("w", description())

    worker = Worker.objects.live().get(pk="w")
    assert worker.incarnation == 1, "it is the same process"
    assert worker.died_at is None
    away = Event.objects.filter(subject="w", type="worker.stopped")
    assert away.exists(), "and it is known to have been away"
    JobFactory()
    assert len(protocol.fetch(["default"], worker_id="w")) == 1


# The terms of a registration (§3.3)


@pytest.mark.parametrize("before", ["left", "dead", "silent"])
def test_a_registration_gives_the_heartbeat_timeout_that_is_in_force(settings, before):
    WorkerFactory(worker_id="w", heartbeat_timeout=timedelta(seconds=4), **{before: True})
    settings.OJS = {"HEARTBEAT_INTERVAL": 6, "HEARTBEAT_TIMEOUT": 20}

    protocol.register("w", description(pid=54321), starts=True)
    Worker.objects.update(last_heartbeat_at=ago(6))

    assert reaper.declare_dead_workers() == 0
    assert Worker.objects.get(pk="w").heartbeat_timeout == timedelta(seconds=20)


def test_a_worker_keeps_the_heartbeat_timeout_it_was_given_until_it_registers_again(settings):
    """It goes on at the interval that it was given with it."""
    settings.OJS = {"HEARTBEAT_INTERVAL": 6, "HEARTBEAT_TIMEOUT": 20}
    protocol.register("w", description())
    settings.OJS = {"HEARTBEAT_INTERVAL": 1, "HEARTBEAT_TIMEOUT": 4}

    protocol.beat("w", state=WorkerState.RUNNING, description=description())
    Worker.objects.update(last_heartbeat_at=ago(6))

    assert reaper.declare_dead_workers() == 0


OVER_ANOTHER_PROTOCOL = {
    "protocol": "flare",
    "heartbeat_timeout": timedelta(hours=2),
    "capabilities": ["gpu"],
    "job_types": ["report.render"],
    "specs": {"report.render": "sha256:0"},
    "details": {"os": "linux"},
}


def arrive_by_registration():
    protocol.register("w", description())


def arrive_by_heartbeat():
    protocol.beat("w", state=WorkerState.RUNNING, description=description())


@pytest.mark.parametrize("arrive", [arrive_by_registration, arrive_by_heartbeat])
def test_nothing_remains_of_a_worker_of_another_protocol_that_had_the_id(arrive):
    WorkerFactory(worker_id="w", dead=True, **OVER_ANOTHER_PROTOCOL)

    arrive()

    worker = Worker.objects.live().get(pk="w")
    assert {name: getattr(worker, name) for name in OVER_ANOTHER_PROTOCOL} == {
        "protocol": "ojs",
        "heartbeat_timeout": timedelta(seconds=30),
        "capabilities": [],
        "job_types": None,
        "specs": None,
        "details": None,
    }


def test_a_worker_that_comes_back_by_a_fetch_remains_what_it_was():
    WorkerFactory(worker_id="w", dead=True, **OVER_ANOTHER_PROTOCOL)

    protocol.fetch(["default"], worker_id="w")

    worker = Worker.objects.live().get(pk="w")
    assert {name: getattr(worker, name) for name in OVER_ANOTHER_PROTOCOL} == OVER_ANOTHER_PROTOCOL


# A new incarnation under a known id (§3.1)

OTHERS = [
    {"pid": 54321},
    {"hostname": "web-server-2"},
    {"started_at": STARTED + timedelta(seconds=1)},
]


@pytest.mark.parametrize("other", OTHERS, ids=lambda other: next(iter(other)))
def test_another_process_under_a_known_id_is_a_new_incarnation(other):
    protocol.register("w", description())
    protocol.beat("w", state=WorkerState.TERMINATE, active_job_ids=["j"], sequence=9)
    Worker.objects.filter(pk="w").update(directive="terminate")

    protocol.register("w", description(**other))

    worker = Worker.objects.get(pk="w")
    assert worker.incarnation == 2
    assert (worker.state, worker.directive) == ("running", ""), "the old one's state is not its own"
    assert (worker.active_job_ids, worker.sequence) == ([], None)
    assert protocol.beat("w", sequence=1).stale is False, "its heartbeats count from one again"


def test_the_jobs_of_the_old_incarnation_are_recovered_at_once():
    protocol.register("w", description())
    job = JobFactory(active=True, reserved_by="w")
    last = JobFactory(active=True, reserved_by="w", attempt=3, max_attempts=3)
    foreign = JobFactory(active=True, reserved_by="v")

    protocol.register("w", description(pid=54321))

    assert recovered(job) == (State.AVAILABLE, 2, ["worker_death"])
    assert recovered(last) == (State.DISCARDED, 3, ["worker_death"])
    assert recovered(foreign) == (State.ACTIVE, 1, [])


def test_more_jobs_than_one_batch_are_recovered_as_well():
    protocol.register("w", description())
    Job.objects.bulk_create(JobFactory.build_batch(BATCH_SIZE + 5, active=True, reserved_by="w"))

    protocol.register("w", description(pid=54321))

    assert Job.objects.filter(state=State.AVAILABLE).count() == BATCH_SIZE + 5


def test_the_new_incarnation_cannot_settle_what_the_old_one_was_doing():
    protocol.register("w", description())
    job = JobFactory(active=True, reserved_by="w")
    protocol.register("w", description(pid=54321))

    (outcome,) = protocol.ack([protocol.Completion(job.pk, worker_id="w")])

    assert outcome.error is not None and outcome.error.code == "conflict"


def test_who_deregistered_and_registers_again_is_a_new_incarnation():
    protocol.register("w", description())
    protocol.deregister("w")

    protocol.register("w", description())

    worker = Worker.objects.live().get(pk="w")
    assert (worker.incarnation, worker.left_at) == (2, None)


# Deregistration (§3.4)


def test_a_worker_that_deregisters_leaves_the_active_set_at_once():
    worker = WorkerFactory(directive=WorkerState.TERMINATE)

    assert protocol.deregister(worker.pk) is True

    assert not Worker.objects.live().exists()
    gone = Worker.objects.get(pk=worker.pk)
    assert (gone.state, gone.directive) == ("terminated", "")
    assert gone.left_at is not None


def test_leaving_is_recorded_as_a_shutdown_and_not_as_a_death():
    worker = WorkerFactory(started_at=ago(60))
    protocol.deregister(worker.pk)
    Worker.objects.update(last_heartbeat_at=ago(60))

    reaper.sweep()

    (event,) = Event.objects.filter(type="worker.stopped")
    assert event.data["reason"] == "shutdown"
    assert 60_000 <= event.data["uptime_ms"] < 70_000
    assert Worker.objects.get().died_at is None


def test_leaving_twice_or_unknown_is_no_error():
    worker = WorkerFactory()

    assert protocol.deregister(worker.pk) is True
    assert protocol.deregister(worker.pk) is False
    assert protocol.deregister("nobody") is False
    assert events_of(worker.pk) == ["worker.stopped"]


def test_the_end_of_an_earlier_registration_does_not_end_a_later_one():
    before = protocol.register("w", description())
    after = protocol.register("w", description())

    assert protocol.deregister("w", registered_at=before.registered_at) is False
    assert Worker.objects.live().filter(pk="w").exists()
    assert protocol.deregister("w", registered_at=after.registered_at) is True
    assert not Worker.objects.live().exists()


def test_a_worker_that_left_is_given_no_more_jobs():
    worker = WorkerFactory()
    JobFactory()
    protocol.deregister(worker.pk)

    assert protocol.fetch(["default"], worker_id=worker.pk) == []


def test_jobs_a_leaving_worker_still_holds_are_recovered_without_waiting_for_their_timeout():
    worker = WorkerFactory()
    job = JobFactory(active=True, reserved_by=worker.pk)

    protocol.deregister(worker.pk)
    reaper.sweep()

    assert recovered(job) == (State.AVAILABLE, 2, ["worker_death"])
    assert "declared dead" not in job.errors.get().message


def test_a_worker_that_leaves_with_empty_hands_leaves_nothing_to_recover():
    worker = WorkerFactory()
    done = JobFactory(completed=True, finished_by=worker.pk)

    protocol.deregister(worker.pk)

    assert "orphaned-jobs" not in reaper.sweep()
    assert recovered(done) == (State.COMPLETED, 1, [])
