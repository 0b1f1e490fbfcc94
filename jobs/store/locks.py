"""Transactions on PostgreSQL that do not wait long for locks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from django.db import OperationalError

from .database import atomic, connection

LOCK_NOT_AVAILABLE = "55P03"


class Busy(Exception):
    """Others use the table, and were not held up any longer; try again later."""


@contextlib.contextmanager
def locking_within(timeout: str) -> Iterator[None]:
    """A transaction that gives up if it does not get a lock in time.

    Args:
        timeout: as PostgreSQL reads it, such as `300ms`.

    Raises:
        Busy: it did not get a lock.
    """
    try:
        with atomic():
            with connection().cursor() as cursor:
                cursor.execute(f"SET LOCAL lock_timeout = '{timeout}'")
            yield
    except OperationalError as problem:
        if getattr(problem.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE:
            raise Busy(str(problem)) from problem
        raise
