"""Cleans up the database connections that handlers used in their thread.

Django checks all of its connections before and after a request. Most jobs use none, and for a
small job the checks would be most of the work: so each thread notes its connections when it
creates them.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from django.db import connections
from django.db.backends.signals import connection_created

from jobs.store.database import drop_if_dead

if TYPE_CHECKING:
    from .context import JobContext

logger = logging.getLogger("workers.runtime")

IN_TRANSACTION = (1, 2, 3)
"""libpq's states of a connection that runs a statement, or is in a transaction, failed or not."""
LEFT_OPEN = (
    "A transaction was left open in the database '%s': its connection is closed, and what was not "
    "committed is lost."
)

_here = threading.local()


def _note(connection: Any, **kwargs: Any) -> None:
    known = getattr(_here, "known", None)
    if known is not None:
        known[connection.alias] = connection


connection_created.connect(_note, dispatch_uid="ojs_worker_connection_cleanup")


class ConnectionCleanup:
    """The connections of the thread that creates the instance."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        _here.known = self._known

    def before(self) -> None:
        """Prepare as before a request: reset query logs, drop broken connections."""
        for connection in tuple(self._known.values()):
            connection.queries_log.clear()
            connection.close_if_unusable_or_obsolete()
            drop_if_dead(connection)

    def after(self, *, interrupted: bool) -> list[str]:
        """Leave no connection in a state that affects the next job.

        Args:
            interrupted: the handler was stopped in the middle of something.

        Returns: the databases in which a handler that was not interrupted left a transaction open.
        """
        left = []
        for alias, connection in tuple(self._known.items()):
            is_left = has_open_transaction(connection)
            if interrupted or is_left:
                _discard(alias, connection)
                del self._known[alias]
            else:
                connection.close_if_unusable_or_obsolete()
            if is_left and not interrupted:
                left.append(alias)
        return left

    def close(self) -> None:
        """Close the connections: the thread ends."""
        connections.close_all()


def clean_up() -> list[str]:
    """Do the same in a thread that has no `ConnectionCleanup`; return the same."""
    left = []
    for connection in connections.all(initialized_only=True):
        if has_open_transaction(connection):
            _discard(connection.alias, connection)
            left.append(connection.alias)
        else:
            connection.close_if_unusable_or_obsolete()
    return left


def has_open_transaction(connection: Any) -> bool:
    """Whether a transaction is open, also one that Django has not begun: a `BEGIN` in raw SQL.

    Of other databases than PostgreSQL and SQLite, only what Django knows is known.
    """
    if connection.in_atomic_block:
        return True
    raw = connection.connection
    if raw is None:
        return False
    if connection.vendor == "postgresql":
        return raw.info.transaction_status in IN_TRANSACTION
    if connection.vendor == "sqlite":
        with contextlib.suppress(connection.Database.Error):  # it is closed
            return bool(raw.in_transaction)
    return False


def _discard(alias: str, connection: Any) -> None:
    connection.close()
    # Closed inside a transaction, it would still consider itself in it.
    del connections[alias]


def warn(databases: list[str], context: JobContext | None) -> None:
    """Log that a handler left a transaction open in each of these databases."""
    log = logger.warning if context is None else partial(context.log, level=logging.WARNING)
    for alias in databases:
        log(LEFT_OPEN, alias)
