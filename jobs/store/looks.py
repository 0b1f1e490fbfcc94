"""Looks for work: queries that are repeated several times a second, and seldom find anything.

Django would build and compile such a query anew each time, which takes it half a millisecond, many
times as long as PostgreSQL needs to find nothing. Here a query is compiled once, and prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet

from .database import alias, compiled, connection, is_postgresql, run

_statements: dict[tuple[Callable[[], QuerySet[Any]], str], tuple[str, tuple[Any, ...]]] = {}
"""Query and database → statement and parameters."""


def finds(query: Callable[[], QuerySet[Any]]) -> bool:
    """Whether a query finds a row now. No row is locked.

    Args:
        query: a function of a module or a method of a manager, the same object at each call. What
            it returns must depend on nothing but the database: not on settings, and on no time
            but `Now()`.
    """
    key = query, alias()
    if key not in _statements:
        _statements[key] = _compile(query())
    return bool(run(*_statements[key]))


def _compile(queryset: QuerySet[Any]) -> tuple[str, tuple[Any, ...]]:
    statement, parameters = compiled(queryset.order_by().values("pk")[:1])
    if not is_postgresql():
        return statement, parameters
    # With values in the text: a plan for any value could not use a partial index.
    with connection().cursor() as cursor:
        return cursor.mogrify(statement, parameters).replace("%", "%%"), ()
