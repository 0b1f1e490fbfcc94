"""Schedules of the site's code: registered, changed and removed; those of people are left alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import connections
from django.utils import timezone

import jobs
from jobs import crontab, engine, testing
from jobs.models import CronJob, Job
from tests.factories import JobFactory, ago
from tests.processes import PATIENCE, ROOT
from tests.shop import TASKS
from workers.runtime import handler, handlers

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def nothing_is_declared(monkeypatch: Any) -> Iterator[None]:
    monkeypatch.setattr(crontab, "_declared", {})
    yield
    handlers.forget("report.build")


def declare(*crons: Any, **options: Any) -> Any:
    @handler("report.build")
    def build(context: Any, year: int = 2026) -> int:
        return year

    for cron in crons or (jobs.cron("0 9 * * MON-FRI", **options),):
        build = cron(build)
    return build


def made_by_a_client(name: str = "report.build") -> None:
    new = engine.NewCronJob(name, "@yearly", {"type": "other", "args": []})
    engine.upsert_cron(new)


def test_a_handler_has_a_schedule():
    build = declare(timezone="Europe/Berlin", queue="slow", args=[2020], tags=["a"])

    done = crontab.register()

    row = CronJob.objects.get()
    assert (done.made, row.name) == (["report.build"], "report.build")
    assert (row.expression, row.timezone) == ("0 9 * * MON-FRI", "Europe/Berlin")
    assert row.next_run_at > timezone.now()
    CronJob.objects.update(next_run_at=ago(1), anchored_at=ago(1))
    assert engine.enqueue_due_schedules() == 1
    job = Job.objects.get()
    assert (job.type, job.args, job.queue, job.tags) == (build.type, [2020], "slow", ["a"])


def test_a_task_has_a_schedule_too(settings):
    settings.TASKS = TASKS
    from tests.shop import tasks

    jobs.cron("@daily", kwargs={"order": 7}, name="invoices")(tasks.send_invoice)
    jobs.cron("@daily", args=[1], kwargs={"right": 2})(tasks.add)

    crontab.register()

    templates = {row.name: row.template for row in CronJob.objects.all()}
    assert templates["invoices"]["type"] == "invoice.send"
    assert templates["invoices"]["args"] == [{"order": 7}]
    assert templates["tests.shop.tasks.add"]["meta"] == {"ojs.kwargs": {"right": 2}}


def test_settings_have_schedules(settings):
    settings.OJS = {
        "CRON": {
            "nightly": {
                "cron": "0 2 * * *",
                "type": "report.build",
                "args": [1],
                "timezone": "Europe/Berlin",
                "queue": "slow",
                "overlap": "allow",
                "description": "Every night",
                "timeout": 90,
                "retry": {"max_attempts": 9, "initial_interval": timedelta(seconds=5)},
                "expires_at": timedelta(hours=1),
            }
        }
    }

    assert crontab.register().made == ["nightly"]

    row = CronJob.objects.get()
    assert (row.expression, row.overlap_policy, row.description) == (
        "0 2 * * *",
        "allow",
        "Every night",
    )
    engine.run_cron_now("nightly")
    job = Job.objects.get()
    assert (job.queue, job.max_attempts, job.timeout) == ("slow", 9, timedelta(seconds=90))
    assert job.expires_at > job.created_at


def test_settings_may_name_a_task(settings):
    settings.TASKS = TASKS
    settings.OJS = {
        "CRON": {"sum": {"cron": "@daily", "type": "tests.shop.tasks.add", "args": [1]}}
    }

    crontab.register()

    assert CronJob.objects.get().template["type"] == "tests.shop.tasks.add"


def test_what_is_as_declared_is_not_written(django_assert_num_queries):
    declare()
    crontab.register()
    before = CronJob.objects.values().get()

    with django_assert_num_queries(2):
        done = crontab.register()

    assert CronJob.objects.values().get() == before
    assert done == engine.RegisteredCron()


@pytest.mark.parametrize(
    ("change", "keeps_its_next_run"),
    [
        ({"queue": "other"}, True),
        ({"args": [1]}, True),
        ({"overlap": "allow"}, True),
        ({"description": "new"}, True),
        ({"timezone": "Asia/Tokyo"}, False),
    ],
)
def test_a_schedule_changes_with_the_code(change, keeps_its_next_run):
    declare()
    crontab.register()
    CronJob.objects.update(next_run_at=ago(1))
    before = CronJob.objects.get()

    crontab._declared.clear()
    declare(**change)
    done = crontab.register()

    after = CronJob.objects.get()
    assert done.changed == ["report.build"]
    assert (after.next_run_at == before.next_run_at) is keeps_its_next_run


def test_a_schedule_goes_with_the_code():
    declare()
    crontab.register()
    made_by_a_client("nightly")

    crontab._declared.clear()

    assert crontab.register().removed == ["report.build"]
    assert [row.name for row in CronJob.objects.all()] == ["nightly"]


def test_a_schedule_of_a_client_is_left_alone(caplog):
    made_by_a_client()
    declare()

    done = crontab.register()

    assert (done.foreign, done.made, done.changed) == (["report.build"], [], [])
    assert CronJob.objects.get().template["type"] == "other"
    assert "report.build" in caplog.text


def test_a_client_that_registers_it_takes_it_over():
    declare()
    crontab.register()

    made_by_a_client()
    crontab._declared.clear()
    done = crontab.register()

    assert done.removed == [] and CronJob.objects.get().template["type"] == "other"


def test_a_declared_schedule_without_a_next_run_gets_one_at_the_next_start():
    declare()
    crontab.register()
    CronJob.objects.update(next_run_at=None)

    crontab.register()

    assert CronJob.objects.get().next_run_at is not None


def test_a_schedule_that_a_person_disabled_stays_disabled():
    declare()
    crontab.register()
    engine.set_cron_enabled("report.build", enabled=False)

    crontab._declared.clear()
    declare(timezone="Asia/Tokyo")
    crontab.register()

    row = CronJob.objects.get()
    assert (row.enabled, row.next_run_at, row.timezone) == (False, None, "Asia/Tokyo")


def test_sites_that_share_a_database_leave_each_other_alone(settings):
    declare()
    crontab.register()

    settings.ROOT_URLCONF = "another.urls"
    assert crontab.register() == engine.RegisteredCron(foreign=["report.build"])
    crontab._declared.clear()

    assert crontab.register() == engine.RegisteredCron()
    assert CronJob.objects.count() == 1


def test_a_handler_may_have_several_schedules():
    declare(jobs.cron("@hourly", name="often"), jobs.cron("@weekly", args=[1], name="rarely"))

    assert sorted(crontab.register().made) == ["often", "rarely"]


# Many processes


@pytest.mark.django_db(transaction=True)
def test_many_processes_register_at_once_and_each_time_runs_once():
    declare(jobs.cron("@every 1h"))
    start = threading.Barrier(4, timeout=PATIENCE)
    done: list[Any] = []

    def process() -> None:
        try:
            start.wait()
            done.append(crontab.register())
        finally:
            connections.close_all()

    threads = [threading.Thread(target=process, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert sorted(len(each.made) for each in done) == [0, 0, 0, 1]
    CronJob.objects.update(next_run_at=ago(1))
    assert sum(engine.enqueue_due_schedules() for _ in range(3)) == 1
    assert Job.objects.count() == 1


def test_a_reaper_registers_when_it_starts():
    declare()

    call_command("runreaper", "--once")

    assert CronJob.objects.filter(pk="report.build").exists()


def test_a_worker_registers_when_it_starts(database_url, tmp_path):
    module = tmp_path / "scheduled_shop.py"
    module.write_text(
        "from tests.shop.settings import *\n"
        'OJS = {**OJS, "CRON": {"nightly": {"cron": "@daily", "type": "shop.noop"}}}\n'
    )
    surroundings = {
        **os.environ,
        "DATABASE_URL": database_url,
        "DJANGO_DEBUG": "1",
        "DJANGO_SETTINGS_MODULE": module.stem,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
    }

    command = [sys.executable, "manage.py", "runjobworker", "--burst"]
    subprocess.run(command, cwd=ROOT, env=surroundings, check=True, timeout=10 * PATIENCE)

    assert CronJob.objects.get().name == "nightly"


def test_in_tests_time_passes_for_it(settings):
    settings.OJS = {"CRON": {"nightly": {"cron": "@daily", "type": "report.build"}}}
    declare(jobs.cron("@hourly", name="hourly"))
    crontab.register()

    testing.advance_time(hours=25)

    assert Job.objects.filter(type="report.build").count() > 1


# What is refused


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("@daily", "dictionary"),
        ({"type": "a"}, "'cron'"),
        ({"cron": "@daily"}, "'type'"),
        ({"cron": "@daily", "type": "a", "quue": "b"}, "quue"),
        ({"cron": "not often", "type": "a"}, "CRON"),
        ({"cron": "@daily", "type": "a", "timezone": "Europe/Atlantis"}, "Atlantis"),
        ({"cron": "@daily", "type": "no type!"}, "type"),
        ({"cron": "@daily", "type": "a", "overlap": "never"}, "overlap"),
        ({"cron": "@daily", "type": "a", "args": [object()]}, "args"),
        ({"cron": "@daily", "type": "a", "kwargs": {"b": 1}}, "keyword"),
        ({"cron": "@daily", "type": "a", "retry": {"max_atempts": 1}}, "max_atempts"),
        ({"cron": "@daily", "type": "a", "pending": True}, "pending"),
    ],
)
def test_a_schedule_that_breaks_a_rule_is_refused_where_it_stands(settings, entry, said):
    settings.OJS = {"CRON": {"nightly": entry}}

    with pytest.raises(ImproperlyConfigured, match=said) as problem:
        crontab.register()
    assert "nightly" in str(problem.value)
    assert [error.id for error in run_checks() if error.id == "ojs.E016"] == ["ojs.E016"]
    with pytest.raises(CommandError, match="nightly"):
        call_command("runreaper", "--once")


WRONG = [
    (jobs.cron("not often"), "not often"),
    (jobs.cron("@daily", timezone="Europe/Atlantis"), "Atlantis"),
    (jobs.cron("@daily", quue="slow"), "quue"),
    (jobs.cron("@daily", args=[1, 2, 3]), "too many"),
]


@pytest.mark.parametrize(("cron", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_schedule_of_a_decorator_that_breaks_a_rule_is_found_by_the_checks(cron, said):
    declare(cron)

    (error,) = [error for error in run_checks() if error.id == "ojs.E045"]
    assert said in error.msg and "@jobs.cron of " in error.msg


def test_a_site_without_what_its_handlers_import_is_only_warned(monkeypatch):
    def missing(*names: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'")

    monkeypatch.setattr(crontab, "autodiscover_modules", missing)

    (found,) = [each for each in run_checks() if each.id.startswith("ojs.") and "torch" in each.msg]
    assert (found.id, found.is_serious()) == ("ojs.W041", False)


def test_a_schedule_that_breaks_a_rule_does_not_stop_recovery(caplog):
    crontab.register()
    declare(jobs.cron("not often"))
    stuck = JobFactory(active=True, reserved_by="gone", reserved_until=ago(60))

    with pytest.raises(CommandError, match=r"registering the schedules of the code .*not often"):
        call_command("runreaper", "--once", skip_checks=False)

    assert Job.objects.get(pk=stuck.pk).state == "available"
    assert "The schedules of the code are not registered" in caplog.text
    with pytest.raises(CommandError, match="not often"):
        call_command("runjobworker", "--burst", skip_checks=False)


def test_two_schedules_of_one_name_are_refused():
    declare(jobs.cron("@hourly"), jobs.cron("@weekly"))

    with pytest.raises(ImproperlyConfigured, match=r"Two schedules are called 'report\.build'"):
        crontab.register()
    assert [error.id for error in run_checks() if error.id == "ojs.E045"] == ["ojs.E045"]


def test_the_decorator_stands_above_that_of_the_handler():
    with pytest.raises(ImproperlyConfigured, match="above"):

        @handler("report.build")
        @jobs.cron("@daily")
        def build(context: Any) -> None: ...


def test_a_call_that_does_not_fit_the_handler_is_refused():
    declare(args=[1, 2, 3])

    with pytest.raises(ImproperlyConfigured, match="too many"):
        crontab.register()
