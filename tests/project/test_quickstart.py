"""One command starts everything, prints where to look, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import termios
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import django
import pytest

from tests.database import connection
from tests.processes import PATIENCE, ROOT, eventually

from .quickstarts import Quickstart, empty_database, printed_password

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks into /proc"),
]

QUICK = {"OJS_HEARTBEAT_INTERVAL": "1", "OJS_HEARTBEAT_TIMEOUT": "3"}


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Quickstart]:
    """A running quickstart, for all tests that only read from it."""
    folder = tmp_path_factory.mktemp("quickstart")
    with empty_database(folder) as url:
        quickstart = Quickstart(folder, url)
        with quickstart.up(**QUICK):
            yield quickstart


@pytest.fixture
def quickstart(tmp_path) -> Iterator[Quickstart]:
    """One of its own, on SQLite as by default; `running` is tried on every database."""
    if connection.vendor != "sqlite":
        pytest.skip("starts and ends in the same way on every database: run on SQLite")
    with empty_database(tmp_path) as url:
        yield Quickstart(tmp_path, url)


def open_page(url: str, key: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as page:
            return page.status, page.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


def test_each_address_it_prints_is_worth_opening(running):
    urls = re.findall(r"^  (?:Admin|Health|Manifest) +(\S+)", running.log.read_text(), re.M)

    admin, health, manifest = (open_page(url) for url in urls)

    assert admin[0] == 200 and "csrfmiddlewaretoken" in admin[1]
    assert json.loads(health[1])["status"] == "ok"
    assert json.loads(manifest[1])["implementation"]["name"] == "django-ojs"


def test_the_manifest_says_where_the_other_protocols_are_served(running):
    def announced():
        return running.api.call("GET", "/ojs/manifest")[1]["endpoints"]

    eventually(lambda: {"agq", "rota"} <= announced().keys(), lambda: str(announced()))

    assert announced()["agq"] == f"redis://127.0.0.1:{running.agq_port}"
    assert announced()["rota"] == f"ws://127.0.0.1:{running.rota_port}/work"
    assert announced()["rota"] in running.log.read_text()


def test_the_password_it_prints_opens_the_admin(running):
    assert running.lets_in("admin", printed_password(running.log.read_text()))


@pytest.mark.parametrize("job_type", ["demo.fast", "demo.slow", "demo.scheduled"])
def test_jobs_that_succeed_do_so_at_the_first_attempt(running, job_type):
    job = running.settled(running.job_of_type(job_type)["id"])

    assert (job["state"], job["attempt"]) == ("completed", 1)


def test_a_slow_job_says_how_far_it_is(running):
    job = running.job_of_type("demo.slow")
    running.settled(job["id"])

    said = running.api.get("events?types=progress.updated&job_types=demo.slow")["events"]
    assert "second 1 of" in said[0]["data"]["data"]["message"]


def test_the_scheduled_job_does_not_run_early(running):
    job = running.settled(running.job_of_type("demo.scheduled")["id"])

    assert job["started_at"] >= job["enqueued_at"] > job["created_at"]


def test_the_flaky_job_fails_once_and_then_succeeds(running):
    job = running.settled(running.job_of_type("demo.flaky")["id"])

    assert (job["state"], job["attempt"]) == ("completed", 2)
    assert [error["type"] for error in job["errors"]] == ["ConnectionError"]


def test_the_broken_job_ends_in_the_dead_letter(running):
    job = running.settled(running.job_of_type("demo.broken")["id"])

    assert (job["state"], job["attempt"]) == ("discarded", 2)
    assert [error["type"] for error in job["errors"]] == ["ValueError", "ValueError"]
    assert job["id"] in [dead["id"] for dead in running.api.get("dead-letter")["jobs"]]


def test_the_worker_is_known_and_sends_heartbeats(running):
    known = "SELECT queues FROM ojs_workers_worker WHERE state = 'running'"
    eventually(lambda: running.rows(f"{known} AND last_heartbeat_at > registered_at"))

    assert "demo" in str(running.rows(known))


def test_the_status_tells_what_is_going_on(running):
    eventually(
        lambda: re.search(
            r"^\d:\d\d  1 worker  .*since the start: \d+ completed", running.log.read_text(), re.M
        ),
        running.log.read_text,
    )


def test_a_killed_worker_is_replaced_and_its_job_is_recovered(running):
    job_id = running.api.post(
        "jobs", {"type": "demo.slow", "args": [4], "options": {"queue": "demo"}}
    )["job"]["id"]
    eventually(lambda: running.job(job_id)["state"] == "active")
    ((pid,),) = running.rows("SELECT pid FROM ojs_workers_worker WHERE state = 'running'")

    os.kill(pid, signal.SIGKILL)

    job = running.settled(job_id)
    assert (job["state"], job["attempt"]) == ("completed", 2)
    assert [error["type"] for error in job["errors"]] == ["worker_death"]
    assert "The demonstration worker was ended by SIGKILL; started again" in running.log.read_text()


def test_a_killed_server_is_replaced(running):
    (pid,) = pids_of(running, "runhttp")
    os.kill(pid, signal.SIGKILL)

    eventually(lambda: "The server was ended by SIGKILL; started again" in running.log.read_text())
    eventually(lambda: is_healthy(running))


def pids_of(quickstart: Quickstart, word: str) -> list[int]:
    """Processes with that word in their command line."""
    return [
        pid
        for pid in quickstart.pids()
        if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def is_healthy(quickstart: Quickstart) -> bool:
    try:
        return open_page(f"{quickstart.api.url}/ojs/v1/health")[0] == 200
    except OSError:
        return False


def test_sigterm_stops_everything_and_leaves_nothing(quickstart):
    with quickstart.up(**QUICK) as run:
        words = ("runhttp", "runreaper", "qcluster", "runjobworker")
        assert all(pids_of(quickstart, word) for word in words)
        eventually(lambda: quickstart.rows("SELECT state FROM ojs_workers_worker"))

        assert run.terminate() == 0

        assert quickstart.pids() == []
    assert "Everything is stopped." in run.output
    assert "killing" not in run.output
    left = quickstart.rows("SELECT state FROM ojs_workers_worker WHERE left_at IS NOT NULL")
    assert left == [("terminated",)]
    assert quickstart.rows("SELECT count(*) FROM ojs_jobs_job WHERE state = 'active'") == [(0,)]


def test_no_demo_is_server_reaper_and_cluster_alone_and_even_sigkill_leaves_nothing(quickstart):
    with quickstart.up("--no-demo") as run:
        assert pids_of(quickstart, "runjobworker") == []
        assert quickstart.api.get("events")["events"] == []

        run.process.kill()

        eventually(lambda: quickstart.pids() == [], lambda: str(quickstart.pids()))
    # Asked to stop, not just killed.
    assert "The reaper stops." in (quickstart.data / "logs" / "reaper.log").read_text()


def test_ctrl_c_in_a_terminal_stops_everything_in_order(quickstart):
    terminal, inside = pty.openpty()
    run = subprocess.Popen(
        quickstart.command(),
        env=quickstart.environment(**QUICK),
        cwd=ROOT,
        stdin=inside,
        stdout=inside,
        stderr=inside,
        start_new_session=True,
        # A separate terminal, as a shell would provide: Ctrl-C then signals its group.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(inside)
    shown = b""
    try:
        while shown.count(b"\r\x1b[K") < 3:
            shown += os.read(terminal, 4096)
        quickstart.wait_for_cluster()
        os.write(terminal, b"\x03")
        shown += read_to_the_end(terminal)

        assert run.wait(PATIENCE) == 0
        assert quickstart.pids() == []
    finally:
        run.kill()
        run.wait()
        os.close(terminal)
    # The status is rewritten in place: it takes a single line.
    assert len([line for line in shown.decode().split("\n") if "completed" in line]) == 1
    assert "Stopping…" in shown.decode() and "killing" not in shown.decode()
    # Only quickstart received the Ctrl-C: the worker could still deregister from a server.
    assert "Could not deregister" not in (quickstart.data / "logs" / "worker.log").read_text()


def read_to_the_end(terminal: int) -> bytes:
    text = b""
    while True:
        try:
            text += os.read(terminal, 4096)
        except OSError:  # a terminal without processes ends like this
            return text


def test_a_second_run_leaves_the_account_alone_and_says_so(quickstart):
    with quickstart.up("--no-demo") as first:
        password = printed_password(first.output)
        first.terminate()
    with quickstart.up("--no-demo", DJANGO_SUPERUSER_PASSWORD="another") as second:
        assert "it was not changed" in second.output
        assert "manage.py changepassword admin" in second.output
        assert quickstart.lets_in("admin", password)
        assert not quickstart.lets_in("admin", "another")


def test_on_an_address_that_others_reach_a_key_is_needed(quickstart):
    operator = {
        "DJANGO_SUPERUSER_USERNAME": "grace",
        "DJANGO_SUPERUSER_PASSWORD": "an-account-of-my-own",
    }
    with quickstart.up("--host", "0.0.0.0", **operator) as run:
        queues = f"{quickstart.api.url}/ojs/v1/queues"
        (key,) = re.findall(r"^ +(ojs_\S+)$", run.output, re.M)
        completed = f"{quickstart.api.url}/ojs/v1/events?types=job.completed"

        assert open_page(queues)[0] == 401
        # The worker has the printed key.
        eventually(lambda: json.loads(open_page(completed, key)[1])["events"])
        # DEBUG would show the names of all URLs.
        assert "URLconf" not in open_page(f"{quickstart.api.url}/nowhere")[1]
        assert quickstart.lets_in("grace", "an-account-of-my-own")
        assert "an-account-of-my-own" not in run.output
        run.terminate()
    assert quickstart.rows("SELECT name FROM ojs_jobs_apikey") == []


def test_a_command_in_another_terminal_needs_no_variables(quickstart):
    """Neither a secret key nor `DJANGO_DEBUG`, nor the database that quickstart uses."""

    def other_terminal(*words):
        return subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), *words],
            env=quickstart.environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    with quickstart.up("--no-demo", "--host", "0.0.0.0") as run:
        (printed,) = re.findall(r"manage\.py (createapikey .*)$", run.output, re.M)
        made = other_terminal(*printed.split())

        assert made.returncode == 0, made.stderr
        queues = f"{quickstart.api.url}/ojs/v1/queues"
        assert open_page(queues, made.stdout.strip())[0] == 200
        twin = other_terminal(*printed.split())
        assert twin.returncode == 1 and "There is a usable key with this name" in twin.stderr
        run.terminate()

    # Without it, every command requires a setting, as usual.
    assert "Set DJANGO_SECRET_KEY" in other_terminal("check").stderr
    assert (quickstart.data / "quickstart.json").read_text() == ""


def test_a_port_in_use_is_one_clear_sentence(quickstart):
    with socket.create_server(("127.0.0.1", quickstart.port)), quickstart.start() as run:
        assert run.wait() == 1

    assert run.output == (
        f"CommandError: Port {quickstart.port} of 127.0.0.1 is in use: stop what listens there, "
        "or choose another with --port or PORT.\n"
    )
    database = quickstart.data / "ojs.sqlite3"
    if django.VERSION < (6, 1):
        assert not database.exists()
    else:
        # Its checks of models open every database.
        with contextlib.closing(sqlite3.connect(database)) as opened:
            assert opened.execute("SELECT name FROM sqlite_master").fetchall() == []


def test_a_database_that_is_away_is_one_clear_sentence(quickstart):
    away = "postgresql://somebody:secret@127.0.0.1:1/nothing"
    with quickstart.start("--database-url", away) as run:
        assert run.wait() == 1

    assert "The database cannot be used:" in run.output
    assert "Traceback" not in run.output and "secret" not in run.output


def test_a_server_that_will_not_start_is_reported_with_its_own_words(quickstart):
    with quickstart.start(OJS_SERVER_TLS_CERTIFICATE="/nowhere/certificate.pem") as run:
        assert run.wait() == 1

    assert "The server ended with exit code 1, 3 times in a row" in run.output
    assert "/nowhere/certificate.pem" in run.output
    assert "Traceback" not in run.output
    assert quickstart.pids() == []
