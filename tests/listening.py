"""The thread of this process that listens for jobs, for tests that end it."""

from __future__ import annotations

import psycopg
import pytest

from jobs.store import wakeup

from .processes import PATIENCE

directly = wakeup._connection_parameters


def end_the_listener() -> None:
    listener = wakeup._listener
    if listener is not None and listener.is_alive():
        patch = pytest.MonkeyPatch()
        patch.setattr(wakeup, "LINGER", 0)
        with psycopg.connect(**directly(), autocommit=True) as other:
            end_listeners(other)
        listener.join(PATIENCE)
        patch.undo()


def end_listeners(other: psycopg.Connection) -> None:
    other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND query LIKE '%INTO ojs_jobs_listener %'"
    )
