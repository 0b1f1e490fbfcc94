"""Connections notice that the database has gone; a restart of it causes no errors."""

from __future__ import annotations

import logging
import select
import threading

import pytest
from django.core.checks import run_checks
from django.db import OperationalError

from jobs import engine
from jobs.store import keepalive, watchdog
from jobs.store.database import borrowed, drop_if_dead
from tests.database import alias, another_connection, atomic, connection
from tests.processes import eventually

pytestmark = pytest.mark.postgres


def session() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        number: int = cursor.fetchone()[0]
        return number


def hang_up() -> None:
    """Act like a server that restarts."""
    number = session()
    line = select.poll()
    line.register(connection.connection.pgconn.socket, select.POLLRDHUP)
    with another_connection(autocommit=True) as operator:
        operator.execute("SELECT pg_terminate_backend(%s)", [number])
    eventually(lambda: line.poll(0))


# A server that hung up


def test_a_request_after_a_restart_of_the_database_is_answered(transactional_db, api):
    api.pushed()
    hang_up()

    assert api.push().status_code == 201


def test_work_outside_a_request_begins_with_a_connection_that_is_alive(transactional_db):
    hang_up()

    with borrowed():
        assert session()


def test_a_connection_that_is_alive_is_kept(transactional_db):
    number = session()

    drop_if_dead(connection)

    assert session() == number


def test_a_notice_is_no_farewell(transactional_db):
    number = session()
    with connection.cursor() as cursor, another_connection(autocommit=True) as operator:
        cursor.execute("LISTEN ojs_test")
        operator.execute("NOTIFY ojs_test")
        # The answer to another statement comes after it.
        operator.execute("SELECT 1")

    drop_if_dead(connection)

    assert session() == number


def test_a_transaction_is_never_taken_up_anew(transactional_db):
    with pytest.raises(OperationalError), atomic():
        hang_up()
        drop_if_dead(connection)
        session()
    connection.close()


# A server that hangs


@pytest.fixture
def holder(transactional_db):
    with another_connection() as other:
        other.execute("LOCK TABLE ojs_jobs_job")
        yield other


def test_a_statement_that_waits_too_long_is_cancelled(holder, caplog):
    with (
        caplog.at_level(logging.ERROR, "jobs.watchdog"),
        pytest.raises(OperationalError, match="cancel"),
        watchdog.bounded("The chore", 0.1),
        connection.cursor() as cursor,
    ):
        cursor.execute("SELECT count(*) FROM ojs_jobs_job")

    assert "The chore has been waiting for the database" in caplog.text
    assert session(), "the connection lives"


DEAF = """
    DO $$ BEGIN
        LOOP
            BEGIN
                PERFORM pg_sleep(60);
            EXCEPTION WHEN query_canceled THEN
            END;
        END LOOP;
    END $$
"""


def test_a_server_that_heeds_nothing_is_left(transactional_db, caplog, monkeypatch):
    """Like a frozen server, it does not process the cancel request either."""
    monkeypatch.setattr(watchdog, "PATIENCE", 0.1)
    with pytest.raises(OperationalError), watchdog.bounded("The chore", 0.1):
        number = session()
        with connection.cursor() as cursor:
            cursor.execute(DEAF)

    assert "its connection is cut" in caplog.text
    with another_connection(autocommit=True) as operator:
        operator.execute("SELECT pg_terminate_backend(%s)", [number])
    with borrowed():
        assert session() != number


def test_the_hot_statements_can_be_cancelled_as_well(holder, api):
    with pytest.raises(OperationalError), watchdog.bounded("A fetch", 0.1):
        engine.claim(["default"])


def test_waiting_for_something_else_is_no_concern_of_it(transactional_db, caplog):
    long_enough = threading.Event()
    with watchdog.bounded("The worker", 0.01, long_enough.set):
        session()
        # Logged after twice the limit plus the patience.
        assert long_enough.wait(45)
        assert session()

    assert "cancelled" not in caplog.text


# What a site sets


def test_parameters_that_the_site_sets_stay(monkeypatch):
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "3")

    missing = keepalive.missing({"keepalives_idle": 60})

    assert "keepalives_idle" not in missing
    assert "connect_timeout" not in missing
    assert missing["tcp_user_timeout"] > 0
    assert keepalive.missing({"service": "ours"}) == {}


def test_a_process_that_runs_for_long_adds_them_to_the_sites_own(transactional_db, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"keepalives_idle": 60})

    keepalive.apply()

    parameters = connection.get_connection_params()
    assert parameters["keepalives_idle"] == 60
    assert parameters["tcp_user_timeout"] == keepalive.PARAMETERS["tcp_user_timeout"]


@pytest.mark.parametrize(
    ("host", "options", "warned"),
    [
        ("db.example.com", {}, True),
        ("db.example.com", keepalive.PARAMETERS, False),
        ("/var/run/postgresql", {}, False),
        ("", {}, False),
    ],
)
def test_a_site_whose_database_is_elsewhere_is_asked_to_add_an_option(
    db, monkeypatch, host, options, warned
):
    monkeypatch.setitem(connection.settings_dict, "HOST", host)
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", dict(options))

    found = [
        warning
        for warning in run_checks(tags=["ojs"], databases=[alias()])
        if warning.id == "ojs.W020"
    ]

    assert bool(found) is warned
    for warning in found:
        assert '"tcp_user_timeout": 10000' in warning.hint
