"""BEAT: signs of life, extensions, and the reply (OJS worker protocol §4, §5.4, §10.3)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.utils import timezone

from jobs.models import Event
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, WorkerFactory, ago, ahead
from workers import conformance, protocol
from workers.chores import reaper
from workers.lifecycle import WorkerState
from workers.models import Worker
from workers.protocol import Description

pytestmark = pytest.mark.django_db

TERMINATE = WorkerState.TERMINATE
STARTED = datetime(2026, 6, 1, 8, tzinfo=UTC)
BEFORE = Description(hostname="web-1", pid=1, started_at=STARTED)
AFTER = Description(hostname="web-1", pid=2, started_at=STARTED + timedelta(minutes=5))


def without(description, *names):
    return replace(description, **dict.fromkeys(names))


def soon(seconds: float):
    """`seconds` from now, with a tolerance for a busy machine."""
    return pytest.approx(timezone.now() + timedelta(seconds=seconds), abs=timedelta(seconds=10))


def reserved_until(job):
    job.refresh_from_db()
    return job.reserved_until


# Liveness (§4.1, §10.1)


def test_a_heartbeat_is_recorded_as_a_sign_of_life():
    worker = WorkerFactory(last_heartbeat_at=ago(20))

    protocol.beat(worker.pk, state=WorkerState.RUNNING, active_job_ids=["j1", "j2"])

    worker.refresh_from_db()
    assert worker.last_heartbeat_at == soon(0)
    assert worker.active_job_ids == ["j1", "j2"]


def test_a_worker_is_discovered_by_its_heartbeat_alone():
    reply = protocol.beat("w", state=WorkerState.RUNNING)

    assert reply.state == "running"
    worker = Worker.objects.live().get(pk="w")
    assert worker.registered_at is None
    assert [event.type for event in Event.objects.all()] == ["worker.started"]


def test_a_discovered_worker_is_what_it_says_it_is():
    assert protocol.beat("w", state=WorkerState.QUIET).state == "quiet"
    JobFactory()
    assert protocol.fetch(["default"], worker_id="w") == []


def test_a_heartbeat_may_repeat_or_correct_the_description():
    started = datetime(2025, 6, 1, 8, tzinfo=UTC)
    worker = WorkerFactory(labels=["canary"], concurrency=10)

    said = Description(
        hostname="web-server-2", pid=7, queues=["bulk"], concurrency=5, started_at=started
    )
    protocol.beat(worker.pk, description=said)

    worker.refresh_from_db()
    assert (worker.hostname, worker.pid, worker.queues) == ("web-server-2", 7, ["bulk"])
    assert (worker.concurrency, worker.started_at) == (5, started)
    assert worker.labels == ["canary"], "what was not said stays"


def test_what_a_worker_said_when_it_arrived_no_heartbeat_changes():
    worker = WorkerFactory(capabilities=["gpu"])

    said = Description(project="acme", job_types=["a"], capabilities=[], specs={}, details={})
    protocol.beat(worker.pk, description=said)

    worker.refresh_from_db()
    assert (worker.project, worker.job_types, worker.capabilities) == ("", None, ["gpu"])
    assert (worker.specs, worker.details) == (None, None)


def test_a_discovered_worker_is_described_by_its_heartbeat():
    protocol.beat("w", description=Description(queues=["email"], labels=["canary"], concurrency=2))

    worker = Worker.objects.get(pk="w")
    assert (worker.queues, worker.labels, worker.concurrency) == (["email"], ["canary"], 2)


def test_a_heartbeat_without_a_list_of_jobs_says_nothing_about_them():
    worker = WorkerFactory(active_job_ids=["j1"])

    protocol.beat(worker.pk)
    worker.refresh_from_db()
    assert worker.active_job_ids == ["j1"]

    protocol.beat(worker.pk, active_job_ids=[])
    worker.refresh_from_db()
    assert worker.active_job_ids == []


def test_a_worker_that_goes_quiet_is_recorded_as_an_event_once():
    worker = WorkerFactory()
    for state in (WorkerState.QUIET, WorkerState.QUIET, WorkerState.RUNNING):
        protocol.beat(worker.pk, state=state)

    assert [event.type for event in Event.objects.all()] == ["worker.quiet"]


# Extension (§5.4)


@pytest.mark.parametrize(
    ("own", "reserved_for", "requested", "seconds"),
    [
        # The period of the reservation starts again, whatever determined it.
        (None, 1800, None, 1800),
        (None, 60, None, 60),
        (7200, 7200, None, 7200),
        # The heartbeat's request, unless the job's own timeout is longer.
        (None, 1800, 120, 120),
        (60, 60, 120, 120),
        (7200, 7200, 120, 7200),
    ],
    ids=[
        "default",
        "of the fetch",
        "of the job",
        "of the heartbeat",
        "of the heartbeat, being longer",
        "of the job, being longer",
    ],
)
def test_a_heartbeat_resets_the_full_visibility_timeout(own, reserved_for, requested, seconds):
    job = JobFactory(
        active=True,
        visibility_timeout=own and timedelta(seconds=own),
        reserved_for=timedelta(seconds=reserved_for),
        reserved_until=ahead(1),
    )

    reply = protocol.beat(
        "worker-1",
        active_job_ids=[str(job.pk)],
        requested=requested and timedelta(seconds=requested),
    )

    assert reply.jobs_extended == [str(job.pk)]
    assert reserved_until(job) == soon(seconds)


def test_a_heartbeat_extends_again_by_the_reservation_and_not_by_the_last_request():
    job = JobFactory(active=True, reserved_for=timedelta(seconds=1800))
    ids = [str(job.pk)]

    protocol.beat("worker-1", active_job_ids=ids, requested=timedelta(seconds=120))
    protocol.beat("worker-1", active_job_ids=ids)

    assert reserved_until(job) == soon(1800)


def test_only_the_jobs_named_are_extended():
    WorkerFactory(worker_id="worker-1")
    deadline = ahead(60)
    named, unnamed = JobFactory.create_batch(2, active=True, reserved_until=deadline)

    protocol.beat("worker-1", active_job_ids=[str(named.pk)])

    assert reserved_until(named) == soon(1800)
    assert reserved_until(unnamed) == deadline


def test_an_overdue_job_not_yet_reclaimed_is_saved_by_a_heartbeat():
    job = JobFactory(active=True, reserved_until=ago(1))

    protocol.beat("worker-1", active_job_ids=[str(job.pk)])
    reaper.sweep()

    job.refresh_from_db()
    assert (job.state, job.attempt) == (State.ACTIVE, 1)


def test_jobs_the_worker_does_not_hold_are_reported_as_lost_and_left_alone():
    deadline = ahead(60)
    foreign = JobFactory(active=True, reserved_by="worker-2", reserved_until=deadline)
    reclaimed = JobFactory(attempt=2, attempt_counted=True)
    finished = JobFactory(completed=True)
    own = JobFactory(active=True)
    names = [str(job.pk) for job in (foreign, reclaimed, finished)] + [str(uuid4()), "job_1", ""]

    reply = protocol.beat("worker-1", active_job_ids=[*names, str(own.pk)])

    assert reply.jobs_lost == names
    assert reply.jobs_extended == [str(own.pk)]
    assert reserved_until(foreign) == deadline
    foreign.refresh_from_db()
    assert foreign.reserved_by == "worker-2"
    for job, state in ((reclaimed, State.AVAILABLE), (finished, State.COMPLETED)):
        job.refresh_from_db()
        assert job.state == state


def test_jobs_are_named_in_the_reply_as_the_worker_spelled_them():
    job = JobFactory(active=True)
    spelled = str(job.pk).upper()

    assert protocol.beat("worker-1", active_job_ids=[spelled]).jobs_extended == [spelled]


def test_a_job_fetched_without_a_worker_id_is_adopted_by_the_first_that_runs_it():
    job = JobFactory(active=True, reserved_by="", reserved_until=ahead(1))
    ids = [str(job.pk)]

    assert protocol.beat("worker-1", active_job_ids=ids).jobs_extended == ids
    assert protocol.beat("worker-2", active_job_ids=ids).jobs_lost == ids

    job.refresh_from_db()
    assert job.reserved_by == "worker-1"
    assert job.reserved_until == soon(1800)


@pytest.mark.parametrize("requested", [None, 1])
@pytest.mark.parametrize("how", ["reported", "directed"])
def test_reservations_of_a_terminating_worker_last_its_grace_period(how, requested):
    """Public Python and JavaScript workers send no heartbeats while they drain (CLIENTS.md §2)."""
    worker = WorkerFactory(directive=WorkerState.TERMINATE if how == "directed" else "")
    short, long = (
        JobFactory(active=True, reserved_by=worker.pk, reserved_for=timedelta(seconds=seconds))
        for seconds in (1, 1800)
    )

    protocol.beat(
        worker.pk,
        state=WorkerState.TERMINATE if how == "reported" else WorkerState.RUNNING,
        active_job_ids=[str(short.pk), str(long.pk)],
        requested=requested and timedelta(seconds=requested),
    )

    assert reserved_until(short) >= ahead(20), "25 s, less what the test took"
    assert reserved_until(long) == soon(25 if requested else 1800)


# Sequence numbers (§10.3)


@pytest.mark.parametrize("late", [1, 4, 5])
def test_a_heartbeat_that_was_overtaken_is_a_sign_of_life_and_changes_nothing_else(late):
    worker = WorkerFactory()
    job = JobFactory(active=True, reserved_by=worker.pk)
    ids = [str(job.pk)]
    protocol.beat(worker.pk, state=WorkerState.QUIET, active_job_ids=ids, sequence=5)
    deadline = ahead(60)
    Worker.objects.update(last_heartbeat_at=ago(20))
    type(job).objects.update(reserved_until=deadline)

    reply = protocol.beat(
        worker.pk,
        state=WorkerState.RUNNING,
        active_job_ids=[],
        sequence=late,
        description=Description(concurrency=99),
    )
    extension = protocol.beat(worker.pk, active_job_ids=ids, sequence=late)

    assert (reply.stale, reply.state) == (True, "quiet"), "it still hears what it shall be"
    assert (extension.stale, extension.jobs_extended, extension.jobs_lost) == (True, [], [])
    worker.refresh_from_db()
    assert (worker.last_heartbeat_at, worker.sequence) == (soon(0), 5)
    assert (worker.state, worker.active_job_ids, worker.concurrency) == ("quiet", ids, 10)
    assert reserved_until(job) == deadline


def test_a_heartbeat_that_was_overtaken_saves_no_worker_from_being_declared_dead():
    worker = WorkerFactory()
    protocol.beat(worker.pk, sequence=5)
    Worker.objects.update(last_heartbeat_at=ago(31))

    protocol.beat(worker.pk, sequence=4)

    assert reaper.declare_dead_workers() == 1


def test_a_worker_whose_heartbeats_all_come_late_is_not_declared_dead():
    """A process that counts from one again and does not say that it is another."""
    worker = WorkerFactory(sequence=900)

    for sequence in (1, 2, 3):
        Worker.objects.update(last_heartbeat_at=ago(20))
        assert protocol.beat(worker.pk, sequence=sequence).stale

    assert reaper.declare_dead_workers() == 0
    assert Worker.objects.get().last_heartbeat_at == soon(0)


def test_numbers_may_skip_start_late_and_be_left_out():
    worker = WorkerFactory()
    for sequence in (None, 3, 7, None, 8):
        assert not protocol.beat(worker.pk, sequence=sequence).stale

    worker.refresh_from_db()
    assert worker.sequence == 8


def test_a_heartbeat_sent_before_its_worker_was_declared_dead_does_not_revive_it():
    worker = WorkerFactory()
    protocol.beat(worker.pk, sequence=5)
    Worker.objects.update(last_heartbeat_at=ago(31))
    reaper.declare_dead_workers()

    late = protocol.beat(worker.pk, state=WorkerState.RUNNING, sequence=4)

    assert (late.stale, late.state) == (True, "running")
    assert not Worker.objects.live().exists()
    assert not protocol.beat(worker.pk, sequence=6).stale
    assert Worker.objects.live().exists()


def test_a_heartbeat_that_arrives_after_its_worker_deregistered_does_not_revive_it():
    worker = WorkerFactory()
    protocol.beat(worker.pk, sequence=5)
    protocol.deregister(worker.pk)

    assert protocol.beat(worker.pk, sequence=5).stale
    assert not Worker.objects.live().exists()


@pytest.mark.parametrize(
    "said",
    [None, Description(hostname="web-1"), BEFORE],
    ids=["nothing", "host", "all"],
)
def test_a_heartbeat_in_flight_does_not_revive_a_worker_that_deregistered(said):
    protocol.register("w", BEFORE)
    protocol.beat("w", description=said, sequence=5)
    protocol.deregister("w")

    for sequence in (None, 6):
        reply = protocol.beat("w", state=TERMINATE, description=said, sequence=sequence)
        assert (reply.state, reply.stale) == ("terminate", True)

    Worker.objects.update(last_heartbeat_at=ago(31))
    assert reaper.declare_dead_workers() == 0
    assert Worker.objects.get().died_at is None


def test_a_heartbeat_on_the_connection_that_registered_last_is_never_too_late():
    before = protocol.register("w", BEFORE).registered_at
    since = protocol.register("w", BEFORE).registered_at
    protocol.deregister("w")

    assert protocol.beat("w", registered_at=before).stale
    assert not protocol.beat("w", registered_at=since).stale
    assert Worker.objects.live().get().left_at is None


def test_a_late_heartbeat_is_told_which_of_its_jobs_are_lost():
    protocol.register("w", BEFORE)
    held = JobFactory(active=True, reserved_by="w")
    lost = JobFactory(active=True, reserved_by="another")
    protocol.deregister("w")

    reply = protocol.beat("w", active_job_ids=[str(held.pk), str(lost.pk), "no job"])

    assert reply.stale
    assert (reply.jobs_extended, reply.jobs_lost) == ([], [str(lost.pk), "no job"])


def test_nor_one_that_never_registered_and_says_when_it_started():
    protocol.beat("w", description=BEFORE)
    protocol.deregister("w")

    assert protocol.beat("w", description=BEFORE).stale
    assert not Worker.objects.live().exists()


def returns_as_another_process():
    protocol.register("w", BEFORE)
    protocol.deregister("w")
    return without(AFTER, "started_at")


def returns_later():
    protocol.register("w", BEFORE)
    protocol.deregister("w")
    Worker.objects.update(last_heartbeat_at=ago(61), left_at=ago(60))
    return BEFORE


def never_registered():
    protocol.beat("w", description=without(BEFORE, "started_at"))
    protocol.deregister("w")
    return without(BEFORE, "started_at")


def was_silent_while_it_was_quiet():
    protocol.register("w", BEFORE)
    protocol.beat("w", state=WorkerState.QUIET)
    Worker.objects.update(last_heartbeat_at=ago(31))
    assert reaper.declare_dead_workers() == 1
    assert Worker.objects.get().left_at is not None
    return BEFORE


@pytest.mark.parametrize(
    "left",
    [
        returns_as_another_process,
        returns_later,
        never_registered,
        was_silent_while_it_was_quiet,
    ],
    ids=lambda left: left.__name__,
)
def test_a_worker_that_has_left_and_really_returns_is_met(left):
    said = left()

    reply = protocol.beat("w", state=WorkerState.RUNNING, description=said)

    assert (reply.state, reply.stale) == ("running", False)
    assert Worker.objects.live().get().left_at is None


def test_a_process_that_counts_from_one_again_is_met_once_the_old_one_is_long_gone():
    worker = WorkerFactory(sequence=500, dead=True)

    assert not protocol.beat(worker.pk, sequence=1).stale
    assert Worker.objects.live().get(pk=worker.pk).sequence == 1


# The processes that use an id one after the other (§3.1, §10.3)


def of_worker(worker_id="w"):
    worker = Worker.objects.get(pk=worker_id)
    return (worker.pid, worker.started_at, worker.sequence, worker.state, worker.active_job_ids)


@pytest.mark.parametrize("alike", [(), ("hostname",), ("pid",), ("hostname", "pid")])
def test_a_late_heartbeat_of_an_earlier_process_changes_nothing(alike):
    before, after = without(BEFORE, *alike), without(AFTER, *alike)
    protocol.register("w", before)
    protocol.beat("w", description=before, sequence=499)
    protocol.register("w", after)
    Worker.objects.update(last_heartbeat_at=ago(20))
    unheard = Worker.objects.values().get()

    late = protocol.beat(
        "w",
        state=WorkerState.TERMINATE,
        active_job_ids=["of.old"],
        description=before,
        sequence=500,
    )

    assert late.stale
    assert Worker.objects.values().get() == unheard
    JobFactory()
    for sequence in (1, 2):
        reply = protocol.beat("w", state=WorkerState.RUNNING, description=after, sequence=sequence)
        assert (reply.state, reply.stale) == ("running", False)
    assert len(protocol.fetch(["default"], worker_id="w")) == 1


@pytest.mark.parametrize(
    "after",
    [
        AFTER,
        without(AFTER, "pid", "hostname"),
        without(AFTER, "started_at"),
        without(replace(AFTER, hostname="web-2"), "started_at", "pid"),
        replace(BEFORE, started_at=STARTED - timedelta(minutes=5), hostname="web-2"),
    ],
    ids=["all", "start", "pid", "host", "host with a slow clock"],
)
def test_a_process_that_never_registers_begins_a_new_sequence(after):
    for state in (WorkerState.RUNNING, WorkerState.TERMINATE):
        protocol.beat("w", state=state, description=BEFORE, sequence=900 + state.rank)

    reply = protocol.beat(
        "w", state=WorkerState.RUNNING, active_job_ids=[], description=after, sequence=1
    )

    assert (reply.state, reply.stale) == ("running", False), "what the earlier one was is over"
    assert of_worker() == (
        after.pid or BEFORE.pid,
        after.started_at or BEFORE.started_at,
        1,
        "running",
        [],
    )
    assert not protocol.beat("w", description=after, sequence=2).stale


def test_the_first_heartbeat_of_a_new_process_extends_its_jobs():
    protocol.beat("w", description=BEFORE, sequence=900)
    job = JobFactory(active=True, reserved_by="w", reserved_until=ahead(1))

    reply = protocol.beat("w", active_job_ids=[str(job.pk)], description=AFTER, sequence=1)

    assert reply.jobs_extended == [str(job.pk)]
    assert reserved_until(job) == soon(1800)


def test_a_new_process_that_does_not_number_its_heartbeats_has_no_number():
    protocol.beat("w", description=BEFORE, sequence=900)

    assert not protocol.beat("w", description=AFTER).stale
    assert Worker.objects.get().sequence is None


def test_a_start_time_that_is_cut_to_seconds_is_the_same():
    registered = replace(BEFORE, started_at=STARTED + timedelta(milliseconds=999))
    protocol.register("w", registered)

    for sequence, description in enumerate((BEFORE, registered, BEFORE), start=5):
        assert not protocol.beat("w", description=description, sequence=sequence).stale
    assert protocol.beat("w", description=BEFORE, sequence=4).stale


def test_a_process_that_says_at_first_that_it_started_later_is_heard():
    protocol.register("w", replace(BEFORE, started_at=STARTED + timedelta(minutes=1)))
    job = JobFactory(active=True, reserved_by="w", reserved_until=ahead(1))

    for sequence in (1, 2):
        reply = protocol.beat(
            "w", active_job_ids=[str(job.pk)], description=BEFORE, sequence=sequence
        )
        assert (reply.stale, reply.jobs_extended) == (False, [str(job.pk)])


def test_a_process_does_not_become_another_by_what_it_leaves_out():
    protocol.register("w", BEFORE)
    protocol.beat("w", description=BEFORE, sequence=5)

    for name in ("hostname", "pid", "started_at"):
        assert protocol.beat("w", description=without(BEFORE, name), sequence=4).stale
    assert protocol.beat("w", sequence=4).stale


def test_an_order_reaches_a_process_that_took_over_without_registering():
    protocol.beat("w", description=BEFORE, sequence=900)
    Worker.objects.direct(WorkerState.QUIET)

    assert protocol.beat("w", description=AFTER, sequence=1).state == "quiet"


def test_a_late_heartbeat_of_an_earlier_process_revives_no_worker():
    protocol.register("w", AFTER)
    Worker.objects.update(last_heartbeat_at=ago(31))
    reaper.declare_dead_workers()

    assert protocol.beat("w", description=BEFORE, sequence=900).stale
    assert not Worker.objects.live().exists()


def test_a_new_process_revives_a_worker_that_has_just_been_declared_dead():
    protocol.register("w", BEFORE)
    protocol.beat("w", description=BEFORE, sequence=900)
    Worker.objects.update(last_heartbeat_at=ago(31))
    reaper.declare_dead_workers()

    assert not protocol.beat("w", description=AFTER, sequence=1).stale
    assert Worker.objects.live().exists()


# Declared dead, and back (§10.4)


def test_a_dead_worker_that_speaks_is_live_again_and_was_away_for_all_to_see():
    worker = WorkerFactory(dead=True)
    job = JobFactory()

    reply = protocol.beat(worker.pk, state=WorkerState.RUNNING, active_job_ids=[str(job.pk)])

    assert (reply.state, reply.jobs_lost) == ("running", [str(job.pk)])
    back = Worker.objects.live().get(pk=worker.pk)
    assert back.died_at is not None
    assert [claimed.id for claimed in protocol.fetch(["default"], worker_id=back.pk)] == [job.pk]


# Conformance mode (docs/architecture.md)


@pytest.mark.parametrize("directive", ["quiet", "terminate"])
def test_a_job_of_the_public_suite_directs_its_worker_in_conformance_mode_only(
    settings, monkeypatch, directive
):
    monkeypatch.setattr(protocol, "before_reply", conformance.obey_test_directive)
    job = JobFactory(active=True, meta={"test_directive": directive})
    ids = [str(job.pk)]

    assert protocol.beat("worker-1", active_job_ids=ids).state == "running"
    settings.OJS = {"CONFORMANCE_MODE": True}
    assert protocol.beat("worker-1", active_job_ids=ids).state == directive
