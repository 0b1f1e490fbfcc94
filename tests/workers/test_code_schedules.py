"""Web servers register the schedules that the site's code declares (`workers.code_schedules`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import httpx
import pytest

from jobs.models import CronJob
from tests import processes
from tests.workers.test_host_servers import ASGI, DOOR, WSGI, environment
from workers import code_schedules

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

NIGHTLY = {"nightly": {"cron": "0 2 * * *", "type": "shop.hire", "args": [1, "Ada"]}}


def ours(folder, crons=NIGHTLY):
    return environment(folder) | {"SHOP_OJS": json.dumps({"CRON": crons})}


def names():
    return sorted(CronJob.objects.values_list("pk", "declared_by"))


@pytest.mark.parametrize(("interface", "application"), [WSGI, ASGI, DOOR])
def test_a_server_registers_them_when_it_starts(tmp_path, interface, application):
    with processes.server(tmp_path, ours(tmp_path), 2, interface, application=application) as api:
        processes.eventually(
            lambda: names() == [("nightly", "host_urls")], lambda: api.started.output
        )

    # And removes them when the code has none any more.
    with processes.server(tmp_path, ours(tmp_path, {}), 2, interface, application=application):
        processes.eventually(lambda: names() == [])


def test_one_that_breaks_a_rule_is_logged_and_requests_are_served(tmp_path):
    wrong = {"nightly": {"cron": "at two", "type": "shop.hire"}}

    with processes.server(
        tmp_path, ours(tmp_path, wrong), 2, *WSGI[:1], application=WSGI[1]
    ) as api:
        api.started.wait_for('The schedules of the code are not registered: OJS["CRON"]')
        assert httpx.get(f"{api.url}/ojs/v1/health", timeout=processes.PATIENCE).status_code == 200
    assert names() == []


PROGRAM = """
import threading
import django
django.setup()
from django.core.management import call_command
from django.db import connections
from workers import code_schedules

call_command("check", verbosity=0)
assert not [thread for thread in threading.enumerate() if thread.name == code_schedules.IDENTITY]
code_schedules.thread.begin()
code_schedules.thread.begin()
(thread,) = [one for one in threading.enumerate() if one.name == code_schedules.IDENTITY]
input()
for alias in connections:
    call_command("migrate", database=alias, verbosity=0)
thread.join()
from jobs.models import CronJob
print(list(CronJob.objects.values_list("pk", flat=True)), flush=True)
"""


def test_a_server_that_was_started_before_migrate_tries_again(tmp_path):
    databases = {
        name: {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / f"{name}.sqlite3")}
        for name in ("default", "queue")
    }
    surroundings = ours(tmp_path) | {"SHOP_DATABASES": json.dumps(databases)}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env=surroundings | {"PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        first = process.stderr.readline()
        output, errors = process.communicate("migrate\n", timeout=processes.PATIENCE)

    assert "not registered yet" in first
    assert output.endswith("['nightly']\n"), errors


def test_the_tests_of_a_site_register_nothing(client, settings):
    settings.OJS = {**settings.OJS, "CRON": NIGHTLY}

    code_schedules.thread.at_first_request()
    client.get("/ojs/v1/health")

    assert not code_schedules.thread.has_begun
