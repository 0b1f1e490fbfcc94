"""A server whose default isolation level is stricter than READ COMMITTED."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.utils import timezone
from psycopg import IsolationLevel

from jobs import engine
from jobs.checks import check_database
from jobs.errors import DuplicateJob
from jobs.spec.validation import new_job
from jobs.store import writable
from jobs.store.database import run
from tests.concurrency.threads import together
from tests.database import alias, atomic, connection

pytestmark = pytest.mark.postgres


@pytest.fixture(params=["repeatable read", "serializable"])
def strict(request: Any, transactional_db: None) -> Iterator[None]:
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute(
            f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{request.param}'"
        )
    connection.close()
    yield
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_isolation')
    connection.close()


@pytest.fixture
def named(strict: None) -> Iterator[None]:
    """The site names the level itself, as the stand-alone project does."""
    connection.settings_dict["OPTIONS"]["isolation_level"] = IsolationLevel.READ_COMMITTED
    connection.close()
    yield
    del connection.settings_dict["OPTIONS"]["isolation_level"]
    connection.close()


def test_it_is_an_error_of_the_system_checks_a_warning_and_degrades_health(strict, api, caplog):
    (message,) = check_database(databases=[alias()])
    assert (message.id, message.is_serious()) == ("ojs.E038", True)
    assert "default_transaction_isolation" in message.hint

    writable.warn_of_isolation()
    assert writable.STRICT in caplog.text

    health = api.see("health")
    assert (health.status_code, health.json()["status"]) == (200, "degraded")
    assert health.json()["backend"]["error"] == writable.STRICT
    assert api.get("/ojs/v1/ready").status_code == 200


def test_a_site_that_names_the_level_has_nothing_to_set_right(named, api, caplog):
    assert check_database(databases=[alias()]) == []
    writable.warn_of_isolation()
    assert caplog.text == ""
    assert api.see("health").json()["backend"]["status"] == "healthy"


def test_a_site_that_names_the_level_has_it_in_all_statements(named):
    assert run("SHOW transaction_isolation", []) == [("read committed",)]
    with atomic():
        assert run("SHOW transaction_isolation", []) == [("read committed",)]
    with atomic(), connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        assert cursor.fetchone() == ("read committed",)


def test_where_the_level_is_named_racing_enqueues_of_a_unique_job_store_one(named):
    def enqueue() -> bool:
        unique = {"keys": ["type", "args"], "on_conflict": "reject"}
        document = {"type": "report.make", "args": [1], "unique": unique}
        try:
            engine.enqueue([new_job(document, timezone.now())])
        except DuplicateJob:
            return False
        return True

    assert together(*[enqueue] * 8).count(True) == 1
