"""Runs the hot statements on PostgreSQL, prepared, in one libpq call each.

A cursor passes every result through a generator that waits in Python, and Django wraps the cursor
once more. For a statement of 200 µs that doubles the cost, in the process that all threads of a
server share. So where nothing watches Django's cursors (no query log, no execute wrapper) the
statement goes straight to libpq; types, adaptation and errors are psycopg's and Django's own.
"""

from __future__ import annotations

import hashlib
import re
import selectors
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet

from django.db.backends.postgresql.base import ServerBindingCursor
from psycopg import IsolationLevel, errors, postgres
from psycopg.adapt import AdaptersMap, Loader, PyFormat, Transformer
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, Format, TransactionStatus

from .pooled import POOLED

PLACEHOLDER = re.compile(r"%(?:\((\w+)\)s|s|%)")
DONE = frozenset((ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK))
Selector: Any = getattr(selectors, "PollSelector", selectors.SelectSelector)
UNKNOWN_STATEMENT = b"26000"
DUPLICATE_STATEMENT = b"42P05"
TIMESTAMPTZ = postgres.types["timestamptz"].oid

BEGIN = {
    # Django's default leaves isolation, access mode and deferrability to the server.
    (None, None, None): b"BEGIN",
    (IsolationLevel.READ_COMMITTED, None, None): b"BEGIN ISOLATION LEVEL READ COMMITTED",
}
"""The statement that begins a transaction as psycopg would."""

_names: WeakKeyDictionary[Any, dict[Any, bytes]] = WeakKeyDictionary()
"""psycopg connection → (statement, types of its parameters) → its name on that connection."""

_adapters: WeakKeyDictionary[Any, AdaptersMap] = WeakKeyDictionary()
"""psycopg connection → the adapters used here to read its values."""

_planned_once: WeakSet[Any] = WeakSet()
"""psycopg connections that plan each prepared statement only once."""

ISOLATE = b"; SET default_transaction_isolation = 'read committed'"
"""A statement outside transactions is one of its own: it has the level that the site asked for."""
PLAN_ONCE = b"SET plan_cache_mode = force_generic_plan"
"""By default, PostgreSQL may switch after an ANALYZE of a large table to planning the claim anew
each time, which takes longer than the claim itself. Django's cursors are not affected: they put the
values into the statement."""


def possible(database: Any) -> bool:
    """Whether the statement may bypass the cursors of Django and psycopg.

    Not where something watches the cursors. Nor where psycopg prepares statements itself: on a
    rollback it discards all prepared statements of the connection, including those made here.
    """
    connection = database.connection
    return (
        not database.execute_wrappers
        and not database.queries_logged
        and connection.prepare_threshold is None
        and (not _must_begin(connection) or _transaction_of(connection) in BEGIN)
    )


def _must_begin(connection: Any) -> bool:
    """Whether this is a transaction's first statement, with which psycopg begins it."""
    idle: bool = connection.pgconn.transaction_status == TransactionStatus.IDLE
    return idle and not connection.autocommit


def _transaction_of(connection: Any) -> tuple[Any, Any, Any]:
    return connection.isolation_level, connection.read_only, connection.deferrable


def watched_cursor(database: Any) -> Any:
    """Return a cursor inside Django's wrapper, so that query logs and execute wrappers see it.

    If a site always watches (execute wrappers), psycopg prepares the statements: planning the claim
    costs more than running it.
    """
    connection = database.connection
    if database.execute_wrappers and connection not in _names:
        # Django leaves it at None: never. Only cursors with server-side binding honour it.
        connection.prepare_threshold = 1
    cursor: Any = ServerBindingCursor
    return database._prepare_cursor(cursor(connection))


Statement = tuple[str, Sequence[Any] | Mapping[str, Any]]
"""With `%s` or `%(name)s` for parameters, and the parameters."""


