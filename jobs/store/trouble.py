"""Classifies database errors: which may succeed on another try, and which never will.

PostgreSQL reports a SQLSTATE. An error without one comes from the connection itself. SQLite has
its own error codes. Every binding calls `explain()` and renders the result in its own format.
"""

from __future__ import annotations

import re
from typing import Any

from django.db import DatabaseError, Error, InterfaceError, OperationalError
from django.utils.translation import gettext_noop

from ..errors import DatabaseRefused, DatabaseUnavailable, OJSError
from .database import connection
from .pooled import POOLED

# Clients get English, users their own language (`gettext`).
UNREACHABLE = gettext_noop("The database is unreachable.")
RESTARTING = gettext_noop("The database is restarting, or another server is taking over.")
ONLY_READS = gettext_noop("The database takes only reads: it is a standby, or was made read-only.")
NO_CONNECTION = gettext_noop("The database has no connection free.")
EXHAUSTED = gettext_noop("The database has run out of disk space, memory or another resource.")
TOO_SLOW = gettext_noop("The database did not answer in time.")
COLLISION = gettext_noop("The request collided with another one in the database.")
NOT_MIGRATED = gettext_noop(
    "The database lacks tables or columns of this version: run 'manage.py migrate'."
)
NO_PERMISSION = gettext_noop("The database role lacks a permission.")
BEHIND = gettext_noop(
    "A sequence of the database is behind the rows of its table: run 'manage.py sqlsequencereset'."
)
UNUSABLE = gettext_noop("The database cannot be used at present.")
REFUSED = "The database refused the request."

# The longest prefix of the SQLSTATE decides (PostgreSQL, appendix A).
SQLSTATES = {
    "08": UNREACHABLE,  # connection exceptions; a pooler's own errors are 08P01
    "25006": ONLY_READS,  # read_only_sql_transaction
    "25P03": UNREACHABLE,  # idle_in_transaction_session_timeout ended the connection
    "25P04": TOO_SLOW,  # transaction_timeout
    "26000": POOLED,  # unknown prepared statement
    "40": COLLISION,  # serialization failures and deadlocks
    "42501": NO_PERMISSION,  # insufficient_privilege
    "42703": NOT_MIGRATED,  # undefined column
    "42883": NOT_MIGRATED,  # undefined function
    "42P01": NOT_MIGRATED,  # undefined table
    "42P05": POOLED,  # duplicate prepared statement
    "53": EXHAUSTED,
    "53300": NO_CONNECTION,  # too many connections
    "55P03": TOO_SLOW,  # lock_timeout
    "57014": TOO_SLOW,  # statement_timeout, or an operator's pg_cancel_backend
    "57P": RESTARTING,  # shutdown, crash, starting up
    "57P05": UNREACHABLE,  # idle_session_timeout ended the connection
    "58": EXHAUSTED,  # I/O errors
}
DUPLICATE_KEY = "23505"
DRAWN_ID = re.compile(r"\(id\)=\(\d+\)")
"""In the detail of a duplicate key: an id that the database drew. Others are chosen by clients, and
the engine answers for them."""
# While connecting, libpq passes on only the server's text, in the server's language. Text that is
# not recognized counts as unreachable.
NO_CONNECTION_TEXT = re.compile(
    r"too many (clients|connections)|connection slots|no more connections allowed"
)
RESTARTING_TEXT = re.compile(
    r"the database system is|recovery mode|session is (not )?read-only|server is (not )?in hot"
)
SQLITE_CODES = {
    5: TOO_SLOW,  # SQLITE_BUSY: another connection has been writing all the time
    6: TOO_SLOW,  # SQLITE_LOCKED
    8: ONLY_READS,  # SQLITE_READONLY
    10: EXHAUSTED,  # SQLITE_IOERR
    13: EXHAUSTED,  # SQLITE_FULL
    14: UNREACHABLE,  # SQLITE_CANTOPEN
}
MISSING_IN_SQLITE = re.compile(r"no such (table|column)")
LONGEST_PREFIX = 5
# Citus reports a node that is lost during a statement or the commit as an internal error, like a
# bug of its own: in its own words, or in those of libpq. Whether the transaction is committed there
# is not known.
INTERNAL_ERROR = "XX000"
LOST_NODE = re.compile(
    r"could not commit transaction for shard|failure on connection marked as essential"
    r"|server closed the connection unexpectedly|connection has been closed unexpectedly"
    r"|could not (receive data from|send data to) server|no connection to the server"
    r"|connection not open|invalid socket"
)


