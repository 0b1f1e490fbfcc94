"""A mark for tests that would show the same on every database.

They bring an SQLite file, need no database, or test what is decided in Python.
"""

import pytest

from .database import connection

once_is_enough = pytest.mark.skipif(
    connection.vendor != "sqlite", reason="shows the same on every database: run on SQLite"
)
