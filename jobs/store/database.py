"""Database that holds the jobs, and its dialect; routers are honoured."""

from __future__ import annotations

import contextlib
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import (
    DEFAULT_DB_ALIAS,
    close_old_connections,
    connections,
    router,
    transaction,
)

if TYPE_CHECKING:
    from django.db.models import QuerySet


APPS = ("ojs_jobs", "ojs_workers")

_elsewhere: ContextVar[str] = ContextVar("ojs_elsewhere", default="")
"""The standby that this thread reads from at the moment (`standby`)."""


def alias() -> str:
    """Return the database of all tables of both apps, or its standby while that is read."""
    return _elsewhere.get() or home()


def home() -> str:
    """Return the database of all tables of both apps: the one the router writes jobs to."""
    if not router.routers:
        return DEFAULT_DB_ALIAS
    return router.db_for_write(apps.get_model("ojs_jobs", "Job"))


def elsewhere() -> str:
    """Return the standby that is being read; empty if none is."""
    return _elsewhere.get()


@contextlib.contextmanager
def reading_from(name: str) -> Iterator[None]:
    """Read from the database `name` in this block; from the usual one if that is empty."""
    token = _elsewhere.set(name)
    try:
        yield
    finally:
        _elsewhere.reset(token)


def connection() -> Any:
    return connections[alias()]


@contextlib.contextmanager
def borrowed() -> Iterator[None]:
    """Manage the connection for work outside a request, as Django does for a request.

    A broken or expired connection is closed, and one from a pool is returned to it.
    """
    close_old_connections()
    drop_dead_connections()
    try:
        yield
    finally:
        close_old_connections()


def drop_dead_connections() -> None:
    """Close persistent connections of this thread whose server has gone, before anything is sent.

    A server that ends, or is killed, hangs up: that is visible without a query, in a microsecond.
    So a restart of the database causes no request to fail.
    """
    for database in connections.all(initialized_only=True):
        drop_if_dead(database)


def drop_if_dead(database: Any) -> None:
    if database.vendor != "postgresql" or database.in_atomic_block:
        return
    libpq = getattr(database.connection, "pgconn", None)
    if libpq is not None and _has_hung_up(libpq):
        database.close()


HANGUP = getattr(select, "POLLRDHUP", 0)
"""The other side sends no more, though data may be left to read. On systems without this flag,
POLLHUP and POLLERR are reported anyway."""


def _has_hung_up(libpq: Any) -> bool:
    if not hasattr(select, "poll"):
        return False
    try:
        line = select.poll()
        line.register(libpq.socket, HANGUP)
        return bool(line.poll(0))
    except Exception:  # already closed; psycopg, which raises this, need not be installed
        return True


def atomic() -> transaction.Atomic:
    return transaction.atomic(using=alias())


def compiled(queryset: QuerySet[Any]) -> tuple[str, tuple[Any, ...]]:
    """Return the statement of a queryset, in the jobs database's dialect, and its parameters.

    `queryset.query.sql_with_params()` and `str(queryset.query)` use the default database's dialect.
    """
    statement, parameters = queryset.query.get_compiler(using=alias()).as_sql()
    return statement, tuple(parameters)


def on_commit(function: Callable[[], object]) -> None:
    transaction.on_commit(function, using=alias())


def is_postgresql() -> bool:
    return _vendor(alias()) == "postgresql"


@cache
def _vendor(alias: str) -> str:
    """Cached: needed several times in a request, and looking up a thread's connection is slow."""
    vendor: str = connections[alias].vendor
    return vendor


def run(statement: str, parameters: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Run one of the hot statements, prepared where that is possible; return its rows.

    Planning the claim costs more than executing it, and Django's cursors plan it each time.
    """
    database = connection()
    if _may_prepare(database):
        from . import prepared

        if prepared.possible(database):
            return prepared.execute(database, (statement, parameters))[0]
        cursor = prepared.watched_cursor(database)
    else:
        cursor = database.cursor()
    with cursor:
        cursor.execute(statement, parameters)
        rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
        return rows


def run_together(
    *statements: tuple[str, Sequence[Any] | Mapping[str, Any]],
) -> list[list[tuple[Any, ...]]]:
    """Run several hot statements in one transaction; return the rows of each.

    Where they can be prepared, this is one round trip, without a separate BEGIN and COMMIT. Each
    statement sees the effects of those before it; an error in one undoes them all.
    """
    database = connection()
    if _may_prepare(database):
        from . import prepared

        if prepared.possible(database):
            return prepared.execute(database, *statements)
    with atomic():
        return [run(*statement) for statement in statements]


_refuse_prepared: list[Callable[[], bool]] = []


def prepare_nothing_if(condition: Callable[[], bool]) -> None:
    """Send statements with their parameters written into them while the condition holds."""
    _refuse_prepared.append(condition)


def _may_prepare(database: Any) -> bool:
    """Connect; return whether statements prepared on the connection will be found again.

    Not behind a transaction pooler, where a site sets `DISABLE_SERVER_SIDE_CURSORS`.
    """
    if database.vendor != "postgresql" or database.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"):
        return False
    if any(refuses() for refuses in _refuse_prepared) or _has_another_cursor(database):
        return False
    database.close_if_health_check_failed()
    database.ensure_connection()
    return True


def _has_another_cursor(database: Any) -> bool:
    """Whether something has replaced the connection's `cursor`, and relies on its being called.

    Django's tests do so for each database that a test may not use, and put the method back into
    the connection, where it stays.
    """
    replaced = vars(database).get("cursor")
    return replaced is not None and getattr(replaced, "__func__", None) is not type(database).cursor
