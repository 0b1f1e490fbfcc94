"""Database errors: those worth a retry, and how they are reported."""

from __future__ import annotations

import sqlite3
import traceback

import django.db
import psycopg
import pytest
from django.core.management import CommandError, call_command
from psycopg import errors

import jobs
from jobs.errors import DatabaseRefused, DatabaseUnavailable
from jobs.models import Job
from jobs.store import trouble
from tests.database import another_connection, connection, rolled_back


def as_django(problem: Exception) -> Exception:
    """Django's error for one of a driver."""
    with pytest.raises(django.db.Error) as caught, connection.wrap_database_errors:
        raise problem
    return caught.value


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("sqlstate", "sentence"),
    [
        ("08006", trouble.UNREACHABLE),
        ("08P01", trouble.UNREACHABLE),
        ("25006", trouble.ONLY_READS),
        ("25P03", trouble.UNREACHABLE),
        ("26000", trouble.POOLED),
        ("40001", trouble.COLLISION),
        ("40P01", trouble.COLLISION),
        ("42501", trouble.NO_PERMISSION),
        ("42703", trouble.NOT_MIGRATED),
        ("42P01", trouble.NOT_MIGRATED),
        ("42P05", trouble.POOLED),
        ("53100", trouble.EXHAUSTED),
        ("53200", trouble.EXHAUSTED),
        ("53300", trouble.NO_CONNECTION),
        ("55P03", trouble.TOO_SLOW),
        ("57014", trouble.TOO_SLOW),
        ("57P01", trouble.RESTARTING),
        ("57P02", trouble.RESTARTING),
        ("57P03", trouble.RESTARTING),
        ("58030", trouble.EXHAUSTED),
    ],
)
def test_what_may_pass_is_worth_another_try(sqlstate, sentence):
    found = trouble.explain(as_django(errors.lookup(sqlstate)("of the server")))

    assert isinstance(found, DatabaseUnavailable)
    assert (str(found), found.retryable) == (sentence, True)


@pytest.mark.postgres
@pytest.mark.parametrize("sqlstate", ["22003", "22P05", "23505", "42601", "54000", "XX000"])
def test_what_would_fail_again_is_not(sqlstate):
    found = trouble.explain(as_django(errors.lookup(sqlstate)("of the server")))

    assert isinstance(found, DatabaseRefused)
    assert not found.retryable


@pytest.mark.postgres
@pytest.mark.parametrize(
    "text",
    [
        "could not commit transaction for shard 102040 on at least one active node",
        "failure on connection marked as essential: 10.0.0.7:5432",
        "server closed the connection unexpectedly\n\tThis probably means the server terminated",
        "SSL connection has been closed unexpectedly",
        "could not receive data from server: Connection reset by peer",
        "no connection to the server",
        "connection not open",
    ],
)
def test_a_node_of_citus_that_is_lost_is_unreachable(text):
    found = trouble.explain(as_django(errors.lookup("XX000")(text)))

    assert isinstance(found, DatabaseUnavailable)
    assert (str(found), found.retryable) == (trouble.UNREACHABLE, True)


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("problem", "sentence"),
    [
        (psycopg.OperationalError("server closed the connection unexpectedly"), None),
        (psycopg.InterfaceError("the connection is closed"), None),
        # psycopg's error for a result without SQLSTATE: libpq's own.
        (psycopg.DatabaseError("could not receive data from server"), None),
        (errors.ConnectionTimeout("connection timeout expired"), trouble.TOO_SLOW),
        (
            psycopg.OperationalError("connection failed: FATAL:  sorry, too many clients already"),
            trouble.NO_CONNECTION,
        ),
        (
            psycopg.OperationalError("FATAL:  remaining connection slots are reserved for …"),
            trouble.NO_CONNECTION,
        ),
        (
            psycopg.OperationalError("FATAL:  no more connections allowed (max_client_conn)"),
            trouble.NO_CONNECTION,
        ),
        (
            psycopg.OperationalError("FATAL:  the database system is starting up"),
            trouble.RESTARTING,
        ),
    ],
)
def test_an_error_without_sqlstate_is_one_of_the_connection(problem, sentence):
    found = trouble.explain(as_django(problem))

    assert isinstance(found, DatabaseUnavailable)
    assert str(found) == (sentence or trouble.UNREACHABLE)


@pytest.mark.postgres
@pytest.mark.parametrize(
    "problem", [psycopg.DataError("a NUL in a text"), psycopg.ProgrammingError("2 placeholders")]
)
def test_what_the_driver_itself_refuses_is_refused(problem):
    assert isinstance(trouble.explain(as_django(problem)), DatabaseRefused)


