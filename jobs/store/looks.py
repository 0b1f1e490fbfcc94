"""Looks for work: queries that are repeated several times a second, and seldom find anything.

Django would build and compile such a query anew each time, many times as long as the database needs
to find nothing. Here a query is compiled once, and prepared.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from django.db.models import QuerySet

from .database import alias, compiled, is_postgresql, run
from .queries import written


def finds(query: Callable[[], QuerySet[Any]]) -> bool:
    """Whether a query finds a row now. No row is locked.

    Args:
        query: a function of a module or a method of a manager, the same object at each call. What
            it returns must depend on nothing but the database: not on settings, and on no time
            but `Now()`.
    """
    return bool(run(*_statement(query, alias())))


def only_if_any(
    *queries: Callable[[], QuerySet[Any]],
) -> Callable[[Callable[[], int]], Callable[[], int]]:
    """Make a batch return 0, having done nothing, unless one of the queries finds a row.

    Args:
        queries: as in `finds()`.
    """

    def decorate(batch: Callable[[], int]) -> Callable[[], int]:
        @wraps(batch)
        def guarded() -> int:
            return batch() if any(finds(query) for query in queries) else 0

        return guarded

    return decorate


@cache
def _statement(query: Callable[[], QuerySet[Any]], database: str) -> tuple[str, tuple[Any, ...]]:
    """Return the statement in the dialect of `database`, the one in use, and its parameters."""
    queryset = query().order_by().values("pk")[:1]
    return (written(queryset), ()) if is_postgresql() else compiled(queryset)
