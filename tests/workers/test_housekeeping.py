"""Slow chores as django-q2 schedules, run by a cluster (docs/architecture.md)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from ast import literal_eval

import pytest
from django.core.management import call_command
from django.db import connections
from django.utils import timezone
from django_q.models import Schedule, Success
from django_q.scheduler import scheduler

from jobs.engine import retention
from jobs.models import Job
from tests import processes
from tests.factories import JobFactory, ago
from tests.once import once_is_enough
from workers.chores import housekeeping, reaper
from workers.models import Sweep

LONG_AGO = 8 * 86_400
NAMES = {f"Open Job Spec: {chore.name}" for chore in reaper.SLOW}

pytestmark = pytest.mark.django_db


def test_every_slow_chore_has_a_schedule():
    schedules = Schedule.objects.filter(name__startswith="Open Job Spec")

    assert {schedule.name for schedule in schedules} == NAMES
    for schedule in schedules:
        assert schedule.func == "workers.chores.housekeeping.do"
        assert schedule.repeats == -1
        (name,) = literal_eval(schedule.args)
        assert schedule.name.endswith(name)


def test_migrating_again_installs_nothing_twice_and_keeps_what_an_operator_changed():
    Schedule.objects.filter(name="Open Job Spec: old-events").update(minutes=45)

    housekeeping.install_schedules()

    assert Schedule.objects.filter(name__in=NAMES).count() == len(NAMES)
    assert Schedule.objects.get(name="Open Job Spec: old-events").minutes == 45


@pytest.mark.django_db(transaction=True)
def test_a_schedule_that_was_lost_comes_back_with_the_next_migrate():
    Schedule.objects.all().delete()

    call_command("migrate", verbosity=0)

    assert {schedule.name for schedule in Schedule.objects.all()} == NAMES


def test_the_schedules_go_when_the_tables_go_and_come_back_with_them():
    """A cluster of a site that has removed the apps would try to import their functions."""
    Schedule.objects.create(name="Open Job Spec: a report of ours", func="shop.tasks.report")

    call_command("migrate", "ojs_workers", "zero", fake=True, verbosity=0)
    left = [schedule.func for schedule in Schedule.objects.all()]
    call_command("migrate", "ojs_workers", fake=True, verbosity=0)

    assert left == ["shop.tasks.report"]
    assert Schedule.objects.filter(name__in=NAMES).count() == len(NAMES)


@once_is_enough
def test_a_task_that_was_queued_when_the_apps_went_does_not_end_the_clusters_process():
    program = """
import pydoc
import django
from django.conf import settings

settings.configure(INSTALLED_APPS=["django.contrib.contenttypes", "django_q"])
django.setup()
print(pydoc.locate("workers.chores.housekeeping.do")("old-events"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=processes.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.returncode) == ("0\n", 0), done.stderr


def test_a_chore_is_done_in_its_turn_and_not_again_right_after():
    JobFactory(completed=True, finished_at=ago(LONG_AGO))
    assert housekeeping.do("finished-jobs") == 1

    JobFactory(completed=True, finished_at=ago(LONG_AGO))
    assert housekeeping.do("finished-jobs") == 0


def test_a_schedule_that_comes_a_moment_early_is_not_left_out():
    Sweep.objects.create(name="finished-jobs", ran_at=ago(59))
    JobFactory(completed=True, finished_at=ago(LONG_AGO))

    assert housekeeping.do("finished-jobs") == 1


def test_what_the_cluster_did_the_reaper_does_not_do_again():
    housekeeping.do("finished-jobs")
    JobFactory(completed=True, finished_at=ago(LONG_AGO))

    assert "finished-jobs" not in reaper.sweep()


def test_a_chore_with_more_to_do_goes_on_in_the_next_round_until_nothing_is_left(monkeypatch):
    monkeypatch.setattr(reaper, "BATCHES", 2)
    monkeypatch.setattr(retention, "BATCH_SIZE", 1)
    Sweep.objects.create(name="finished-jobs", ran_at=ago(121))
    for _ in range(5):
        JobFactory(completed=True, finished_at=ago(LONG_AGO))

    rounds = [reaper.sweep().get("finished-jobs", 0) for _ in range(4)]

    assert rounds == [2, 2, 1, 0]
    JobFactory(completed=True, finished_at=ago(LONG_AGO))
    assert "finished-jobs" not in reaper.sweep(), "from then on once in its period"


def test_what_the_cluster_did_not_finish_the_reaper_goes_on_with(monkeypatch):
    monkeypatch.setattr(reaper, "BATCHES", 2)
    monkeypatch.setattr(retention, "BATCH_SIZE", 1)
    for _ in range(3):
        JobFactory(completed=True, finished_at=ago(LONG_AGO))

    assert housekeeping.do("finished-jobs") == 2
    assert reaper.sweep() == {"finished-jobs": 1}


def test_where_no_cluster_runs_the_reaper_does_it():
    Sweep.objects.create(name="finished-jobs", ran_at=ago(121))
    JobFactory(completed=True, finished_at=ago(LONG_AGO))

    assert reaper.sweep() == {"finished-jobs": 1}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("ran_before", [True, False])
def test_of_many_processes_at_once_one_takes_the_turn(ran_before):
    chore = reaper.SLOW[0]
    if ran_before:
        Sweep.objects.create(name=chore.name, ran_at=ago(3600))
    together = threading.Barrier(8)
    turns: list[bool] = []

    def try_to_take_it() -> None:
        try:
            together.wait(120)
            turns.append(reaper.take_turn(chore))
        finally:
            connections.close_all()

    threads = [threading.Thread(target=try_to_take_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(turns) == [False] * 7 + [True]


@pytest.mark.slow
def test_a_real_cluster_runs_the_schedules(database_url, tmp_path):
    JobFactory(completed=True, finished_at=ago(LONG_AGO))
    kept = JobFactory(completed=True)
    # A cluster does this every half minute.
    Schedule.objects.exclude(name="Open Job Spec: finished-jobs").delete()
    Schedule.objects.update(next_run=timezone.now())
    scheduler()

    # With the tests' settings: a cluster reads only tasks that were signed with its own key.
    environment = processes.environment(database_url) | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "OJS_TEST_DATABASE": os.environ.get("OJS_TEST_DATABASE", "sqlite"),
    }
    with processes.manage(tmp_path, environment, "qcluster") as cluster:
        processes.eventually(Success.objects.exists, lambda: cluster.output)
        assert cluster.terminate() == 0, cluster.output

    (success,) = Success.objects.all()
    assert (success.func, success.result) == ("workers.chores.housekeeping.do", 1)
    assert list(Job.objects.all()) == [kept]
