"""Readiness, as opposed to liveness: checked by a balancer before it sends requests."""

from __future__ import annotations

import contextlib
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from django.db.migrations.recorder import MigrationRecorder

from jobs.store import readiness, trouble
from tests import processes
from tests.database import another_connection, connection
from tests.processes import eventually

about_sqlite = pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite")
PATHS = ["/ojs/v1/ready", "/ready"]


@pytest.fixture
def ready(transactional_db: None, api: Any) -> Any:
    """Checked on another connection, which the transaction of a test would block."""
    return api


def asked(api: Any, path: str = PATHS[0]) -> tuple[int, str, str]:
    reply = api.get(path)
    document = reply.json()
    assert ("Retry-After" in reply.headers) is (reply.status_code == 503)
    return reply.status_code, document["status"], document["backend"].get("error", "")


@contextlib.contextmanager
def holding(statement: str) -> Iterator[None]:
    with another_connection() as other:
        other.execute(statement)
        yield


@pytest.mark.parametrize("path", PATHS)
def test_a_server_that_can_write_jobs_is_ready(ready, path):
    assert asked(ready, path) == (200, "ready", "")


@pytest.mark.parametrize("app", ["ojs_jobs", "ojs_workers"])
def test_a_database_behind_the_code_is_an_obstacle_until_it_has_been_migrated(
    ready, monkeypatch, app
):
    monkeypatch.setattr(readiness, "_is_migrated", False)
    recorder = MigrationRecorder(connection)
    last = max(name for label, name in recorder.applied_migrations() if label == app)
    recorder.record_unapplied(app, last)
    try:
        assert asked(ready) == (503, "unavailable", trouble.NOT_MIGRATED)
    finally:
        recorder.record_applied(app, last)
    assert asked(ready) == (200, "ready", "")


def test_a_database_ahead_of_the_code_is_none(ready, monkeypatch):
    """So old servers stay ready while new ones are started."""
    monkeypatch.setattr(readiness, "_is_migrated", False)
    recorder = MigrationRecorder(connection)
    recorder.record_applied("ojs_jobs", "9999_later")
    try:
        assert asked(ready) == (200, "ready", "")
    finally:
        recorder.record_unapplied("ojs_jobs", "9999_later")


@pytest.mark.postgres
@pytest.mark.parametrize("mode", ["ACCESS EXCLUSIVE", "EXCLUSIVE", "SHARE"])
def test_a_lock_on_the_table_of_jobs_is_an_obstacle(ready, mode):
    with holding(f"LOCK TABLE ojs_jobs_job IN {mode} MODE"):
        assert asked(ready) == (503, "unavailable", trouble.TOO_SLOW)
        assert ready.see("health").status_code == 200, "it lives"

    assert asked(ready) == (200, "ready", "")


@pytest.mark.postgres
def test_jobs_that_are_locked_are_none(ready):
    ready.pushed()
    with holding("SELECT * FROM ojs_jobs_job FOR UPDATE"):
        assert asked(ready) == (200, "ready", "")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ojs_jobs_job RENAME TO another", "another RENAME TO ojs_jobs_job"),
        (
            "ojs_jobs_job RENAME COLUMN priority TO another",
            "ojs_jobs_job RENAME COLUMN another TO priority",
        ),
    ],
)
def test_before_migrate_it_is_not_ready(ready, before, after):
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {before}")
        try:
            assert asked(ready) == (503, "unavailable", trouble.NOT_MIGRATED)
        finally:
            cursor.execute(f"ALTER TABLE {after}")


@pytest.mark.postgres
def test_a_standby_is_not_ready(ready):
    with connection.cursor() as cursor:
        name = connection.settings_dict["NAME"]
        cursor.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
        try:
            assert asked(ready) == (503, "unavailable", trouble.ONLY_READS)
        finally:
            cursor.execute("SET default_transaction_read_only = off")
            cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


