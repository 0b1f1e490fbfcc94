"""Machines whose clocks are an hour wrong: no effect, because the database's clock decides."""

from __future__ import annotations

import contextlib
from datetime import timedelta

import pytest
from django.db.models import F
from django.db.models.functions import Now

import jobs
from jobs import engine
from jobs.access import refusals
from jobs.access.audit import Actor
from jobs.engine import maintenance
from jobs.errors import NotAuthenticated
from jobs.models import CronJob, CronRun, Job, OperatorAction, Queue, RefusedFinish
from jobs.spec.lifecycle import State
from jobs.store import clock
from tests import clocks, processes
from tests.factories import JobFactory, WorkerFactory, ago, ahead
from workers import protocol
from workers.chores import reaper
from workers.fleet import directory
from workers.models import Reaper, Sweep, Worker

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
TEMPLATE = {"type": "report.make", "args": []}

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


@pytest.fixture(params=[HOUR, -HOUR], ids=["ahead", "behind"])
def wrong(request):
    """A machine's clock, to be used as `with wrong():`."""
    return lambda: clocks.ahead(request.param)


def about_now(field: str) -> dict:
    return {f"{field}__gt": Now() - MINUTE, f"{field}__lte": Now() + MINUTE}


def test_the_time_is_the_databases(wrong):
    with wrong():
        now = clock.now()

    assert abs(now - clock.now()) < MINUTE


def test_a_schedule_runs_once_for_each_time_whatever_the_reaper_believes(wrong):
    with wrong():
        engine.upsert_cron(engine.NewCronJob("hourly", "* * * * *", TEMPLATE))
    assert CronJob.objects.filter(**about_now("next_run_at")).exists()
    CronJob.objects.update(next_run_at=ago(1), anchored_at=ago(61))

    with wrong():
        assert engine.enqueue_due_schedules() == 1
        assert engine.enqueue_due_schedules() == 0
    assert CronJob.objects.filter(**about_now("next_run_at")).exists()
    assert engine.enqueue_due_schedules() == 0


def test_a_worker_that_registered_at_a_wrong_server_is_neither_dead_nor_alive_for_too_long(wrong):
    with wrong():
        protocol.register("w", protocol.Description())

    assert Worker.objects.filter(**about_now("last_heartbeat_at")).exists()
    assert reaper.sweep(["dead-workers"]) == {}
    with wrong():
        assert directory.is_active(Worker.objects.get())
        assert reaper.sweep(["dead-workers"]) == {}
        # Python's estimate of the database's time may be late by a round trip.
        Worker.objects.update(last_heartbeat_at=Now() - F("heartbeat_timeout") - MINUTE)
        assert not directory.is_active(Worker.objects.get())
        assert reaper.sweep(["dead-workers"]) == {"dead-workers": 1}


def test_a_delayed_job_starts_in_time(wrong):
    with wrong():
        later = jobs.enqueue("later", scheduled_at=timedelta(minutes=10))
        soon = jobs.enqueue("soon", scheduled_at=timedelta(milliseconds=1))
        rejected = jobs.enqueue("in.time", expires_at=timedelta(minutes=10))

    def fetched() -> set:
        return {job.id for job in protocol.fetch(["default"], count=10)}

    given: set = set()
    processes.eventually(lambda: given.update(fetched()) or soon.id in given)
    assert given == {soon.id, rejected.id}
    assert Job.objects.get(pk=later.id).state == State.SCHEDULED


def test_a_retry_is_due_when_its_backoff_is_over(wrong):
    job = JobFactory(active=True, reserved_by="w", retry={"initial_interval": "PT10M"})

    with wrong():
        protocol.fail([protocol.Failure(job.pk, worker_id="w", code="x", message="x")])

    due = Job.objects.filter(
        pk=job.pk, scheduled_at__gt=Now() + MINUTE, scheduled_at__lt=Now() + 20 * MINUTE
    )
    assert due.exists()


def test_a_periodic_chore_is_done_once_in_its_period(wrong):
    chore = next(chore for chore in reaper.SLOW if chore.name == "finished-jobs")

    with wrong():
        assert reaper.take_turn(chore)
    assert not reaper.take_turn(chore)
    Sweep.objects.update(ran_at=ago(121))
    with wrong():
        assert reaper.take_turn(chore)
        assert not reaper.take_turn(chore)


def test_a_reaper_is_seen_to_live_from_a_machine_with_another_time(wrong):
    with wrong():
        reaper.sign_of_life("r")
    assert not reaper.is_silent(reaper.last_seen())

    Reaper.objects.update(seen_at=ago(3600))
    with wrong():
        assert reaper.is_silent(reaper.last_seen())


def test_pauses_and_maintenance_end_when_they_shall(wrong):
    Queue.objects.create(name="default", paused_at=ago(1), paused_until=ahead(600))

    with wrong():
        assert Queue.objects.get().is_paused
        maintenance.begin(actor=Actor("ops", "test"), lasts=timedelta(minutes=10))
    assert type(maintenance.current()).objects.filter(**about_now("since")).exists()


@pytest.mark.slow
def test_what_is_kept_for_a_while_is_kept_from_the_databases_time_on(wrong):
    job = JobFactory(active=True, reserved_by="holder")
    with wrong():
        protocol.ack([engine.Completion(job.pk, "stranger")])
        refusals.note(NotAuthenticated("no"), protocol="ojs", address="192.0.2.1")

    assert RefusedFinish.objects.filter(**about_now("refused_at")).exists()
    assert OperatorAction.objects.filter(**about_now("done_at")).exists()


def test_reapers_two_hours_apart_run_every_schedule_once_and_declare_no_worker_dead(
    database_url, tmp_path
):
    """Real processes: a live worker between two reapers, and one that died."""
    engine.upsert_cron(engine.NewCronJob("often", "@every 1s", TEMPLATE, overlap_policy="allow"))
    WorkerFactory(worker_id="dead", silent=True)
    job = JobFactory(active=True, queue="other", reserved_by="dead")

    def reaping(by: timedelta, name: str):
        environment = processes.environment(database_url, REAPER_INTERVAL=0.1)
        environment |= clocks.environment(by)
        return processes.manage(tmp_path, environment, "runreaper", name=name)

    with contextlib.ExitStack() as stack:
        early = stack.enter_context(reaping(-HOUR, "early"))
        late = stack.enter_context(reaping(HOUR, "late"))

        def done() -> bool:
            protocol.beat("alive", active_job_ids=[])
            return CronRun.objects.count() >= 5 and Reaper.objects.count() == 2

        processes.eventually(done, lambda: early.output + late.output)

    times = list(CronRun.objects.order_by("pk").values_list("scheduled_for", flat=True))
    assert times == sorted(set(times)), "each occurrence once"
    assert times[-1] - times[0] < timedelta(minutes=10), "and each at its time"
    assert Job.objects.filter(type=TEMPLATE["type"]).count() == len(times)
    assert Job.objects.get(pk=job.pk).state == State.AVAILABLE
    assert list(Worker.objects.live().values_list("pk", flat=True)) == ["alive"]
