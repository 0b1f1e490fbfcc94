"""Whether the database can be relied on: whether it takes writes, and isolates transactions so that
every statement sees what others have committed.

Standbys, read-only files and full disks take reads only.
"""

from __future__ import annotations

import logging
from typing import Any

from django.db import DatabaseError, Error

from .database import atomic, connection, is_postgresql
from .trouble import ONLY_READS, TOO_SLOW, explain

logger = logging.getLogger("jobs")

SETTINGS = """
    SELECT current_setting('transaction_read_only'), current_setting('transaction_isolation')
"""
"""Read-only is `on` for a standby, too."""
TOO_STRICT = ("repeatable read", "serializable")
STRICT = (
    "The database's isolation level is not READ COMMITTED: unique jobs may be stored twice, limits "
    "exceeded, and fetches refused."
)


def obstacle() -> str:
    """Return what keeps the database from taking writes; an empty text if nothing does.

    On PostgreSQL, nothing is written to find out, so that a full disk is not noticed.

    Raises:
        django.db.Error: it takes no reads either.
    """
    return _look()[0]


def shortcoming() -> str:
    """Return what keeps the database from taking writes, or our promises from being kept."""
    obstacle, strict = _look()
    return obstacle or strict


def isolation() -> str:
    """Return what is wrong with the isolation of transactions; an empty text if nothing is."""
    return _look()[1] if is_postgresql() else ""


def warn_of_isolation() -> None:
    """Log a warning if transactions are isolated too strictly; for processes that start.

    Without a database nothing is said: health reports it later.
    """
    database = connection()
    was_open = database.connection is not None
    try:
        if found := isolation():
            logger.warning("%s", found)
    except Error:
        return
    finally:
        # The process may be about to fork.
        if not was_open:
            database.close()


def _look() -> tuple[str, str]:
    with connection().cursor() as cursor:
        if not is_postgresql():
            return _obstacle_of_file(cursor), ""
        cursor.execute(SETTINGS)
        read_only, level = cursor.fetchone()
        # What a site asks for in OPTIONS is named when a transaction begins.
        asked = connection().connection.isolation_level
        level = level if asked is None else asked.name.replace("_", " ").lower()
    return ONLY_READS if read_only == "on" else "", STRICT if level in TOO_STRICT else ""


def _obstacle_of_file(cursor: Any) -> str:
    """Write `user_version`, a number in the header of an SQLite file, with the value that it has.

    Only a commit shows whether the disk is full.
    """
    patience = _value(cursor, "busy_timeout")
    _value(cursor, "user_version")
    # It does not wait for another writer: where another connection is writing, writes are possible.
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
