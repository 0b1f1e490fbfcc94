"""A mark for tests that would show the same on every database."""

import pytest

from .database import connection

once_is_enough = pytest.mark.skipif(
    connection.vendor != "sqlite", reason="brings its own SQLite file, or needs no database"
)
