"""SQL expressions that Django lacks, written once for both databases."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import orjson
from django.core.exceptions import EmptyResultSet
from django.db.models import (
    BooleanField,
    CharField,
    DateTimeField,
    DurationField,
    Expression,
    F,
    Func,
    IntegerField,
    JSONField,
    TextField,
    Value,
)
from django.db.models.functions import Cast
from django.db.models.lookups import In

from .database import is_postgresql


def as_text(column: str) -> Cast:
    """A column as text, for `values_list()`: thousands of equal values need to be parsed once."""
    return Cast(column, TextField())


def json_pairs(first: str, second: str) -> str:
    """Return the SQL of an aggregate: a JSON array with an array of both columns for each row."""
    if is_postgresql():
        return f"json_agg(json_build_array({first}, {second}))"
    return f"json_group_array(json_array({first}, {second}))"


class Parsed(dict[str | None, Any]):
    """The values of JSON texts, each text parsed once. A NULL is None."""

    def __missing__(self, text: str | None) -> Any:
        value = self[text] = None if text is None else orjson.loads(text)
        return value


@dataclass(frozen=True)
class Given:
    """Stands for the values that a statement gets each time it is run; see `queries`."""

    place: int
    """Of these values among all that the statement gets."""


class Later(NamedTuple):
    """A parameter that is written when its values are given."""

    place: int
    write: Callable[[Any], str]


def _parameter(values: Any, write: Callable[[Any], str]) -> str | Later:
    return Later(values.place, write) if isinstance(values, Given) else write(values)


class Among(In):
    """Whether a column has one of these: `filter(Among("pk", ids))`, for batches of them.

    PostgreSQL gets them as one array. With `pk__in`, each is a parameter of its own: for a thousand
    ids, Django takes 9 ms to write the statement, and PostgreSQL some more to read it.
    """

    def __init__(self, column: str, values: Iterable[UUID | int | str] | Given) -> None:
        super().__init__(F(column), values if isinstance(values, Given) else list(values))

    def get_prep_lookup(self) -> Any:
        return self.rhs if isinstance(self.rhs, Given) else super().get_prep_lookup()

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        if not self.rhs:
            raise EmptyResultSet
        column, parameters = self.process_lhs(compiler, connection)
        field = self.lhs.output_field
        # As `varchar(255)`, a longer text would be shortened, and found.
        kind = "text" if isinstance(field, CharField) else field.rel_db_type(connection)
        return f"{column} = ANY(%s::{kind}[])", [*parameters, _parameter(self.rhs, _array)]


def _array(values: Iterable[UUID | int | str]) -> str:
    """Return an array in PostgreSQL's notation.

    In a list, psycopg would look into each element for what must be quoted.
    """
    return "{" + ",".join(map(_quoted, values)) + "}"


def _quoted(value: UUID | int | str) -> str:
    """Return an element of PostgreSQL's notation of an array."""
    if not isinstance(value, str):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


EachValue = int | str | datetime | timedelta


class Each(Expression):
    """A number, a moment, a period or a text for each row, by its primary key:
    `update(scheduled_at=Each({job.pk: moment, …}, DateTimeField()))`.

    They are one parameter. A `Case` of them takes Django long to write, and PostgreSQL to read.
    """

    def __init__(self, values: Mapping[UUID | str, EachValue] | Given, output_field: Any) -> None:
        super().__init__(output_field=output_field)
        self._values: Any = values
        self._key: Any = F("pk")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values})"

    def get_source_expressions(self) -> list[Any]:
        return [self._key]

    def set_source_expressions(self, exprs: Sequence[Any]) -> None:
        (self._key,) = exprs

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        given = {
            key.hex if isinstance(key, UUID) else key: self.output_field.get_db_prep_value(
                value, connection
            )
            for key, value in self._values.items()
        }
        key, parameters = compiler.compile(self._key)
        # A JSON path cannot name every key.
        found = f"(SELECT value FROM json_each(%s) AS given WHERE given.key = {key})"
        return found, [json.dumps(given), *parameters]

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        key, parameters = compiler.compile(self._key)
        found = f"%s::jsonb ->> {key}::text"
        # Citus refuses conversions that depend on a setting.
        if isinstance(self.output_field, DateTimeField):
            found = f"to_timestamp(({found})::double precision)"
        elif isinstance(self.output_field, CharField):
            found = f"({found})"
        elif isinstance(self.output_field, DurationField):
            found = f"make_interval(secs => ({found})::double precision)"
        else:
            found = f"({found})::bigint"
        return found, [_parameter(self._values, _numbers), *parameters]


def _numbers(values: Mapping[UUID | str, EachValue]) -> str:
    return json.dumps({str(key): _number(value) for key, value in values.items()})


def _number(value: EachValue) -> float | str:
    if isinstance(value, datetime):
        return value.timestamp()
    return value.total_seconds() if isinstance(value, timedelta) else value


class JSONElement(Func):
    """The element of a JSON array at an index, if it is an array or an object:
    `JSONElement("steps", F("size") - 1)`.
    """

    output_field = JSONField()
    arity = 2

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sql(
            compiler, connection, template="(%(expressions)s::integer)", arg_joiner=" -> ", **extra
        )

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sql(
            compiler,
            connection,
            template="json_extract(%(expressions)s || ']')",
            arg_joiner=", '$[' || ",
            **extra,
        )