@pytest.mark.parametrize(
    "problem",
    [django.db.DatabaseError("of Django"), django.db.transaction.TransactionManagementError()],
)
def test_an_error_of_djangos_own_is_a_bug(problem):
    assert isinstance(trouble.explain(problem), DatabaseRefused)


@pytest.mark.parametrize("problem", [ValueError("x"), OSError("x"), KeyError("x")])
def test_other_errors_are_none_of_the_database(problem):
    assert trouble.explain(problem) is None
    assert not trouble.is_transient(problem)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite")
@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("SELECT * FROM nowhere", trouble.NOT_MIGRATED),
        ("SELECT missing FROM ojs_jobs_job", trouble.NOT_MIGRATED),
    ],
)
def test_sqlite_without_its_tables(db, statement, sentence):
    with pytest.raises(django.db.Error) as caught, connection.cursor() as cursor:
        cursor.execute(statement)

    assert str(trouble.explain(caught.value)) == sentence


@pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite")
def test_sqlite_that_is_busy_is_not_called_unreachable(transactional_db):
    other = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 1")
            with pytest.raises(django.db.OperationalError) as caught:
                cursor.execute("DELETE FROM ojs_jobs_job")
    finally:
        other.close()
        connection.close()

    assert str(trouble.explain(caught.value)) == trouble.TOO_SLOW


# As a client sees them


@pytest.mark.postgres
def test_a_statement_timeout_is_answered_503_and_not_called_unreachable(api, transactional_db):
    with connection.cursor() as cursor:
        cursor.execute("SET statement_timeout = '50ms'")
    try:
        with another_connection() as other:
            other.execute("LOCK TABLE ojs_jobs_job IN ACCESS EXCLUSIVE MODE")
            reply = api.push()
    finally:
        connection.close()

    assert (reply.status_code, reply.headers["Retry-After"]) == (503, "1")
    error = reply.json()["error"]
    assert (error["code"], error["retryable"]) == ("backend_error", True)
    assert error["message"] == trouble.TOO_SLOW
    assert not Job.objects.exists()


@pytest.mark.postgres
def test_a_connection_that_goes_in_mid_statement_is_answered_503(api, transactional_db):
    """A client that follows the protocol would drop the job after a 500 that is not retryable."""

    def end(execute, sql, parameters, many, context):
        execute("SELECT pg_terminate_backend(pg_backend_pid())", None, False, context)

    try:
        with connection.execute_wrapper(end):
            reply = api.push()
    finally:
        connection.close()

    assert reply.status_code == 503
    assert reply.json()["error"]["retryable"] is True


@pytest.mark.postgres
def test_a_standby_is_said_to_take_only_reads(api, transactional_db):
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    try:
        reply = api.push()
    finally:
        connection.close()

    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == trouble.ONLY_READS


@pytest.mark.postgres
def test_a_site_that_is_not_migrated_says_so(api, db):
    with rolled_back(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE ojs_jobs_queue RENAME TO ojs_jobs_queue_of_another_version")
        reply = api.push()

    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == trouble.NOT_MIGRATED


@pytest.mark.postgres
def test_lost_prepared_statements_point_to_the_pooler(api, transactional_db):
    assert api.push().status_code == 201
    try:
        with rolled_back(), connection.cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")
            reply = api.push()
    finally:
        connection.close()

    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == trouble.POOLED


@pytest.mark.postgres
def test_in_python_and_in_commands_they_point_to_the_pooler_as_well(transactional_db):
    jobs.enqueue("email.send")
    try:
        with pytest.raises(django.db.Error) as lost, rolled_back():
            with connection.cursor() as cursor:
                cursor.execute("DEALLOCATE ALL")
            jobs.enqueue("email.send")
        jobs.enqueue("email.send")
        with pytest.raises(CommandError) as refused, rolled_back():
            with connection.cursor() as cursor:
                cursor.execute("DEALLOCATE ALL")
            call_command("jobs", "enqueue", "email.send")
    finally:
        connection.close()

    assert trouble.POOLED in "".join(traceback.format_exception(lost.value))
    assert str(refused.value).startswith(trouble.POOLED)


@pytest.mark.postgres
def test_a_sequence_behind_its_table_is_called_that(transactional_db, api):
    """As after a restore that left the sequences out."""
    api.pushed()
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval(pg_get_serial_sequence('ojs_jobs_event', 'id'), 1, false)")
        cursor.execute("UPDATE ojs_jobs_event SET id = 1")

    reply = api.push()

    assert reply.status_code == 503
    assert reply.json()["error"]["message"] == trouble.BEHIND
    # The failed insert has drawn the id.
    assert api.push().status_code == 201
