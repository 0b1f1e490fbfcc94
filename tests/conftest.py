"""What every test may use: the database, its URL for other processes, the PostgreSQL mark."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from django.db import connection
from hypothesis import HealthCheck, settings

# A busy machine is no defect: no generated test may fail for what a clock says.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# A shell lets what it starts in the background ignore Ctrl-C, and its children inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if connection.vendor == "postgresql":
        return
    skip = pytest.mark.skip(reason="needs PostgreSQL: OJS_TEST_DATABASE=postgres")
    for item in items:
        if item.get_closest_marker("postgres"):
            item.add_marker(skip)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Put the SQLite test database into a file: threads and other processes share it."""
    if connection.vendor == "sqlite":
        folder = tmp_path_factory.mktemp("database")
        connection.settings_dict["TEST"]["NAME"] = str(folder / "test.sqlite3")


@pytest.fixture
def database_url(transactional_db: None) -> str:
    """The test database as a `DATABASE_URL`, for other processes.

    Transactional, because another process sees only what is committed.
    """
    return url_of_test_database()


def url_of_test_database() -> str:
    database = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{quote(str(database['NAME']))}"
    user, password, host, name = (
        quote(str(database[key]), safe="") for key in ("USER", "PASSWORD", "HOST", "NAME")
    )
    login = f"{user}:{password}" if password else user
    port = f":{database['PORT']}" if database["PORT"] else ""
    options = {key: text for key, text in database["OPTIONS"].items() if isinstance(text, str)}
    query = f"?{urlencode(options)}" if options else ""
    return f"postgresql://{login}@{host}{port}/{name}{query}"


@pytest.fixture(autouse=True)
def forgetful_process() -> Iterator[None]:
    """Forget what a server process remembers of rows: they go when the test ends."""
    from jobs.access import refusals
    from jobs.api.authentication import forget_keys
    from jobs.engine import forget_queues
    from ojs_project import middleware

    yield
    refusals.forget()
    forget_queues()
    forget_keys()
    # Where a path leads depends on options, which no server changes.
    middleware._matches.clear()


@pytest.fixture
def api(db: None, settings: Any) -> Any:
    """A client of a server that is open to everybody."""
    from .ojs_client import OJSClient

    settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": True}
    return OJSClient()