class TextAt(Expression):
    """What is at a path in a JSON column, as text; NULL if there is nothing, or a null:
    `TextAt("args", ["0", "to"])`.

    A number in the path is the index of an array or the name of a member. Django's transforms take
    it for an index, and PostgreSQL refuses one of more than 32 bits.
    """

    output_field = TextField()

    def __init__(self, column: str, path: Sequence[str]) -> None:
        super().__init__()
        self._column: Any = F(column)
        self._path = list(path)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._column}, {self._path})"

    def get_source_expressions(self) -> list[Any]:
        return [self._column]

    def set_source_expressions(self, exprs: Sequence[Any]) -> None:
        (self._column,) = exprs

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        column, parameters = compiler.compile(self._column)
        # Not one subquery in another for each key: SQLite's parser has a limited depth.
        found = f"""(
            WITH RECURSIVE walk (depth, type, value) AS (
                SELECT 0, json_type({column}), {column}
             UNION ALL
                SELECT depth + 1, each.type, each.value
                  FROM walk
                  JOIN json_each(
                           CASE WHEN walk.type IN ('array', 'object') THEN walk.value END
                       ) AS each
                 WHERE CAST(each.key AS TEXT) = json_extract(%s, '$[' || depth || ']')
            )
            SELECT CASE WHEN type IN ('true', 'false') THEN type ELSE CAST(value AS TEXT) END
              FROM walk
             WHERE depth = %s)"""
        return found, [*parameters, *parameters, json.dumps(self._path), len(self._path)]

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        column, parameters = compiler.compile(self._column)
        return f"({column} #>> %s::text[])", [*parameters, _array(self._path)]


class JSONArrayHas(Func):
    """Whether a JSON array of texts contains this one: `filter(JSONArrayHas("labels", "blue"))`."""

    output_field = BooleanField()

    def __init__(self, array: str, text: str, **extra: Any) -> None:
        super().__init__(array, Value(text), **extra)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source_expressions})"

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sql(
            compiler, connection, template="(%(expressions)s)", arg_joiner=" ? ", **extra
        )

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sql(
            compiler,
            connection,
            template="EXISTS (SELECT 1 FROM json_each(%(expressions)s)",
            arg_joiner=") AS element WHERE element.value = ",
            **extra,
        )


class JSONArrayWithin(Func):
    """Whether each text of a JSON array is one of these:
    `filter(JSONArrayWithin("needs", able))`.
    """

    output_field = BooleanField()

    def __init__(self, array: str, texts: Sequence[str], **extra: Any) -> None:
        super().__init__(array, Value(json.dumps(list(texts))), **extra)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source_expressions})"

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sql(
            compiler, connection, template="(%(expressions)s::jsonb)", arg_joiner=" <@ ", **extra
        )

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sql(
            compiler,
            connection,
            template="NOT EXISTS (SELECT 1 FROM json_each(%(expressions)s)))",
            arg_joiner=") AS need WHERE need.value NOT IN (SELECT value FROM json_each(",
            **extra,
        )


class JSONObjectHas(Func):
    """Whether a JSON object has this member with this text, number or boolean:
    `filter(JSONObjectHas("meta", "tenant", "acme"))`.

    For names that clients choose: in Django's `meta__<name>` some names are a lookup (`contains`,
    `in`) or an index (`0`).
    """

    output_field = BooleanField()

    def __init__(self, object: str, name: str, value: str | int | float, **extra: Any) -> None:
        super().__init__(object, Value(json.dumps({name: value})), **extra)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source_expressions})"

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sql(
            compiler, connection, template="(%(expressions)s::jsonb)", arg_joiner=" @> ", **extra
        )

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        # SQLite reads `true` as 1: unless both are numbers, their types must be the same.
        return super().as_sql(
            compiler,
            connection,
            template=(
                "EXISTS (SELECT 1 FROM json_each(%(expressions)s) AS wanted"
                " WHERE member.key = wanted.key AND member.atom = wanted.atom"
                " AND replace(member.type, 'real', 'integer')"
                " = replace(wanted.type, 'real', 'integer'))"
            ),
            arg_joiner=") AS member, json_each(",
            **extra,
        )


class JSONMerged(Func):
    """A JSON object with these members added or replaced: `update(stats=JSONMerged("stats",
    {"cpu": 0.5}))`. A null column counts as an empty object.
    """

    output_field = JSONField()

    def __init__(self, object: str, members: dict[str, Any], **extra: Any) -> None:
        super().__init__(object, Value(json.dumps(members)), **extra)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.source_expressions})"

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sql(
            compiler,
            connection,
            template="(coalesce(%(expressions)s::jsonb)",
            arg_joiner=", '{}') || ",
            **extra,
        )

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return super().as_sql(
            compiler,
            connection,
            template="json_patch(coalesce(%(expressions)s)",
            arg_joiner=", '{}'), ",
            **extra,
        )


class Bytes(Func):
    """The size of a JSON column in bytes, as the database writes it."""

    output_field = IntegerField()

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        template = "octet_length((%(expressions)s)::text)"
        return super().as_sql(compiler, connection, template=template, **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        template = "length(CAST(%(expressions)s AS BLOB))"
        return super().as_sql(compiler, connection, template=template, **extra)


class MemberText(Func):
    """The beginning of a text in a JSON object, for an index: `MemberText("attributes", "parent")`.

    Django's own transforms pass the name as a parameter, with which SQLite finds no index; and a
    long text would not fit into an index of PostgreSQL.
    """

    output_field = TextField()

    def __init__(self, object: str, name: str, **extra: Any) -> None:
        super().__init__(object, **extra)
        self.name = name

    def as_postgresql(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        template = f"left(%(expressions)s ->> '{self.name}', 64)"
        return super().as_sql(compiler, connection, template=template, **extra)

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        template = f"substr(json_extract(%(expressions)s, '$.{self.name}'), 1, 64)"
        return super().as_sql(compiler, connection, template=template, **extra)
