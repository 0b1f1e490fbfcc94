"""Marks for tests that need not run in each of the suite's three configurations."""

import pytest

from .database import alias, connection

once_is_enough = pytest.mark.skipif(
    connection.vendor != "sqlite", reason="shows the same on every database: run on SQLite"
)
"""It brings an SQLite file, needs no database, or tests what is decided in Python."""

once_is_enough_on_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="PostgreSQL refuses more: OJS_TEST_DATABASE=postgres"
)
"""It sends input of every kind, which ends in an error of the database more often on PostgreSQL."""

behind_a_router = pytest.mark.skipif(
    connection.vendor == "postgresql" and alias() == "default",
    reason="takes long; on PostgreSQL, run behind a database router: OJS_TEST_DATABASE=router",
)
