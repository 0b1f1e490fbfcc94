"""Marks for tests that need not run on each database."""

import pytest

from .database import connection

once_is_enough = pytest.mark.skipif(
    connection.vendor != "sqlite", reason="shows the same on every database: run on SQLite"
)
"""It brings an SQLite file, needs no database, or tests what is decided in Python."""

once_is_enough_on_postgresql = pytest.mark.skipif(
    connection.vendor != "postgresql", reason="PostgreSQL refuses more: OJS_TEST_DATABASE=postgres"
)
"""It sends input of every kind, which ends in an error of the database more often on PostgreSQL."""
