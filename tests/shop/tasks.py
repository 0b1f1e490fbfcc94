"""Django tasks of the shop."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Group

from jobs.task_options import task_options

from .handlers import mark, wait_for

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


class CardDeclined(Exception):
    pass


@task
def add(left: int, right: int = 0) -> int:
    return left + right


@task
@task_options(version="2.1", versions=">=2.0 <3.0")
def multiply(left: int, right: int) -> int:
    return left * right


@task
async def add_slowly(left: int, right: int) -> int:
    return left + right


@task
def opaque() -> Any:
    """Returns something that is not JSON."""
    return object()


@task
def send_invoice(*, order: int, copy_to: str = "") -> dict[str, Any]:
    return {"order": order, "copy_to": copy_to}


@task(takes_context=True)
def which_attempt(context: Any) -> int:
    return int(context.attempt)


@task
def decline(reason: str) -> None:
    raise CardDeclined(reason)


@task
@task_options(
    atomic_ack=True,
    retry={
        "max_attempts": 2,
        "initial_interval": timedelta(hours=1),
        "non_retryable_errors": ["builtins.ValueError", "ValueError"],
    },
)
def charge(name: str, how: str = "") -> str:
    """Its effect is a row; it happens exactly once."""
    Group.objects.create(name=name)
    if how == "decline":
        raise CardDeclined(name)
    if how == "refuse":
        raise ValueError(name)
    return name


@task_options(concurrency=1)
@task
def scarce(name: str) -> None:
    mark(f"{name}.began")
    wait_for(f"{name}.go")


LATER = {"max_attempts": 3, "initial_interval": timedelta(hours=1)}
"""The delay lets a test find a failed task waiting for its retry."""


@task
@task_options(timeout=0.3, retry=LATER)
def hurried(name: str) -> None:
    wait_for("never")


@task
@task_options(timeout=timedelta(milliseconds=300), concurrency=3, retry=LATER)
async def hurried_async(name: str) -> None:
    await asyncio.Event().wait()
