"""Shared by all tests: the database, its URL for other processes, the PostgreSQL mark."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.core.management import call_command
from django.db import OperationalError, connections, transaction
from django.test import TransactionTestCase
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, settings

from workers.chores.housekeeping import install_schedules

from . import routers
from .database import alias, connection, migrate
from .listening import end_the_listener

# A busy machine is not a defect: no generated test may fail because of its duration.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Background processes of a shell ignore Ctrl-C, and so do their children.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


APART = alias() != "default"
"""Whether jobs and workers are in a separate database."""
OF_THE_SITE = {"admin_client", "admin_user", "database_url", "django_user_model"}
"""Fixtures that also need the other database."""
OF_BOTH = {
    "test_backend",
    "test_bulk_operations",
    "test_codecs",
    "test_every_binding",
    "test_fifth_protocol",
    "test_fleet",
    "test_history",
    "test_housekeeping",
    "test_maintenance",
    "test_marks",
    "test_middleware",
    "test_operators",
    "test_permissions",
    "test_rolling_drain",
    "test_specs",
}
"""Files whose tests also need it, besides those about the admin."""
LEFT_OUT = [
    # Parsing: decided before there is a statement.
    "bindings/test_any_client.py",
    "bindings/test_fuzzing.py",
    "bindings/test_hostile_input.py",
    "bindings/test_hostile_requests.py",
    # The same statements as in others, many more times.
    "benchmarks",
    "concurrency/test_chaos.py",
    "concurrency/test_claims.py",
    "concurrency/test_long_poll.py",
    "concurrency/test_races.py",
    "concurrency/test_workflows.py",
    "conformance",
    "jobs/test_model_of_the_lifecycle.py",
    "jobs/test_model_of_workflows.py",
    "jobs/test_query_plans.py",
    # Pages that tests/jobs and tests/workers open as well.
    "browser",
    # The stand-alone project and its deployment, which have one database.
    "campaign",
    "project",
    "sites",
    "test_database_url.py",
    "test_packaging.py",
    "test_readme.py",
    "workers/test_deployment.py",
    # Transactions that include the site's own tables.
    "workers/test_runtime_transactions.py",
]
"""Skipped behind a router: these tests would show nothing new, and take longer.

For each way to the database some tests remain: the engine and the reaper, in threads and in
processes; all protocols, by request and over open connections; the admin; the commands; the worker
process, beside the server's database and over HTTP; listeners; poolers.