def explain(problem: BaseException) -> OJSError | None:
    """Return what a database error means to a client; None if it is another kind of error.

    The message reveals nothing about the site. `DatabaseUnavailable` is worth another try;
    `DatabaseRefused` would fail the same way again.
    """
    if not isinstance(problem, Error):
        return None
    sentence = _sentence(problem)
    return DatabaseRefused(REFUSED) if sentence is None else DatabaseUnavailable(sentence)


def described(problem: BaseException) -> str:
    """Return in one line, for operators, that and why the database failed."""
    reason = str(problem).strip().partition("\n")[0]
    if needs_an_operator(problem):
        return f"{_sentence(problem)} ({reason})"
    return f"The database failed: {reason}"


def needs_an_operator(problem: BaseException) -> bool:
    """Whether the database was not set up as it must be; a traceback would say no more."""
    return isinstance(problem, Error) and _sentence(problem) in (
        NOT_MIGRATED,
        POOLED,
        NO_PERMISSION,
        BEHIND,
    )


def is_transient(problem: BaseException) -> bool:
    """Whether this is a database error that may be gone at the next try."""
    return isinstance(explain(problem), DatabaseUnavailable)


def is_away(problem: BaseException) -> bool:
    """Whether the next statement would fail as well; a deadlock or a bug affects only one."""
    lost = isinstance(problem, OperationalError | InterfaceError)
    return lost and (connection().connection is None or not connection().is_usable())


def _sentence(problem: Any) -> str | None:
    """Return what is wrong with the database; None if the statement itself is."""
    # Django's errors wrap those of the driver.
    cause: Any = problem.__cause__ if isinstance(problem.__cause__, Exception) else problem
    sqlstate = getattr(cause, "sqlstate", None)
    if sqlstate == INTERNAL_ERROR and LOST_NODE.search(str(cause)):
        return UNREACHABLE
    if sqlstate == DUPLICATE_KEY and _is_drawn(cause.diag):
        return BEHIND
    if sqlstate:
        prefixes = (sqlstate[:length] for length in range(LONGEST_PREFIX, 1, -1))
        return next((SQLSTATES[prefix] for prefix in prefixes if prefix in SQLSTATES), None)
    code = getattr(cause, "sqlite_errorcode", None)
    if code is not None:
        return _sqlite_sentence(cause, code & 0xFF) if _is_operational(problem) else None
    if _is_operational(problem) or _lost_its_answer(problem, cause):
        return _connection_sentence(cause)
    return None


def _is_drawn(diagnosis: Any) -> bool:
    is_ours = (diagnosis.table_name or "").startswith("ojs_")
    return is_ours and DRAWN_ID.search(diagnosis.message_detail or "") is not None


def _is_operational(problem: Any) -> bool:
    return isinstance(problem, OperationalError | InterfaceError)


def _lost_its_answer(problem: Any, cause: Any) -> bool:
    """Whether the connection was lost while waiting for a result.

    libpq's own errors have no SQLSTATE, and psycopg raises the most general class for them. A
    `DatabaseError` that Django raises by itself wraps nothing.
    """
    return cause is not problem and type(problem) is DatabaseError


def _connection_sentence(cause: Any) -> str:
    text = str(cause)
    # Not imported: neither psycopg nor its pool has to be installed.
    kinds = {kind.__name__ for kind in type(cause).__mro__}
    if kinds & {"PoolTimeout", "TooManyRequests"} or NO_CONNECTION_TEXT.search(text):
        return NO_CONNECTION
    if RESTARTING_TEXT.search(text):
        return RESTARTING
    if "ConnectionTimeout" in kinds:
        return TOO_SLOW
    return UNREACHABLE


def _sqlite_sentence(cause: Any, code: int) -> str:
    if MISSING_IN_SQLITE.search(str(cause)):
        return NOT_MIGRATED
    return SQLITE_CODES.get(code, UNUSABLE)
