"""What refers to a job: rows of this app, which are deleted with it, and rows of a site's own.

On PostgreSQL, foreign keys delete those of this app. A key as Django makes it takes two queries for
each deleted job, at the commit, to see that nothing refers to it any more. One that cascades takes
one, which also deletes. It is not relied on: where the keys are others, as on SQLite, in tables
made without migrations, or between two steps of the migration, those who delete jobs delete first
what refers to them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from django.db import router

from .database import connection, home, is_postgresql
from .locks import locking_within, patiently

LOCK_TIMEOUT = "300ms"
PAUSE, TRIES = 1.0, 120
"""Between two attempts to get a lock, in seconds; and how many, before a migration fails."""
KEYS = """
    SELECT quote_ident(fk.conname), fk.confdeltype = 'c', fk.convalidated
      FROM pg_constraint AS fk
      JOIN pg_attribute AS key ON key.attrelid = fk.conrelid AND key.attnum = fk.conkey[1]
     WHERE fk.contype = 'f'
       AND fk.conrelid = %s::regclass
       AND fk.confrelid = %s::regclass
       AND key.attname = %s
"""
FOUND = """
    SELECT count(DISTINCT fk.conrelid::text || fk.conkey::text)
      FROM pg_constraint AS fk
     WHERE fk.contype = 'f'
       AND fk.confdeltype = 'c'
       AND fk.conrelid = ANY (%s::regclass[])
       AND fk.confrelid = %s::regclass
"""


class Key(NamedTuple):
    """A foreign key of a table."""

    name: str
    """Quoted where necessary."""
    cascades: bool
    is_valid: bool
    """Every row has been checked."""


def references(job: Any) -> Iterator[Any]:
    """Yield the fields of this app by which other rows refer to jobs.

    Args:
        job: the model; in a migration, that of its time.
    """
    for field in _fields(job):
        if field.model._meta.app_label == job._meta.app_label:
            yield field


def references_of_sites(job: Any) -> list[Any]:
    """Return the fields of other apps by which rows in the database of jobs refer to jobs."""
    return [
        field
        for field in _fields(job)
        if field.model._meta.app_label != job._meta.app_label
        and router.db_for_write(field.model) == home()
    ]


def _fields(job: Any) -> Iterator[Any]:
    # Hidden ones too: those of tables between a model and many jobs.
    for relation in job._meta.concrete_model._meta.get_fields(include_hidden=True):
        is_reverse = relation.auto_created and not relation.concrete
        if is_reverse and (relation.one_to_one or relation.one_to_many):
            yield relation.field


def cascade(job: Any) -> bool:
    """Whether all that refers to a job is deleted with it."""
    if not is_postgresql():
        return False
    fields = list(references(job))
    tables = sorted({field.model._meta.db_table for field in fields})
    with connection().cursor() as cursor:
        cursor.execute(FOUND, [tables, job._meta.db_table])
        return bool(cursor.fetchone()[0] == len(fields))


def set_cascade(job: Any, database: Any, *, cascades: bool) -> None:
    """Make the keys cascade, or no longer, beside those who use the tables.

    Rows are read while they can be written. What has been done stays done, if it is interrupted.

    Raises:
        Busy: the tables were in use all the time; nothing is lost, try again.
    """
    if database.vendor != "postgresql":
        return
    for field in references(job):
        _set_cascade(field, job._meta.db_table, database, cascades)


def _set_cascade(field: Any, jobs: str, database: Any, cascades: bool) -> None:
    table, column = field.model._meta.db_table, field.column
    name = f"{table}_{column}_{'cascade' if cascades else 'fk'}"
    action = "ON DELETE CASCADE" if cascades else ""

    def add() -> None:
        with locking_within(LOCK_TIMEOUT, database):
            _do(
                database,
                f"ALTER TABLE {table} ADD CONSTRAINT {name} FOREIGN KEY ({column})"
                f" REFERENCES {jobs} (id) {action} DEFERRABLE INITIALLY DEFERRED NOT VALID",
            )

    def drop(others: list[Key]) -> None:
        with locking_within(LOCK_TIMEOUT, database):
            for key in others:
                _do(database, f"ALTER TABLE {table} DROP CONSTRAINT {key.name}")

    def found() -> tuple[list[Key], list[Key]]:
        with database.cursor() as cursor:
            cursor.execute(KEYS, [table, jobs, column])
            keys = [Key(*row) for row in cursor.fetchall()]
        wanted = [key for key in keys if key.cascades == cascades]
        return wanted, [key for key in keys if key not in wanted]

    if not found()[0]:
        patiently(add, _pause, TRIES)
    wanted, others = found()
    for key in wanted:
        if not key.is_valid:
            _do(database, f"ALTER TABLE {table} VALIDATE CONSTRAINT {key.name}")
    if others:
        patiently(lambda: drop(others), _pause, TRIES)


def _pause() -> None:
    time.sleep(PAUSE)


def _do(database: Any, statement: str) -> None:
    with database.cursor() as cursor:
        cursor.execute(statement)
