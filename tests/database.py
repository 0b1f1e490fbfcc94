"""Database in which the tests have their jobs, whatever its alias."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.core.management import call_command
from django.db import connections, transaction
from django.utils.connection import ConnectionProxy

from jobs.store.database import alias, atomic

if TYPE_CHECKING:
    import psycopg


class Connections:
    """Looks the alias up on use: the benchmarks import this without settings."""

    def __getitem__(self, name: str) -> Any:
        return connections[alias()]


connection = ConnectionProxy(Connections(), "")
"""Like `django.db.connection`, for the database of jobs and workers."""


@contextmanager
def another_connection(**parameters: Any) -> Iterator[psycopg.Connection[Any]]:
    """A separate session on PostgreSQL; uncommitted changes are rolled back at the end.

    Args:
        parameters: of `psycopg.connect`, if different from those of `connection`.
    """
    import psycopg

    given = dict(connection.get_connection_params())
    for of_django in ("cursor_factory", "context", "prepare_threshold"):
        given.pop(of_django, None)
    with psycopg.connect(**given | parameters) as other:
        yield other
        other.rollback()


@contextmanager
def rolled_back() -> Iterator[None]:
    """A transaction that leaves nothing behind."""
    with atomic():
        yield
        transaction.set_rollback(True, using=alias())


def migrate(to: str = "") -> None:
    """Migrate jobs to this migration, or both apps to their newest."""
    target = ["ojs_jobs", to] if to else []
    call_command("migrate", *target, database=alias(), verbosity=0)


__all__ = ["alias", "another_connection", "atomic", "connection", "migrate", "rolled_back"]