def execute(database: Any, *statements: Statement) -> list[list[tuple[Any, ...]]]:
    """Run the statements, prepared, and return the rows of each.

    Several statements go in one round trip and are atomic, as in a transaction.

    Raises:
        django.db.DatabaseError: as Django's cursor would.
    """
    database.validate_no_broken_transaction()
    with database.wrap_database_errors:
        if database.connection not in _planned_once:
            _plan_once(database)
        return _execute(database.connection, statements)


def _plan_once(database: Any) -> None:
    """Make the session plan prepared statements only once, unless that would affect the site's own.

    Not inside a transaction, whose rollback would undo it.
    """
    connection = database.connection
    idle = connection.pgconn.transaction_status == TransactionStatus.IDLE
    binds_on_server = database.settings_dict["OPTIONS"].get("server_side_binding")
    if idle and connection.autocommit and not binds_on_server:
        asked = connection.isolation_level == IsolationLevel.READ_COMMITTED
        _check(connection.pgconn.exec_(PLAN_ONCE + (ISOLATE if asked else b"")), connection)
        _planned_once.add(connection)


@dataclass(slots=True)
class _Bound:
    """A statement with its parameters, as libpq takes them."""

    query: bytes
    values: Sequence[Any]
    formats: Any
    types: Any
    adaptation: Any

    def rows(self, result: Any) -> list[tuple[Any, ...]]:
        self.adaptation.set_pgresult(result)
        rows: list[tuple[Any, ...]] = self.adaptation.load_rows(0, result.ntuples, tuple)
        return rows


def _bound(connection: Any, statement: str, parameters: Any) -> _Bound:
    query, names = _numbered(statement)
    values = [parameters[name] for name in names] if isinstance(parameters, Mapping) else parameters
    adaptation = Transformer(_adapting(connection))
    sent = adaptation.dump_sequence(values, [PyFormat.AUTO] * len(values))
    return _Bound(query, sent, adaptation.formats, adaptation.types, adaptation)


class _Adapting(NamedTuple):
    """The context in which psycopg looks up how values are written and read."""

    connection: Any
    adapters: AdaptersMap


def _adapting(connection: Any) -> _Adapting:
    """Adapt as the connection does, except for times: within a statement they are mostly equal.

    Django's loader for them is Python, and takes as long as all other columns of a claim together.
    """
    adapters = _adapters.get(connection)
    if adapters is None:
        adapters = _adapters[connection] = AdaptersMap(connection.adapters)
        loader = connection.adapters.get_loader(TIMESTAMPTZ, Format.TEXT)
        adapters.register_loader(TIMESTAMPTZ, _remembering(loader))
    return _Adapting(connection, adapters)


@lru_cache(maxsize=16)
def _remembering(usual: type[Loader]) -> type[Loader]:
    # Of Django's loader: UTC, unless the site sets another time zone for this database.
    is_utc = getattr(usual, "timezone", None) is UTC

    class Times(Loader):
        """Parses a time once, however many consecutive rows repeat it."""

        text = b""
        time: Any = None

        def load(self, data: Any) -> Any:
            text = bytes(data)
            if text != self.text:
                time = _in_utc(text) if is_utc else None
                self.time = time or usual(self.oid, self.connection).load(data)
                self.text = text
            return self.time

    return Times


def _in_utc(text: bytes) -> datetime | None:
    """Parse a time as PostgreSQL writes it in a session in UTC; None for any other notation."""
    if not text.endswith(b"+00"):
        return None
    try:
        return datetime.fromisoformat(text.decode())
    except ValueError:
        return None


def _execute(connection: Any, statements: Sequence[Statement]) -> list[list[tuple[Any, ...]]]:
    libpq = connection.pgconn
    bound = [_bound(connection, *statement) for statement in statements]
    if _must_begin(connection):
        _check(libpq.exec_(BEGIN[_transaction_of(connection)]), connection)
    results = _run(connection, bound)
    for _ in bound:
        if not any(_is(UNKNOWN_STATEMENT, result) for result in results):
            break
        discarded = bound[len(results) - 1]
        del _names[connection][discarded.query, discarded.types]
        _planned_once.discard(connection)
        if not connection.autocommit:
            break  # The error has already aborted the transaction.
        results = _run(connection, bound)
    for result in results:
        _check(result, connection)
    return [one.rows(result) for one, result in zip(bound, results, strict=True)]


