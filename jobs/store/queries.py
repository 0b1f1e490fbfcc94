"""Queries that are built and compiled once, and prepared.

Django builds and compiles a query anew each time, which takes it a millisecond or more: several
times as long as PostgreSQL needs to find a few rows. That matters for queries that each job needs.

PostgreSQL plans them once as well, for any values, until a table is analyzed (see `planner`). So
they are for rows that there is one good way to find, whatever the tables contain: by their primary
key, or by the only index of a column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import cache, wraps
from operator import itemgetter
from typing import Any, NamedTuple

from django.db.models import QuerySet
from django.db.models.query import FlatValuesListIterable

from .database import alias, connection, is_postgresql, run
from .expressions import Given, Later

PARAMETER = re.compile("%[s%]")

Reader = Callable[[Any], Any]


def compiled_once(query: Callable[..., QuerySet[Any]]) -> Callable[..., list[Any]]:
    """Make a function that returns a queryset one that returns its rows, as a list.

    Without values there are no rows: no query is made if one of the collections is empty.

    Args:
        query: takes collections, each for an `Among()` or an `Each()`, and returns objects of one
            model or a `values_list()`. It must depend on nothing else but the database: not on
            settings, and on no time but `Now()`.
    """

    @wraps(query)
    def rows(*values: Collection[Any]) -> list[Any]:
        if not all(values):
            return []
        if not is_postgresql():
            # There, each of the values is a parameter of its own.
            return list(query(*values))
        return _compiled(query, len(values), alias()).rows(values)

    return rows


class _Compiled(NamedTuple):
    statement: str
    parameters: list[Later]
    converters: list[tuple[int, list[Any], Any]]
    """What Django makes of a column's values: its place, functions, and its expression."""
    read: Reader

    def rows(self, values: tuple[Collection[Any], ...]) -> list[Any]:
        parameters = [later.write(values[later.place]) for later in self.parameters]
        found: Iterable[Any] = run(self.statement, parameters)
        if self.converters:
            database = connection()
            found = (self._converted(row, database) for row in found)
        return [self.read(row) for row in found]

    def _converted(self, row: tuple[Any, ...], database: Any) -> list[Any]:
        converted = [*row]
        for place, functions, expression in self.converters:
            for function in functions:
                converted[place] = function(converted[place], expression, database)
        return converted


@cache
def _compiled(query: Callable[..., QuerySet[Any]], count: int, database: str) -> _Compiled:
    """Compile a query of so many collections for PostgreSQL.

    Args:
        database: the one in use.
    """
    queryset = query(*map(Given, range(count)))
    compiler = queryset.query.get_compiler(using=database)
    statement, parameters = _written(compiler)
    converters = compiler.get_converters([column for column, *_ in compiler.select])
    return _Compiled(
        statement,
        parameters,
        [(place, functions, column) for place, (functions, column) in converters.items()],
        _reader(queryset, compiler),
    )


def written(queryset: QuerySet[Any]) -> str:
    """Return a statement for PostgreSQL, as `run()` takes it, with its parameters in the text.

    A plan for any value could not use a partial index.
    """
    statement, _ = _written(queryset.query.get_compiler(using=alias()))
    return statement


def _written(compiler: Any) -> tuple[str, list[Later]]:
    """Return the statement, and the parameters that it still has."""
    statement, parameters = compiler.as_sql()
    left = iter(parameters)
    later: list[Later] = []

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%%"
        parameter = next(left)
        if isinstance(parameter, Later):
            later.append(parameter)
            return "%s"
        text: str = connection().ops.compose_sql("%s", [parameter])
        return text.replace("%", "%%")

    return PARAMETER.sub(replaced, statement), later


def _reader(queryset: QuerySet[Any], compiler: Any) -> Reader:
    """Return what makes an object or values of a row, as iterating over the queryset would."""
    shape: Any = queryset
    if shape._fields is not None:
        is_flat = issubclass(shape._iterable_class, FlatValuesListIterable)
        return itemgetter(0) if is_flat else tuple
    about = compiler.klass_info
    assert not about.get("related_klass_infos"), "select_related() is not read"
    start, end = about["select_fields"][0], about["select_fields"][-1] + 1
    names = [column.target.attname for column, *_ in compiler.select[start:end]]
    annotations = compiler.annotation_col_map

    def made(row: Any) -> Any:
        found = about["model"].from_db(alias(), names, row[start:end])
        for name, place in annotations.items():
            setattr(found, name, row[place])
        return found

    return made
