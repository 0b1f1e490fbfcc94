"""What refers to a job: rows of this app, which are deleted with it, and rows of a site's own.

On PostgreSQL, rows of this app refer to jobs without foreign keys. For each key, PostgreSQL would
run a query whenever a job is deleted; the queries of five keys took more than half of retention's
time. Instead, a transaction that writes such a row locks the job, and one that deletes a job locks
it and deletes these rows first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db import router

from .database import home
from .locks import alter

KEYS = """
    SELECT quote_ident(fk.conname)
      FROM pg_constraint AS fk
      JOIN pg_attribute AS key ON key.attrelid = fk.conrelid AND key.attnum = fk.conkey[1]
     WHERE fk.contype = 'f'
       AND fk.conrelid = %s::regclass
       AND fk.confrelid = %s::regclass
       AND key.attname = %s
"""


def references(job: Any) -> Iterator[Any]:
    """Yield the fields of this app by which other rows refer to jobs.

    Args:
        job: the model; in a migration, that of its time.
    """
    for field in _fields(job):
        if field.model._meta.app_label == job._meta.app_label:
            yield field


def going_with(job: Any) -> Iterator[Any]:
    """Yield the fields of this app that contain the job of a row which is deleted with it."""
    yield from references(job)
    yield job._meta.apps.get_model(job._meta.app_label, "Checkpoint")._meta.pk


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


def drop_keys(job: Any, database: Any) -> None:
    """Drop the foreign keys to jobs of an earlier release, beside those who use the tables.

    What has been done stays done, if it is interrupted.

    Raises:
        Busy: the tables were in use all the time; nothing is lost, try again.
    """
    if database.vendor != "postgresql":
        return
    for field in references(job):
        table = field.model._meta.db_table
        with database.cursor() as cursor:
            cursor.execute(KEYS, [table, job._meta.db_table, field.column])
            keys = [name for (name,) in cursor.fetchall()]
        for key in keys:
            alter(database, f"ALTER TABLE {table} DROP CONSTRAINT {key}")
