"""The hot statements on PostgreSQL bypass cursors, without any visible difference but speed."""

from __future__ import annotations

import contextlib
import threading
import unittest
from collections.abc import Iterator
from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    OperationalError,
    close_old_connections,
)
from django.db.transaction import TransactionManagementError
from django.test import SimpleTestCase
from django.test.utils import CaptureQueriesContext
from psycopg import IsolationLevel

import jobs
from jobs.models import Job, Queue
from jobs.store import prepared as prepared_statements
from jobs.store.database import run, run_together
from tests.database import atomic, connection, rolled_back

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

INSERT = """
    INSERT INTO ojs_jobs_queue (name, paused_by, pause_reason, created_at)
    VALUES (%s, '', '', now())
 RETURNING name
"""


@pytest.fixture(autouse=True)
def a_fresh_connection(transactional_db: None) -> Iterator[None]:
    connection.close()
    yield
    connection.close()


def prepared() -> int:
    (names,) = run("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'ojs%%'", [])
    return names[0]


def test_a_statement_is_prepared_once_for_each_kind_of_parameter():
    before = prepared()

    rows = [run("SELECT %s, %s::text[]", [number, ["a", "b"]]) for number in (1, 2, 3)]
    other = run("SELECT %s, %s::text[]", ["three", ["a"]])

    assert rows == [[(number, ["a", "b"])] for number in (1, 2, 3)]
    assert other == [("three", ["a"])]
    assert prepared() == before + 2


def test_times_are_read_as_django_reads_them_row_by_row():
    statement = """
        SELECT moment, moment + '1 day'
          FROM unnest(ARRAY['2026-01-02 03:04:05.678+00', '2026-01-02 03:04:05.678+00', NULL,
                            '1999-12-31 23:59:59+02', '2026-01-02 03:04:05.678+00']::timestamptz[])
            AS moment
    """
    with connection.cursor() as cursor:
        cursor.execute(statement)
        expected = cursor.fetchall()

    rows = run(statement, [])

    assert rows == expected
    assert [row[0] and row[0].tzinfo for row in rows] == [row[0] and UTC for row in expected]


def test_times_are_read_in_the_time_zone_of_the_database():
    """In winter, London's offset from UTC is 0."""
    london = connection.copy()
    london.settings_dict["TIME_ZONE"] = "Europe/London"
    statement = (
        "SELECT '2026-01-02 03:04:05+00'::timestamptz, '2026-07-02 03:04:05+00'::timestamptz"
    )
    try:
        with london.cursor() as cursor:
            cursor.execute(statement)
            expected = cursor.fetchall()
        (rows,) = prepared_statements.execute(london, (statement, []))
    finally:
        london.close()

    assert rows == expected
    assert [time.tzinfo for time in rows[0]] == [ZoneInfo("Europe/London")] * 2


def test_parameters_may_have_names_and_stand_twice():
    statement = "SELECT %(a)s::text || %(b)s::text || %(a)s::text, 7 %% 4"

    assert run(statement, {"b": "-", "a": "x"}) == [("x-x", 3)]


def test_a_statement_without_rows_answers_none():
    assert run("SELECT 1 WHERE %s", [False]) == []


def test_a_document_larger_than_any_buffer_goes_through():
    document = "x" * 20_000_000

    assert run("SELECT length(%s::text)", [document]) == [(20_000_000,)]


def test_the_query_log_sees_every_statement():
    run("SELECT %s::int", [1])

    with CaptureQueriesContext(connection) as queries:
        run("SELECT %s::int", [2])

    assert len(queries) == 1


def test_execute_wrappers_see_every_statement():
    seen: list[str] = []

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(sql)
        return execute(sql, params, many, context)

    run("SELECT %s::int", [1])
    with connection.execute_wrapper(wrapper):
        run("SELECT %s::int", [1])

    assert seen == ["SELECT %s::int"]


def test_a_test_that_may_not_use_the_database_cannot_enqueue_either():
    """Django's tests replace `cursor` of such a connection, even if it is open."""
    jobs.enqueue("email.send", [1])  # from now on this process knows the queue

    class Forbidden(SimpleTestCase):
        def test_enqueues(self) -> None:
            jobs.enqueue("email.send", [2])

    result = unittest.TestResult()
    unittest.TestSuite([Forbidden("test_enqueues")]).run(result)

    ((_, report),) = result.failures + result.errors
    assert "DatabaseOperationForbidden" in report
    assert [job.args for job in Job.objects.all()] == [[1]]


