"""`runjobworker` in development and on small sites: no admin, --reload, --reaper."""

from __future__ import annotations

import itertools
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

import jobs
from jobs.models import Job
from tests.factories import JobFactory, ago
from tests.processes import ROOT, environment, eventually, manage_to
from tests.workers.site import LATER, becomes, ends_with, worker_becomes
from workers.chores import in_thread, reaper
from workers.models import Worker

pytestmark = [pytest.mark.slow, pytest.mark.one_database]

SETTINGS = """
from ojs_project.settings import DATABASES

SECRET_KEY = "for-tests-only"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "jobs", "workers", "small"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {
    "default": {"BACKEND": "jobs.backends.OJSBackend"},
    "broken": {"BACKEND": "no.such.Backend"},
}
"""
HANDLERS = """
import os
from django.contrib import admin  # lazy: the site of an admin that is not installed
from workers.runtime import handler

site = admin.site


@handler("small.wait")
def wait(context, path):
    while not os.path.exists(path) and not context.wait(0.02):
        pass
    return "waited"


@handler("small.answer")
def answer(context):
    return VERSION


VERSION = 1
"""


@pytest.fixture
def site(tmp_path: Path, database_url: str) -> Any:
    """A site without the admin, and with an unusable task backend."""
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "__init__.py").touch()
    (tmp_path / "small" / "handlers.py").write_text(HANDLERS)
    (tmp_path / "small_settings.py").write_text(SETTINGS)
    return tmp_path


@pytest.fixture
def surroundings(site: Path, database_url: str) -> dict[str, str]:
    return environment(database_url) | {
        "DJANGO_SETTINGS_MODULE": "small_settings",
        "PYTHONPATH": f"{site}{os.pathsep}{ROOT}",
    }


def test_a_site_without_admin_and_with_a_broken_backend_runs_jobs(site, surroundings):
    made = jobs.enqueue("small.answer")

    with manage_to(
        site / "log", surroundings, "runjobworker", "--burst", "--known-types"
    ) as started:
        ends_with(started)

    assert made.refresh().result == 1


def test_a_worker_runs_what_the_code_says_now(site, surroundings):
    """The file is changed while the worker runs; later jobs are run by the new code."""
    with manage_to(site / "log", surroundings, "runjobworker", "--reload") as started:
        first = jobs.enqueue("small.answer")
        becomes(first, "completed")
        changes = itertools.count(1)

        def change_again() -> bool:
            """Django notices a change of a file's time once it has seen the file before."""
            draft = site / "draft"
            draft.write_text(HANDLERS.replace("VERSION = 1", "VERSION = 2"))
            moment = draft.stat().st_mtime + 10 * next(changes)
            os.utime(draft, (moment, moment))
            draft.rename(site / "small" / "handlers.py")
            return len(re.findall("jobs at once, of", started.output)) > 1

        eventually(change_again, lambda: started.output)
        second = jobs.enqueue("small.answer")
        becomes(second, "completed")
        started.terminate()

    assert (first.refresh().result, second.refresh().result) == (1, 2)


def asked_by(started: Any, how: str) -> None:
    if how == "Ctrl-C":
        os.killpg(started.process.pid, signal.SIGINT)
    else:
        started.process.terminate()


@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C"])
def test_a_reloading_worker_finishes_its_jobs_before_it_ends(site, surroundings, how):
    with manage_to(site / "log", surroundings, "runjobworker", "--reload") as started:
        made = jobs.enqueue("small.wait", [str(site / "go")])
        becomes(made, "active")
        asked_by(started, how)
        started.wait_for("From running to terminate, requested by a signal")
        (site / "go").touch()
        ends_with(started)

    assert made.refresh().result == "waited"
    assert Worker.objects.get().left_at is not None


@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C"])
def test_a_reloading_worker_that_is_asked_twice_does_not_wait(site, surroundings, how):
    with manage_to(site / "log", surroundings, "runjobworker", "--reload") as started:
        made = jobs.enqueue("small.wait", [str(site / "go")], retry=LATER)
        becomes(made, "active")
        asked_by(started, how)
        started.wait_for("From running to terminate, requested by a signal")
        asked_by(started, how)
        ends_with(started)

    assert [error.type for error in made.refresh().errors] == ["shutdown"]
    assert Worker.objects.get().left_at is not None


def test_a_reloading_worker_can_be_quieted(site, surroundings):
    with manage_to(site / "log", surroundings, "runjobworker", "--reload") as started:
        worker_becomes("running")
        started.process.send_signal(signal.SIGTSTP)
        worker_becomes("quiet")
        assert started.terminate() == 0


def test_a_worker_is_its_own_reaper(site, surroundings):
    lost = JobFactory(
        type="small.answer", args=[], active=True, reserved_by="gone", reserved_until=ago(60)
    )
    with manage_to(site / "log", surroundings, "runjobworker", "--reaper") as started:
        eventually(
            lambda: jobs.get(lost.pk).state == "completed",
            lambda: f"{jobs.get(lost.pk).errors} {started.output}",
        )
        assert not reaper.is_silent(reaper.last_seen())
        assert started.terminate() == 0

    assert Job.objects.get().errors.count() == 1


@pytest.mark.parametrize("words", [(), ("--processes", "2")], ids=str)
def test_a_worker_says_once_that_no_reaper_runs(site, surroundings, words):
    options = surroundings | {"OJS_REAPER_SILENT": "0.1"}
    settings = (site / "small_settings.py").read_text()
    (site / "small_settings.py").write_text(settings + 'OJS = {"REAPER_SILENT": 0.1}\n')
    with manage_to(site / "log", options, "runjobworker", *words) as started:
        eventually(lambda: "No reaper runs" in started.output, lambda: started.output)
        assert started.terminate() == 0

    assert started.output.count("No reaper runs") == 1


def test_of_several_processes_one_says_it():
    once = in_thread.Once()

    assert [once.is_mine() for _ in range(3)] == [True, False, False]


@pytest.mark.parametrize(
    "words",
    [
        ("--reaper", "--url", "http://localhost:1"),
        ("--reload", "--processes", "2"),
        ("--url", "nope"),
        ("--url", "jobs.example.com:8000"),
        ("--url", "ftp://jobs.example.com"),
    ],
)
def test_options_that_cannot_run_a_worker_are_refused(words):
    with pytest.raises(CommandError, match=words[0]):
        call_command("runjobworker", *words)
