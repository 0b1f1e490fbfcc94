"""Readiness: whether this process can serve requests now, as checked by a load balancer.

Health reports that the database answers. Readiness reports that the table of jobs can be written
to: no lock is held on it, its columns are those of this version, the database takes writes and has
all migrations of this version, and the process is not about to end. The reply comes in time even if
the database never answers.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from functools import cache

from django.db import Error, ProgrammingError, connections
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from ..models import Job
from . import writable
from .database import APPS, atomic, connection
from .trouble import NOT_MIGRATED, TOO_SLOW, UNUSABLE, explain

LONGEST = 2.0
"""Seconds until there is a reply at the latest."""
# As long as a request may reasonably wait for a lock. Every write takes ROW EXCLUSIVE, and a query
# for no rows still checks all columns.
LOOK = """
    SET LOCAL lock_timeout = '1s';
    SET LOCAL statement_timeout = '1s';
    LOCK TABLE {table} IN ROW EXCLUSIVE MODE;
"""
COLUMNS = "SELECT {columns} FROM {table} LIMIT 0"
ENDING = "This process is about to end."

_lock = threading.Lock()
_under_way: Future[str] | None = None
_is_ending = threading.Event()
_is_migrated = False
"""Never looked up again: a later version may add migrations, and this one goes on."""


def end() -> None:
    """Report not ready from now on: this process takes no more requests."""
    _is_ending.set()


def obstacle() -> str:
    """Return what keeps this process from serving requests; an empty text if nothing does.

    Concurrent callers share one query.
    """
    if _is_ending.is_set():
        return ENDING
    try:
        return _look().result(LONGEST)
    except TimeoutError:
        return TOO_SLOW


def _look() -> Future[str]:
    """Return the check in progress, or start one, in a thread that may hang."""
    global _under_way
    with _lock:
        if _under_way is None or _under_way.done():
            _under_way = Future()
            threading.Thread(
                target=_answer, args=[_under_way], name="ojs-readiness", daemon=True
            ).start()
        return _under_way


def _answer(asked: Future[str]) -> None:
    answer = UNUSABLE
    try:
        answer = _use_the_table() or _look_for_migrations()
    except Error as problem:
        answer = str(explain(problem))
    finally:
        try:
            connections.close_all()
        finally:
            asked.set_result(answer)


def _use_the_table() -> str:
    database = connection()
    quote = database.ops.quote_name
    table = quote(Job._meta.db_table)
    # With the table's name: SQLite treats an unknown name in double quotes as a text.
    columns = (f"{table}.{quote(field.column)}" for field in Job._meta.concrete_fields)
    names = {"table": table, "columns": ", ".join(columns)}
    if database.vendor != "postgresql":
        # SQLite has no locks on tables, and a writer never blocks its readers.
        with database.cursor() as cursor:
            cursor.execute(COLUMNS.format(**names))
        return writable.obstacle()
    with atomic(), database.cursor() as cursor:
        cursor.execute(LOOK.format(**names))
        if found := writable.obstacle():
            return found
        cursor.execute(COLUMNS.format(**names))
    return ""


@cache
def migrations() -> frozenset[tuple[str, str]]:
    """Those of this version. A server reads them when it starts: files may be replaced later."""
    return frozenset(key for key in MigrationLoader(None).graph.nodes if key[0] in APPS)


def _look_for_migrations() -> str:
    global _is_migrated
    if not _is_migrated:
        try:
            applied = MigrationRecorder(connection()).applied_migrations()
        except ProgrammingError:
            # This role may not read the table of migrations.
            return ""
        _is_migrated = migrations() <= applied.keys()
    return "" if _is_migrated else NOT_MIGRATED
