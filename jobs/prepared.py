"""The hot statements on PostgreSQL, prepared, in one call of libpq each.

A cursor hands every result through a generator that waits in Python, and Django wraps a cursor once
more. For a statement of 200 µs that is as much again, in the process that all threads of a server
share. So where nobody listens to Django's cursors (no query log, no execute wrapper) the statement
goes to libpq as it is; types, adaptation and errors are psycopg's and Django's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

from django.db.backends.postgresql.base import ServerBindingCursor
from psycopg import errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, TransactionStatus

PLACEHOLDER = re.compile(r"%(?:\((\w+)\)s|s|%)")
DONE = frozenset((ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK))
UNKNOWN_STATEMENT = b"26000"

PLAIN = (None, None, None)
"""Django's default: isolation, access and deferral are the server's."""

_names: WeakKeyDictionary[Any, dict[Any, bytes]] = WeakKeyDictionary()
"""psycopg connection → (statement, types of its parameters) → its name there."""

_numbers = count()


def possible(database: Any) -> bool:
    """Whether the statement may go past Django's cursors, and past psycopg's.

    Not where somebody watches the cursors. Not where psycopg prepares statements by itself either:
    on a rollback it has all of the connection forgotten, ours too.
    """
    connection = database.connection
    return (
        not database.execute_wrappers
        and not database.queries_logged
        and connection.prepare_threshold is None
        and (not _must_begin(connection) or _transaction_of(connection) == PLAIN)
    )


def _must_begin(connection: Any) -> bool:
    """Whether this will be a transaction's first statement, with which psycopg begins it."""
    idle: bool = connection.pgconn.transaction_status == TransactionStatus.IDLE
    return idle and not connection.autocommit


def _transaction_of(connection: Any) -> tuple[Any, Any, Any]:
    return connection.isolation_level, connection.read_only, connection.deferrable


def watched_cursor(database: Any) -> Any:
    """A cursor through Django's wrapper, so that query logs and execute wrappers see it.

    Where a site always watches, psycopg prepares: planning the claim costs more than running it.
    """
    connection = database.connection
    if database.execute_wrappers and connection not in _names:
        # Django leaves it at None: never. Only cursors that bind on the server heed it.
        connection.prepare_threshold = 1
    cursor: Any = ServerBindingCursor
    return database._prepare_cursor(cursor(connection))


def execute(
    database: Any, statement: str, parameters: Sequence[Any] | Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """Run `statement`, prepared, and return its rows.

    Raises:
        django.db.DatabaseError: whatever Django's cursor would raise.
    """
    database.validate_no_broken_transaction()
    with database.wrap_database_errors:
        return _execute(database.connection, statement, parameters)


def _execute(
    connection: Any, statement: str, parameters: Sequence[Any] | Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    query, names = _numbered(statement)
    values = [parameters[name] for name in names] if isinstance(parameters, Mapping) else parameters
    adaptation = Transformer(connection)
    sent = adaptation.dump_sequence(values, [PyFormat.AUTO] * len(values))
    types, formats = adaptation.types, adaptation.formats
    known = _names.setdefault(connection, {})
    libpq = connection.pgconn
    if _must_begin(connection):
        _check(libpq.exec_(b"BEGIN"), connection)
    for again in (True, False):
        name = known.get((statement, types))
        if name is None:
            name = b"ojs_%d" % next(_numbers)
            _check(libpq.prepare(name, query, types), connection)
            known[statement, types] = name
        result = libpq.exec_prepared(name, sent, formats)
        # Somebody discarded what was prepared. In a transaction the error has ended that already.
        if again and connection.autocommit and _forgotten(result):
            known.clear()
            continue
        break
    _check(result, connection)
    adaptation.set_pgresult(result)
    return adaptation.load_rows(0, result.ntuples, tuple)


def _forgotten(result: Any) -> bool:
    return result.status == ExecStatus.FATAL_ERROR and (
        result.error_field(DiagnosticField.SQLSTATE) == UNKNOWN_STATEMENT
    )


def _check(result: Any, connection: Any) -> None:
    if result.status not in DONE:
        if connection.pgconn.status == ConnStatus.BAD:
            raise errors.OperationalError(result.get_error_message())
        raise errors.error_from_result(result, encoding=connection.info.encoding)


@lru_cache(maxsize=256)
def _numbered(statement: str) -> tuple[bytes, list[str]]:
    """Return the statement with `$1`, `$2`, … for its placeholders, and the names of named ones."""
    names: list[str] = []
    seen = 0

    def number(match: re.Match[str]) -> str:
        nonlocal seen
        if match[0] == "%%":
            return "%"
        name = match[1]
        if name is None:
            seen += 1
            return f"${seen}"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return PLACEHOLDER.sub(number, statement).encode(), names