def test_after_such_a_test_statements_are_prepared_again():
    class Forbidden(SimpleTestCase):
        def test_nothing(self) -> None: ...

    run("SELECT %s::int", [1])
    unittest.TestSuite([Forbidden("test_nothing")]).run(unittest.TestResult())
    before = prepared()

    run("SELECT %s::int + 1", [1])

    assert prepared() == before + 1


@pytest.mark.parametrize("position", ["first", "later"])
def test_what_it_does_in_a_transaction_goes_with_it(position):
    with pytest.raises(ZeroDivisionError), atomic():
        if position == "later":
            Queue.objects.create(name="other")
        run(INSERT, ["one"])
        raise ZeroDivisionError

    assert not Queue.objects.exists()


def test_outside_a_transaction_it_is_committed_at_once():
    run(INSERT, ["one"])
    connection.close()

    assert Queue.objects.get().name == "one"


def test_errors_are_those_of_django():
    run(INSERT, ["one"])

    with pytest.raises(IntegrityError, match="duplicate key"):
        run(INSERT, ["one"])
    with pytest.raises(DataError):
        run(INSERT, ["x" * 200])
    # The connection is still usable.
    assert run(INSERT, ["two"]) == [("two",)]


def test_a_broken_transaction_refuses_it_as_every_statement():
    with atomic():
        with pytest.raises(IntegrityError), atomic():
            run(INSERT, ["one"])
            run(INSERT, ["one"])
        connection.needs_rollback = True

        with pytest.raises(TransactionManagementError):
            run(INSERT, ["two"])
        connection.needs_rollback = False


def test_a_discarded_statement_is_prepared_again():
    run("SELECT %s::int", [1])
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")

    assert run("SELECT %s::int", [2]) == [(2,)]


def names() -> dict[str, str]:
    """Name → statement, of all that are prepared on the connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT name, statement FROM pg_prepared_statements WHERE name LIKE 'ojs%'")
        return dict(cursor.fetchall())


def test_the_name_of_a_statement_is_that_of_no_other_on_any_connection():
    """Processes that share a session by mistake must not run each other's statements."""
    run("SELECT %s::int", [1])
    run("SELECT %s::text", ["a"])
    first = names()
    connection.close()

    run("SELECT %s::text", ["a"])
    run("SELECT %s::int", [1])

    assert names() == first
    assert len(first) == 2


def test_a_statement_that_is_prepared_already_is_used():
    """A thread that was interrupted after preparing it does not know that it did."""
    run("SELECT %s::int", [1])
    prepared_statements._names[connection.connection].clear()

    assert run("SELECT %s::int", [2]) == [(2,)]


@pytest.mark.parametrize("forget", ["DEALLOCATE ALL", None])
def test_in_a_transaction_only_the_first_suffers(forget):
    run("SELECT %s::int", [1])
    with connection.cursor() as cursor:
        if forget:
            cursor.execute(forget)
        else:
            prepared_statements._names[connection.connection].clear()

    with pytest.raises(DatabaseError), atomic():
        run("SELECT %s::int", [2])

    with atomic():
        assert run("SELECT %s::int", [3]) == [(3,)]


def planning() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW plan_cache_mode")
        return str(cursor.fetchone()[0])


def test_a_session_plans_what_is_prepared_once():
    run("SELECT 1", [])
    assert planning() == "force_generic_plan"

    run("DISCARD ALL", [])
    run("SELECT 1", [])
    run("SELECT 1", [])
    assert planning() == "force_generic_plan"


def test_that_is_not_left_to_a_transaction_which_may_be_rolled_back():
    with rolled_back():
        run("SELECT 1", [])
    assert planning() == "auto"

    run("SELECT 1", [])
    assert planning() == "force_generic_plan"


def test_a_site_that_binds_on_the_server_plans_as_it_likes(monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {"server_side_binding": True})

    run("SELECT 1", [])

    assert planning() == "auto"


def test_a_rollback_does_not_make_it_unknown():
    Queue.objects.create(name="other")
    run("SELECT %s::int", [1])
    with pytest.raises(ZeroDivisionError), atomic():
        run("SELECT %s::int", [1])
        raise ZeroDivisionError

    with atomic():
        assert run("SELECT %s::int", [2]) == [(2,)]


@pytest.mark.parametrize("threshold", [0, 1])
def test_where_psycopg_prepares_by_itself_all_go_its_way(threshold):
    """On a rollback, it discards all prepared statements of the connection."""
    Queue.objects.exists()
    connection.connection.prepare_threshold = threshold
    with pytest.raises(ZeroDivisionError), atomic():
        run("SELECT %s::int", [1])
        raise ZeroDivisionError

    with atomic():
        assert run("SELECT %s::int", [2]) == [(2,)]
    assert prepared() == 0


