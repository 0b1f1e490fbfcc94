"""Cleans up the database connections that handlers used in their thread.

Django checks all of its connections before and after a request. Most jobs use none, and for a
small job the checks would be most of the work: so each thread notes its connections when it
creates them.
"""

from __future__ import annotations

import threading
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

from jobs.store.database import drop_if_dead

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

    def after(self, *, interrupted: bool) -> None:
        """Leave no connection in a state that affects the next job.

        Args:
            interrupted: the handler was stopped in the middle of something.
        """
        for alias, connection in tuple(self._known.items()):
            if interrupted or connection.in_atomic_block:
                # A connection closed inside a transaction would still consider itself in it.
                connection.close()
                del connections[alias], self._known[alias]
            else:
                connection.close_if_unusable_or_obsolete()

    def close(self) -> None:
        """Close the connections: the thread ends."""
        connections.close_all()