With `--rest`, only these tests run, as far as they may depend on the database: `make test` runs
them on PostgreSQL as it is, and all others behind a router. The code never asks whether the jobs
have a database of their own, so a test that passes behind a router passes without one.
"""


KEPT = {"auth_permission", "django_content_type", "django_migrations"}
"""Tables that have the same rows in every test."""


def _flush(case: Any) -> None:
    """Empty the tables, again after a lock conflict.

    A server that serves a whole module may still be writing for the last connection.

    Django's own flush empties every table, in PostgreSQL into a new file for each of its indexes,
    and then looks for new permissions: a tenth of a second for each test.
    """
    for name in case._databases_names(include_mirrors=False):
        for is_last in (False, False, True):
            try:
                _empty(name)
                break
            except OperationalError:
                if is_last:
                    raise


def _empty(name: str) -> None:
    database = connections[name]
    quoted = {table: database.ops.quote_name(table) for table in _tables(name)}
    looks = (f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {it})" for table, it in quoted.items())
    with transaction.atomic(using=name), database.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(looks))
        for (table,) in cursor.fetchall():
            # Foreign keys are checked at the end of the transaction.
            cursor.execute(f"DELETE FROM {quoted[table]}")
        install_schedules(using=name)


@cache
def _tables(name: str) -> list[str]:
    found = connections[name].introspection.django_table_names(only_existing=True)
    return sorted(set(found) - KEPT)


TransactionTestCase._fixture_teardown = _flush

if APART:
    TransactionTestCase.databases = {alias()}
    collect_ignore = LEFT_OUT


LONG = ("slow", "browser", "conformance")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rest", action="store_true", help="leave out what OJS_TEST_DATABASE=router runs"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Files with long tests first: in the end, no process waits for another's.
    long = {item.path for item in items if any(map(item.get_closest_marker, LONG))}
    items.sort(key=lambda item: item.path not in long)
    if config.getoption("rest"):
        _keep(config, items, _is_of_the_rest)
    if APART:
        _keep(config, items, _needs_a_database)
        apart = pytest.mark.skip(reason="needs the jobs beside the site's own tables")
        for item in items:
            _confine(item)
            if item.get_closest_marker("one_database"):
                item.add_marker(apart)
    if connection.vendor == "postgresql":
        return
    skip = pytest.mark.skip(reason="needs PostgreSQL: OJS_TEST_DATABASE=postgres")
    for item in items:
        if item.get_closest_marker("postgres"):
            item.add_marker(skip)


def _keep(config: pytest.Config, items: list[pytest.Item], which: Callable[[Any], bool]) -> None:
    config.hook.pytest_deselected(items=[item for item in items if not which(item)])
    items[:] = filter(which, items)


def _is_of_the_rest(item: Any) -> bool:
    """Whether a test may depend on the database, and is not run behind a router."""
    return bool(
        _is_left_out(item.path)
        or item.get_closest_marker("one_database")
        or (item.get_closest_marker("postgres") and not _needs_a_database(item))
    )


@cache
def _is_left_out(file: Path) -> bool:
    return any(file.is_relative_to(Path(__file__).parent / name) for name in LEFT_OUT)


def _needs_a_database(item: Any) -> bool:
    """Whether the location of the jobs may affect a test."""
    return bool(
        item.get_closest_marker("django_db")
        or "_django_db_helper" in item.fixturenames
        # It requests the database while it runs.
        or item.path.stem == "test_testing"
    )


def _confine(item: Any) -> None:
    """Let a test use only the jobs' database, unless it needs the site's users as well.

    A statement that uses the wrong database then fails. A transaction on the other database would
    hide some that do.
    """
    marker = item.get_closest_marker("django_db")
    if marker is None and "_django_db_helper" not in item.fixturenames:
        return
    file = item.path.stem
    of_both = "admin" in file or file in OF_BOTH
    needs_all = of_both or not OF_THE_SITE.isdisjoint(item.fixturenames)
    names = list(connections) if needs_all else [alias()]
    given = dict(marker.kwargs) if marker else {}
    item.add_marker(pytest.mark.django_db(**{"databases": names} | given), append=False)


@pytest.fixture
def django_assert_num_queries(request: Any, django_assert_num_queries: Any) -> Any:
    """Counts the queries to all databases that the test may use."""
    return partial(_counted, request) if APART else django_assert_num_queries


@pytest.fixture
def django_assert_max_num_queries(request: Any, django_assert_max_num_queries: Any) -> Any:
    """Counts the queries to all databases that the test may use."""
    most = partial(_counted, request, exact=False)
    return most if APART else django_assert_max_num_queries


@contextlib.contextmanager
def _counted(request: Any, number: int, *, exact: bool = True) -> Iterator[Any]:
    marker = request.node.get_closest_marker("django_db")
    others = set(marker.kwargs["databases"]) - {alias()}
    with contextlib.ExitStack() as stack:
        elsewhere = [
            stack.enter_context(CaptureQueriesContext(connections[name])) for name in others
        ]
        with CaptureQueriesContext(connection) as here:
            yield here
        count = len(here) + sum(map(len, elsewhere))
    assert count == number if exact else count <= number, here.captured_queries


@pytest.fixture
def django_capture_on_commit_callbacks(django_capture_on_commit_callbacks: Any) -> Any:
    """Captures functions registered for a commit in the jobs' database."""
    return partial(django_capture_on_commit_callbacks, using=alias())


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Put the SQLite test database into a file: so that threads and other processes share it."""
    if connection.vendor == "sqlite":
        folder = tmp_path_factory.mktemp("database")
        connection.settings_dict["TEST"]["NAME"] = str(folder / "test.sqlite3")


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None, django_db_blocker: Any) -> None:
    """Pass the site's own database to every process that a test starts.

    With `OJS_TEST_EVENTS=partitioned`, on PostgreSQL, the record of events is in partitions.
    """
    if APART:
        os.environ[routers.OTHER] = url_of_test_database("default")
    if os.environ.get("OJS_TEST_EVENTS") == "partitioned":
        with django_db_blocker.unblock():
            call_command("partitionevents", verbosity=0)


@pytest.fixture(scope="module", autouse=True)
def no_listener_is_left_behind() -> Iterator[None]:
    """The listening thread would write its row during the tests of the next file, and keep a
    connection to the test database, which prevents its deletion."""
    yield
    end_the_listener()


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """The test database as a `DATABASE_URL`, for other processes.

    Transactional, because another process sees only what is committed.
    """
    return url_of_test_database()


def url_of_test_database(name: str = alias()) -> str:
    database = connections[name].settings_dict
    if connections[name].vendor == "sqlite":
        return f"sqlite:///{quote(str(database['NAME']))}"
    user, password, host, named = (
        quote(str(database[key]), safe="") for key in ("USER", "PASSWORD", "HOST", "NAME")
    )
    login = f"{user}:{password}" if password else user
    port = f":{database['PORT']}" if database["PORT"] else ""
    options = {key: text for key, text in database["OPTIONS"].items() if isinstance(text, str)}
    query = f"?{urlencode(options)}" if options else ""
    return f"postgresql://{login}@{host}{port}/{named}{query}"


@pytest.fixture
def at_the_newest() -> Iterator[None]:
    """For a test that migrates backwards: afterwards, everything is there again."""
    yield
    # Whatever follows the migration that the test is about, in either app.
    migrate()


@pytest.fixture(autouse=True)
def forgetful_process() -> Iterator[None]:
    """Clear the caches of rows in this process: the rows are deleted after the test."""
    from jobs.access import refusals
    from jobs.engine import forget_queues, held_back, retention, schemas
    from jobs.http.authentication import forget_keys
    from jobs.store import outages
    from ojs_project import middleware

    yield
    refusals.forget()
    outages.forget()
    forget_queues()
    held_back.forget()
    retention.forget_looks()
    schemas.forget()
    forget_keys()
    # The view of a path depends on options, which never change on a real server.
    middleware._matches.clear()


@pytest.fixture
def api(db: None, settings: Any) -> Any:
    """A client of a server that is open to everyone."""
    from .ojs_client import OJSClient

    settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": True}
    return OJSClient()
