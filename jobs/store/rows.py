"""Inserts rows of a model; on PostgreSQL they are one parameter.

With `bulk_create`, each column of each row is a parameter. For a thousand events that takes three
times as long, and for a single one twice: its statement is planned each time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import cache
from typing import Any
from uuid import UUID

from django.db import models, transaction

from .database import alias, connection, is_postgresql, run

BATCH = 1000


def insert_rows(rows: Iterable[models.Model]) -> None:
    """Insert new rows of one model in this order, all or none, and give them their ids.

    Like `bulk_create` without options: `save()` is not called, and no signal is sent.
    """
    new = list(rows)
    if not new:
        return
    model: Any = type(new[0])
    if not is_postgresql():
        model._default_manager.using(alias()).bulk_create(new, batch_size=BATCH)
        return
    attributes, statement = _of(model)
    with transaction.atomic(using=alias(), savepoint=False):
        for start in range(0, len(new), BATCH):
            batch = new[start : start + BATCH]
            documents = [
                {column: getattr(row, name) for column, name in attributes.items()} for row in batch
            ]
            ids = run(statement, {"rows": json.dumps(documents, default=_as_text)})
            for row, (row_id,) in zip(batch, ids, strict=True):
                row.pk = row_id
                row._state.adding, row._state.db = False, alias()


@cache
def _of(model: type[models.Model]) -> tuple[dict[str | None, str], str]:
    """Return the attributes that are written, by column, and the statement."""
    database = connection()
    quoted = database.ops.quote_name
    fields = [field for field in model._meta.concrete_fields if not _is_of_database(field)]
    names = ", ".join(quoted(field.column) for field in fields)
    kinds = ", ".join(f"{quoted(field.column)} {field.rel_db_type(database)}" for field in fields)
    assert model._meta.pk is not None
    statement = f"""
        INSERT INTO {quoted(model._meta.db_table)} ({names})
        SELECT {names}
          FROM jsonb_to_recordset(%(rows)s::jsonb) AS given ({kinds})
     RETURNING {quoted(model._meta.pk.column)}
    """
    return {field.column: field.attname for field in fields}, statement


def _is_of_database(field: Any) -> bool:
    """Whether only the database gives the column its value."""
    has_default = field.has_db_default() and not field.has_default()
    return has_default or isinstance(field, models.AutoField)


def _as_text(value: Any) -> str:
    """Return a value that JSON lacks as PostgreSQL reads it."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"A row cannot be inserted with {value!r}.")
