"""What handlers leave behind in their thread: the database connections they have used.

Django looks through all of its connections before and after a request. Most jobs have touched
none, and the looking would be most of the work of a small one: so each connection is noted when
it is made, by the thread that makes it.
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


connection_created.connect(_note, dispatch_uid="ojs_worker_leftovers")


class ConnectionCleanup:
    """The connections of the thread that makes one of these."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        _here.known = self._known

    def before(self) -> None:
        """As before a request: no query log grows, no broken connection is used."""
        for connection in tuple(self._known.values()):
            connection.queries_log.clear()
            connection.close_if_unusable_or_obsolete()
            drop_if_dead(connection)

    def after(self, *, interrupted: bool) -> None:
        """Leave no connection behind that the next job would be surprised by.

        Args:
            interrupted: the handler was stopped in the middle of something.
        """
        for alias, connection in tuple(self._known.items()):
            if interrupted or connection.in_atomic_block:
                # One left inside a transaction would, closed, still believe itself to be in it.
                connection.close()
                del connections[alias], self._known[alias]
            else:
                connection.close_if_unusable_or_obsolete()

    def close(self) -> None:
        """The thread ends."""
        connections.close_all()
