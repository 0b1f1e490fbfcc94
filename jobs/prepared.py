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
from typing import Any
from weakref import WeakKeyDictionary

from psycopg import errors
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, TransactionStatus

PLACEHOLDER = re.compile(r"%(?:\((\w+)\)s|s|%)")
DONE = frozenset((ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK))
UNKNOWN_STATEMENT = b"26000"

_names: WeakKeyDictionary[Any, dict[Any, bytes]] = WeakKeyDictionary()
"""psycopg connection → (statement, types of its parameters) → its name there."""


def possible(database: Any) -> bool:
    """Whether nobody would miss the statement among those of Django's cursors.

    Outside autocommit psycopg begins the transaction with the first statement; that one is its.
    """
    if database.execute_wrappers or database.queries_logged:
        return False
    connection = database.connection
    return connection is not None and (
        connection.autocommit or connection.pgconn.transaction_status == TransactionStatus.INTRANS
    )


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
    for again in (True, False):
        name = known.get((statement, types))
        if name is None:
            name = b"ojs_%d" % len(known)
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
    count = 0

    def number(match: re.Match[str]) -> str:
        nonlocal count
        if match[0] == "%%":
            return "%"
        name = match[1]
        if name is None:
            count += 1
            return f"${count}"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return PLACEHOLDER.sub(number, statement).encode(), names