def _run(connection: Any, bound: Sequence[_Bound]) -> list[Any]:
    """Return the results; if there was an error, it is the last one."""
    libpq = connection.pgconn
    names = [_prepared(connection, one) for one in bound]
    if len(bound) == 1:
        return [libpq.exec_prepared(names[0], bound[0].values, bound[0].formats)]
    libpq.enter_pipeline_mode()
    try:
        for name, one in zip(names, bound, strict=True):
            libpq.send_query_prepared(name, one.values, one.formats)
        libpq.pipeline_sync()
        with Selector() as selector:
            _send(libpq, selector)
            results = _results(libpq, selector)
        if libpq.status == ConnStatus.OK:
            libpq.exit_pipeline_mode()
    except BaseException:
        # What is still in flight is unknown: it must not be read as the next statement's result.
        libpq.finish()
        raise
    return results


# Both wait without blocking other threads: `get_result` would hold the interpreter's lock
# meanwhile, even against the thread that holds the row it waits for.


def _send(libpq: Any, selector: Any) -> None:
    selector.register(libpq.socket, EVENT_READ | EVENT_WRITE)
    while libpq.flush():
        ((_, happened),) = selector.select()
        if happened & EVENT_READ:
            libpq.consume_input()
    selector.modify(libpq.socket, EVENT_READ)


def _results(libpq: Any, selector: Any) -> list[Any]:
    """Read up to the sync point. The results of statements after an error say they were not run."""
    results: list[Any] = []
    while True:
        while libpq.is_busy():
            selector.select()
            libpq.consume_input()
        result = libpq.get_result()
        if result is None:
            # The end of one statement's results; of all results if the server is gone.
            if libpq.status == ConnStatus.BAD:
                return results
        elif result.status == ExecStatus.PIPELINE_SYNC:
            return results
        elif result.status != ExecStatus.PIPELINE_ABORTED:
            results.append(result)


def _prepared(connection: Any, one: _Bound) -> bytes:
    """Return the name under which the statement is prepared on this connection."""
    known = _names.setdefault(connection, {})
    name = known.get((one.query, one.types))
    if name is None:
        name = _name(one)
        result = connection.pgconn.prepare(name, one.query, one.types)
        # One with this name is the same: this process was interrupted when it had prepared it, or
        # another one shares the session.
        if not _is(DUPLICATE_STATEMENT, result):
            _check(result, connection)
        known[one.query, one.types] = name
        if connection.pgconn.transaction_status == TransactionStatus.INERROR:
            _check(result, connection)
    return name


def _name(one: _Bound) -> bytes:
    """Return a name that no other statement has, in any process.

    Processes that share a session by mistake, behind a pooler in transaction mode, never run each
    other's statements.
    """
    digest = hashlib.sha256(b"%r %r" % (one.query, one.types)).hexdigest()
    return f"ojs_{digest[:32]}".encode()


def _is(sqlstate: bytes, result: Any) -> bool:
    return result.status == ExecStatus.FATAL_ERROR and bool(
        result.error_field(DiagnosticField.SQLSTATE) == sqlstate
    )


def _check(result: Any, connection: Any) -> None:
    if result.status not in DONE:
        if connection.pgconn.status == ConnStatus.BAD:
            raise errors.OperationalError(result.get_error_message())
        problem = errors.error_from_result(result, encoding=connection.info.encoding)
        if _is(UNKNOWN_STATEMENT, result) or _is(DUPLICATE_STATEMENT, result):
            # For tracebacks: callers of the Python API get Django's error as it is.
            problem.add_note(POOLED)
        raise problem


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
