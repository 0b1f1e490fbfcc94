"""Which database the jobs live in, and its dialect; routers are honoured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connections, router, transaction


def alias() -> str:
    from .models import Job

    return router.db_for_write(Job)


def connection() -> Any:
    return connections[alias()]


def atomic() -> transaction.Atomic:
    return transaction.atomic(using=alias())


def on_commit(function: Callable[[], object]) -> None:
    transaction.on_commit(function, using=alias())


def is_postgresql() -> bool:
    return connection().vendor == "postgresql"
