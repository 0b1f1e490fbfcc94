"""Transactions on PostgreSQL that do not wait long for locks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from django.db import OperationalError, transaction

from .database import connection

LOCK_NOT_AVAILABLE = "55P03"
LOCK_TIMEOUT = "300ms"
"""For changes of tables in use: those who use them are not held up longer than that."""
PAUSE, TRIES = 1.0, 120
"""Between two attempts of a migration to get a lock, in seconds; and how many, before it fails."""


class Busy(Exception):
    """Others use the table, and were not held up any longer; try again later."""


@contextlib.contextmanager
def locking_within(timeout: str, database: Any = None) -> Iterator[None]:
    """A transaction that gives up if it does not get a lock in time.

    Args:
        timeout: as PostgreSQL reads it, such as `300ms`.
        database: a connection of Django's; that of jobs if None.

    Raises:
        Busy: it did not get a lock.
    """
    database = database or connection()
    try:
        with transaction.atomic(using=database.alias):
            with database.cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{timeout}'")
            yield
    except OperationalError as problem:
        if getattr(problem.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE:
            raise Busy(str(problem)) from problem
        raise


def patiently(step: Callable[[], object], pause: Callable[[], None], tries: int) -> object:
    """Try a step again while it is `Busy`, `tries` times in all; return what it returns.

    Raises:
        Busy: so was the last attempt.
    """
    for _ in range(tries - 1):
        try:
            return step()
        except Busy:
            pause()
    return step()


def alter(database: Any, *statements: str) -> None:
    """Run statements of a migration in one transaction, beside those who use their tables.

    Raises:
        Busy: the tables were in use all the time; nothing is lost, try again.
    """

    def step() -> None:
        with locking_within(LOCK_TIMEOUT, database), database.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    patiently(step, _pause, TRIES)


def _pause() -> None:
    time.sleep(PAUSE)