@pytest.fixture
def only_reads(ready: Any) -> Iterator[None]:
    """New connections take only reads."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")
        yield
        connection.close()
        return
    settings = connection.settings_dict
    name = settings["NAME"]
    connection.close()
    settings["NAME"] = f"file:{name}?mode=ro"
    yield
    connection.close()
    settings["NAME"] = name


def test_a_database_that_takes_only_reads_is_reported_and_no_reason_to_restart(only_reads, ready):
    health = ready.see("health")

    assert health.status_code == 200
    assert health.json()["status"] == "degraded"
    assert health.json()["backend"]["status"] == "degraded"
    assert health.json()["backend"]["error"] == trouble.ONLY_READS
    refused = ready.push()
    assert refused.status_code == 503
    assert refused.json()["error"]["message"] == trouble.ONLY_READS


@about_sqlite
def test_a_file_that_takes_only_reads_is_an_obstacle(only_reads, ready):
    assert asked(ready) == (503, "unavailable", trouble.ONLY_READS)


@about_sqlite
def test_another_writer_is_none(ready):
    settings = connection.settings_dict
    with contextlib.closing(sqlite3.connect(settings["NAME"], uri=True)) as other:
        other.execute("PRAGMA user_version = 7")
        other.execute("BEGIN IMMEDIATE")

        assert asked(ready) == (200, "ready", "")
        assert ready.see("health").json()["backend"]["status"] == "healthy"

    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout")
        assert cursor.fetchone()[0] > 0, "requests have their patience still"
    assert asked(ready) == (200, "ready", "")
    with contextlib.closing(sqlite3.connect(settings["NAME"], uri=True)) as other:
        assert other.execute("PRAGMA user_version").fetchone() == (7,), "the site's own"
        other.execute("PRAGMA user_version = 0")


@about_sqlite
@pytest.mark.slow
def test_a_full_disk_is_an_obstacle(tmp_path):
    """The limit on the size of files stands for the disk's."""
    environment = processes.environment(f"sqlite:///{tmp_path}/jobs.sqlite3", ALLOW_ANONYMOUS=1)
    processes.migrate(environment)
    with processes.server(tmp_path, environment) as api:
        assert api.call("GET", "/ojs/v1/ready")[0] == 200
        size = psutil.Process(api.started.process.pid).rlimit
        unlimited = size(psutil.RLIMIT_FSIZE)

        size(psutil.RLIMIT_FSIZE, (0, unlimited[1]))
        status, refused = api.call("POST", "/ojs/v1/jobs", {"type": "email.send", "args": []})
        assert (status, refused["error"]["message"]) == (503, trouble.EXHAUSTED)
        status, found = api.call("GET", "/ojs/v1/ready")
        assert (status, found["backend"]["error"]) == (503, trouble.EXHAUSTED)
        _, found = api.call("GET", "/ojs/v1/health")
        assert (found["status"], found["backend"]["error"]) == ("degraded", trouble.EXHAUSTED)

        size(psutil.RLIMIT_FSIZE, unlimited)
        assert api.call("GET", "/ojs/v1/ready")[0] == 200


@pytest.fixture
def silent_database(ready: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """New connections reach a machine that accepts data and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        with monkeypatch.context() as elsewhere:
            elsewhere.setitem(connection.settings_dict, "HOST", host)
            elsewhere.setitem(connection.settings_dict, "PORT", port)
            yield
        silent.accept()[0].close()
    eventually(lambda: readiness._under_way is None or readiness._under_way.done())


@pytest.mark.postgres
def test_a_database_that_never_answers_is_an_obstacle_in_time(silent_database, ready):
    """Repeated checks meanwhile share one waiting thread."""
    for _ in range(2):
        assert asked(ready) == (503, "unavailable", trouble.TOO_SLOW)

    waiting = [thread for thread in threading.enumerate() if thread.name == "ojs-readiness"]
    assert len(waiting) == 1


def test_a_server_that_was_asked_to_end_takes_no_more(ready, monkeypatch):
    monkeypatch.setattr(readiness, "_is_ending", threading.Event())

    readiness.end()

    assert asked(ready) == (503, "unavailable", readiness.ENDING)


def test_a_server_that_ends_is_no_longer_ready(tmp_path, database_url):
    """It notices the signal, although the handler is the web server's own."""
    environment = processes.environment(database_url)
    command = [sys.executable, "-c", SERVER]
    with processes.running(command, tmp_path / "log", environment) as started:
        started.wait_for("200 OK")
        started.process.terminate()
        started.wait_for("503 Service Unavailable")
        started.process.kill()  # it ignores other signals


SERVER = """
import io, signal, time
signal.signal(signal.SIGTERM, lambda number, frame: None)
from ojs_project.wsgi import application
while True:
    answer = application(
        {"REQUEST_METHOD": "GET", "PATH_INFO": "/ojs/v1/ready", "QUERY_STRING": "",
         "SERVER_NAME": "localhost", "SERVER_PORT": "80", "wsgi.url_scheme": "http",
         "HTTP_HOST": "localhost", "wsgi.input": io.BytesIO()},
        lambda status, headers: print(status, flush=True),
    )
    list(answer)
    time.sleep(0.05)
"""
