"""Whether the database takes writes: standbys, read-only files and full disks take reads only."""

from __future__ import annotations

from typing import Any

from django.db import DatabaseError

from .database import atomic, connection, is_postgresql
from .trouble import ONLY_READS, TOO_SLOW, explain

READ_ONLY = "SELECT current_setting('transaction_read_only')"
"""`on` for a standby, too."""


def obstacle() -> str:
    """Return what keeps the database from taking writes; an empty text if nothing does.

    On PostgreSQL, nothing is written to find out, so that a full disk is not noticed.

    Raises:
        django.db.Error: it takes no reads either.
    """
    with connection().cursor() as cursor:
        if is_postgresql():
            cursor.execute(READ_ONLY)
            return ONLY_READS if cursor.fetchone() == ("on",) else ""
        return _obstacle_of_file(cursor)


def _obstacle_of_file(cursor: Any) -> str:
    """Write the number in the header of an SQLite file that is the site's own, as it is.

    Nothing but a commit finds out whether the disk is full.
    """
    patience = _value(cursor, "busy_timeout")
    _value(cursor, "user_version")
    # Whoever is writing at the moment shows that it is possible.
    cursor.execute("PRAGMA busy_timeout = 0")
    try:
        with atomic():
            cursor.execute(f"PRAGMA user_version = {_value(cursor, 'user_version')}")
    except DatabaseError as problem:
        sentence = str(explain(problem))
        return "" if sentence == TOO_SLOW else sentence
    finally:
        cursor.execute(f"PRAGMA busy_timeout = {patience}")
    return ""


def _value(cursor: Any, pragma: str) -> int:
    cursor.execute(f"PRAGMA {pragma}")
    (value,) = cursor.fetchone()
    return int(value)