def test_a_site_that_always_watches_still_does_not_plan_each_time():
    def wrapper(execute: Any, *args: Any) -> Any:
        return execute(*args)

    with connection.execute_wrapper(wrapper):
        for number in range(3):
            run("SELECT %s::int", [number])
        ((names,),) = run("SELECT count(*) FROM pg_prepared_statements", [])

    assert names >= 1


def test_a_transaction_is_of_the_isolation_that_the_site_asked_for():
    Queue.objects.exists()
    connection.connection.isolation_level = IsolationLevel.SERIALIZABLE

    with atomic():
        assert run("SHOW transaction_isolation", []) == [("serializable",)]


def terminate_the_connection() -> None:
    killer = connection.copy()
    with killer.cursor() as cursor:
        pid = connection.connection.info.backend_pid
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    killer.close()


def test_a_connection_that_broke_is_reported_and_replaced():
    run("SELECT %s::int", [1])
    terminate_the_connection()

    with pytest.raises(OperationalError):
        run("SELECT %s::int", [1])

    close_old_connections()
    assert run("SELECT %s::int", [2]) == [(2,)]


@pytest.mark.parametrize("statements", [1, 2])
def test_other_threads_go_on_while_one_waits_for_the_database(statements):
    """libpq waits without the interpreter's lock; otherwise a server would stand still."""
    with atomic():
        run("SELECT pg_advisory_xact_lock(%s::bigint)", [7])
        answers: list[Any] = []

        def wait_for_the_lock() -> None:
            # An error instead of a test that never ends, if the lock cannot be released.
            run("SELECT set_config('lock_timeout', %s, false)", ["20s"])
            lock = ("SELECT pg_advisory_lock(%s::bigint)", [7])
            answers.append(run_together(*[lock] * statements))
            connection.close()

        thread = threading.Thread(target=wait_for_the_lock)
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while thread.is_alive() and run(waiting, []) == [(0,)]:
            pass
        assert answers == []
    thread.join(120)

    assert len(answers) == 1


def test_several_happen_together_and_see_one_another():
    rows = run_together(
        (INSERT, ["one"]),
        ("SELECT count(*) FROM ojs_jobs_queue WHERE name = %(name)s", {"name": "one"}),
    )

    assert rows == [[("one",)], [(1,)]]
    connection.close()
    assert Queue.objects.get().name == "one"


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("fails", [0, 1, 2])
def test_of_several_all_are_undone_by_the_error_of_one(watched, fails):
    statements = [(INSERT, [name]) for name in ("one", "two", "three")]
    statements[fails] = ("SELECT 1 / %s::int", [0])

    listening = CaptureQueriesContext(connection) if watched else contextlib.nullcontext()
    with listening, pytest.raises(DataError, match="division by zero"):
        run_together(*statements)

    assert not Queue.objects.exists()
    # The connection is still usable.
    assert run_together((INSERT, ["one"]), (INSERT, ["two"])) == [[("one",)], [("two",)]]


def test_several_in_a_transaction_go_with_it():
    with pytest.raises(ZeroDivisionError), atomic():
        run_together((INSERT, ["one"]), (INSERT, ["two"]))
        raise ZeroDivisionError

    assert not Queue.objects.exists()


def test_several_in_a_savepoint_are_undone_with_it():
    with atomic():
        Queue.objects.create(name="other")
        with pytest.raises(IntegrityError), atomic():
            run_together((INSERT, ["one"]), (INSERT, ["one"]))

    assert Queue.objects.get().name == "other"


def test_several_discarded_statements_are_prepared_again():
    both = (INSERT, ["one"]), ("SELECT %s::int", [1])
    run_together(*both)
    Queue.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute("DEALLOCATE ALL")

    assert run_together(*both) == [[("one",)], [(1,)]]


def test_of_several_statements_only_the_discarded_one_is_prepared_again():
    both = ("SELECT %s::int", [1]), ("SELECT %s::text", ["a"])
    run_together(*both)
    (last,) = (name for name, statement in names().items() if "text" in statement)
    with connection.cursor() as cursor:
        cursor.execute(f"DEALLOCATE {last}")

    assert run_together(*both) == [[(1,)], [("a",)]]


def test_several_on_a_connection_that_is_gone_are_an_error_of_django():
    run_together(("SELECT %s::int", [1]), ("SELECT %s::int", [2]))
    terminate_the_connection()

    with pytest.raises(OperationalError):
        run_together(("SELECT %s::int", [1]), ("SELECT %s::int", [2]))
    close_old_connections()
    assert run_together(("SELECT %s::int", [1])) == [[(1,)]]
