"""A worker that was declared dead and is heard again (OJS worker protocol §10.4)."""

from __future__ import annotations

import pytest

from jobs import engine
from jobs.errors import ReservationLost
from jobs.models import Event, Job
from jobs.spec.lifecycle import State
from tests.factories import JobFactory, WorkerFactory, ago
from workers import protocol
from workers.chores import reaper
from workers.fleet import orders as fleet
from workers.lifecycle import WorkerState
from workers.models import Worker
from workers.protocol import Completion, Failure
from workers.signals import worker_returned

pytestmark = pytest.mark.django_db

QUIET, TERMINATE = WorkerState.QUIET, WorkerState.TERMINATE


def beat(worker):
    protocol.beat(worker.pk, state=WorkerState.RUNNING)


def fetch(worker, **asked):
    return [job.id for job in protocol.fetch(["default"], worker_id=worker.pk, **asked)]


def ack(worker, **asked):
    """A report about a job that was reclaimed from it."""
    lost = JobFactory(active=True, queue="another", reserved_by="heir")
    (outcome,) = protocol.ack([Completion(lost.pk, worker.pk)], **asked)
    assert isinstance(outcome.error, ReservationLost)


def fail(worker, **asked):
    lost = JobFactory(active=True, queue="another", reserved_by="heir")
    (outcome,) = protocol.fail([Failure(lost.pk, worker.pk)], **asked)
    assert isinstance(outcome.error, ReservationLost)


def exchange(worker, **asked):
    lost = JobFactory(active=True, queue="another", reserved_by="heir")
    (outcome,), jobs = protocol.exchange(
        [Completion(lost.pk, worker.pk)], ["default"], worker_id=worker.pk, **asked
    )
    assert isinstance(outcome.error, ReservationLost)
    return [job.id for job in jobs]


ways = pytest.mark.parametrize(
    "speak", [beat, fetch, exchange, ack, fail], ids=lambda way: way.__name__
)
others = pytest.mark.parametrize(
    "speak", [fetch, exchange, ack, fail], ids=lambda way: way.__name__
)


@ways
def test_a_dead_worker_that_speaks_is_live_again(speak, django_capture_on_commit_callbacks):
    worker = WorkerFactory(dead=True)
    returned = []

    def receiver(worker_id, **kwargs):
        returned.append(worker_id)

    worker_returned.connect(receiver)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            speak(worker)
    finally:
        worker_returned.disconnect(receiver)

    back = Worker.objects.get(pk=worker.pk)
    assert (back.state, back.died_at) == (WorkerState.RUNNING, worker.died_at)
    assert not Worker.objects.silent().exists()
    assert returned == [worker.pk]
    assert Event.objects.filter(type="worker.started", subject=worker.pk).count() == 1


@pytest.mark.parametrize("ask", [fetch, exchange], ids=lambda way: way.__name__)
def test_it_is_given_jobs_by_the_very_fetch(ask):
    job = JobFactory()

    assert ask(WorkerFactory(dead=True)) == [job.pk]


def test_what_a_fetch_gave_a_worker_is_not_taken_from_it_as_from_a_dead_one():
    worker = WorkerFactory(dead=True)
    job = JobFactory()

    fetch(worker)
    reaper.sweep()

    assert Job.objects.get(pk=job.pk).state == State.ACTIVE


@others
def test_one_that_has_left_stays_away(speak):
    """Its request was under way when it left."""
    worker = WorkerFactory(left=True)
    JobFactory()

    assert not speak(worker)

    assert Worker.objects.get(pk=worker.pk).state == WorkerState.TERMINATED


@others
def test_what_is_no_sign_of_life_brings_no_worker_back(speak):
    worker = WorkerFactory(dead=True)
    JobFactory()

    assert not speak(worker, discover=False)

    assert Worker.objects.get(pk=worker.pk).state == WorkerState.TERMINATED


@others
def test_another_projects_key_brings_no_worker_back(speak):
    worker = WorkerFactory(dead=True, project="theirs")

    assert not speak_as("mine", speak, worker)

    assert Worker.objects.get(pk=worker.pk).state == WorkerState.TERMINATED


def speak_as(project, speak, worker):
    Job.objects.all().delete()
    if speak in (ack, fail, exchange):
        lost = JobFactory(active=True, queue="another", reserved_by="heir", project=project)
        report = Failure if speak is fail else Completion
        reports = [report(lost.pk, worker.pk)]
        if speak is exchange:
            return protocol.exchange(reports, ["default"], worker_id=worker.pk, project=project)[1]
        (protocol.fail if speak is fail else protocol.ack)(reports, project=project)
        return []
    return speak(worker, project=project)


@others
def test_an_unknown_worker_is_not_discovered_by_it(speak):
    worker = WorkerFactory.build(worker_id="stranger")

    speak(worker)

    assert not Worker.objects.exists()


# Its directive


def ordered(directive, **known):
    worker = WorkerFactory(last_heartbeat_at=ago(20), **known)
    fleet.order(Worker.objects.all(), directive, actor=fleet.Actor("ann", "admin"))
    return worker


def is_silenced(worker):
    Worker.objects.filter(pk=worker.pk).update(last_heartbeat_at=ago(3600))
    assert reaper.sweep(["dead-workers"]) == {"dead-workers": 1}


@ways
@pytest.mark.parametrize("directive", [QUIET, TERMINATE])
def test_an_order_it_has_not_heard_still_stands(speak, directive):
    worker = ordered(directive)
    JobFactory()
    is_silenced(worker)

    assert not speak(worker)

    assert Worker.objects.live().get(pk=worker.pk).desired_state == directive
    assert fetch(worker) == []


def test_a_quiet_it_has_heard_still_stands_and_can_be_taken_back():
    worker = ordered(QUIET)
    JobFactory()
    beat(worker)
    is_silenced(worker)

    assert fetch(worker) == []
    Worker.objects.filter(pk=worker.pk).resume()
    assert len(fetch(worker)) == 1


def test_who_comes_after_one_that_heard_it_shall_terminate_is_another():
    """It was terminated, perhaps with a job in its hands: its id may be used again."""
    worker = ordered(TERMINATE)
    JobFactory(active=True, reserved_by=worker.pk)
    Worker.objects.filter(pk=worker.pk).update(directed_at=ago(3700))
    is_silenced(worker)
    JobFactory()

    assert len(fetch(worker)) == 1
    assert Worker.objects.get(pk=worker.pk).desired_state == WorkerState.RUNNING


def test_one_that_was_drained_has_left_and_its_order_with_it():
    worker = ordered(QUIET, state=QUIET)
    is_silenced(worker)

    gone = Worker.objects.get(pk=worker.pk)
    assert (gone.directive, gone.left_at is not None) == ("", True)


@pytest.mark.postgres
def test_only_a_fetch_in_vain_looks_further(django_assert_num_queries):
    worker = WorkerFactory()
    JobFactory()

    with django_assert_num_queries(1):
        assert len(fetch(worker)) == 1
    with django_assert_num_queries(2):
        assert fetch(worker) == []
    job = JobFactory(active=True, reserved_by=worker.pk)
    with django_assert_num_queries(1):
        protocol.ack([engine.Completion(job.pk, worker.pk)])
