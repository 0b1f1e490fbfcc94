"""The database in which the tests have their jobs, whatever alias it goes by."""

from __future__ import annotations

from typing import Any

from django.db import connections
from django.utils.connection import ConnectionProxy

from jobs.store.database import alias, atomic


class Connections:
    """Looks for the alias when it is used: the benchmarks import this without settings."""

    def __getitem__(self, name: str) -> Any:
        return connections[alias()]


connection = ConnectionProxy(Connections(), "")
"""As `django.db.connection`, of the database that jobs and workers live in."""

__all__ = ["alias", "atomic", "connection"]
