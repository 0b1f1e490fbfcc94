"""Inserts rows of a model; on PostgreSQL they are a few parameters, however many they are.

With `bulk_create`, each column of each row is a parameter. For a thousand events that takes three
times as long, and for a single one twice: its statement is planned each time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db import models, transaction

from .choice import is_portable
from .database import alias, connection, is_postgresql, run

BATCH = 1000
LENGTH = re.compile(r"\(\d+\)$")

Model = type[models.Model]


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
    insert = _insert_on_a_node if is_portable() else _insert
    with transaction.atomic(using=alias(), savepoint=False):
        for start in range(0, len(new), BATCH):
            batch = new[start : start + BATCH]
            insert(model, batch)
            for row in batch:
                row._state.adding, row._state.db = False, alias()


def _insert(model: Model, batch: Sequence[models.Model]) -> None:
    attributes, statement = _of(model)
    documents = [
        {column: getattr(row, name) for column, name in attributes.items()} for row in batch
    ]
    ids = run(statement, {"rows": _as_json(documents)})
    for row, (row_id,) in zip(batch, ids, strict=True):
        row.pk = row_id


@cache
def _of(model: Model) -> tuple[dict[str | None, str], str]:
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


# Citus copies what an INSERT selects to the node, and whatever a transaction copies is committed in
# two phases. If the node is lost between them, a transaction that was confirmed takes effect only
# when Citus looks for such, a minute later; if the cell is moved meanwhile, never. An INSERT is
# sent to the node as it is if it inserts one row of values; or if it also reads a table of the
# cell, and calls nothing that is volatile or stable. In the latter a column is an array, or one
# value if that is the same in all rows, and what the database gives a row is asked for before.


class _Column(NamedTuple):
    name: str
    """Of the attribute, and of the parameter."""
    quoted: str
    kind: str
    """Its type, without the length: a cast would shorten what is too long."""
    is_json: bool
    is_key: bool
    drawn: str
    """The expression for a value that only the database gives."""

    def values(self, batch: Sequence[models.Model]) -> list[Any]:
        found = [getattr(row, self.name) for row in batch]
        if self.is_json:
            return [None if value is None else _as_json(value) for value in found]
        return found


def _insert_on_a_node(model: Model, batch: Sequence[models.Model]) -> None:
    if len(batch) == 1:
        _insert_values(model, batch)
    else:
        _insert_arrays(model, batch)


def _insert_values(model: Model, one: Sequence[models.Model]) -> None:
    table, columns = _of_node(model)
    drawn = [column for column in columns if column.drawn]
    given = [column for column in columns if not column.drawn]
    parameters: dict[str, Any] = {}
    values = ", ".join(_written(column, column.values(one)[0], parameters) for column in given)
    returned = f"RETURNING {_names(drawn)}" if drawn else ""
    statement = f"INSERT INTO {table} ({_names(given)}) VALUES ({values}) {returned}"
    _set(one, drawn, run(statement, parameters))


def _insert_arrays(model: Model, batch: Sequence[models.Model]) -> None:
    table, columns = _of_node(model)
    drawn = [column for column in columns if column.drawn]
    if drawn:
        draw = f"SELECT {', '.join(column.drawn for column in drawn)} FROM generate_series(1, %s)"
        _set(batch, drawn, run(draw, [len(batch)]))
    parameters: dict[str, Any] = {}
    differing, selected = [], []
    for column in columns:
        values = column.values(batch)
        if not column.is_key and values.count(values[0]) == len(values):
            selected.append(_written(column, values[0], parameters))
        else:
            parameters[column.name] = values
            differing.append(column)
            selected.append(f"given.{column.quoted}")
    arrays = ", ".join(f"%({column.name})s::{column.kind}[]" for column in differing)
    run(
        f"""
        INSERT INTO {table} ({_names(columns)})
        SELECT {", ".join(selected)}
          FROM (SELECT count(*) FROM (SELECT 1 FROM {table} LIMIT 0) AS nothing) AS here,
               unnest({arrays}) AS given ({_names(differing)})
        """,
        parameters,
    )


def _names(columns: Sequence[_Column]) -> str:
    return ", ".join(column.quoted for column in columns)


def _set(batch: Sequence[models.Model], drawn: Sequence[_Column], rows: Sequence[Any]) -> None:
    for row, values in zip(batch, rows, strict=bool(drawn)):
        for column, value in zip(drawn, values, strict=True):
            setattr(row, column.name, value)


def _written(column: _Column, value: Any, parameters: dict[str, Any]) -> str:
    """Return a value as it is in the statement; most are not worth a parameter."""
    if value is None:
        return f"NULL::{column.kind}"
    if value == "":
        return "''"
    if isinstance(value, int):
        return f"'{value}'::{column.kind}"
    parameters[column.name] = value
    return f"%({column.name})s::{column.kind}"


@cache
def _of_node(model: Model) -> tuple[str, list[_Column]]:
    """Return the name of the table, and its columns."""
    database = connection()
    quoted = database.ops.quote_name
    columns = [
        _Column(
            field.attname,
            quoted(field.column),
            LENGTH.sub("", str(field.rel_db_type(database))),
            isinstance(field, models.JSONField),
            field.primary_key,
            _drawn(field) if _is_of_database(field) else "",
        )
        for field in model._meta.concrete_fields
    ]
    return quoted(model._meta.db_table), columns


def _drawn(field: Any) -> str:
    """Return the expression for a value that the database gives."""
    database = connection()
    if isinstance(field, models.AutoField):
        table = database.ops.quote_name(field.model._meta.db_table)
        return f"nextval(pg_get_serial_sequence('{table}', '{field.column}'))"
    compiler = field.model._default_manager.using(alias()).all().query.get_compiler(alias())
    text, parameters = compiler.compile(field._db_default_expression)
    assert not parameters
    return str(text)


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


_as_json = json.JSONEncoder(default=_as_text).encode
