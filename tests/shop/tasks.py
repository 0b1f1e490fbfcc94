"""Django tasks of the shop."""

from __future__ import annotations

from typing import Any

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
async def add_slowly(left: int, right: int) -> int:
    return left + right


@task
def send_invoice(*, order: int, copy_to: str = "") -> dict[str, Any]:
    return {"order": order, "copy_to": copy_to}


@task(takes_context=True)
def which_attempt(context: Any) -> int:
    return int(context.attempt)


@task
def decline(reason: str) -> None:
    raise CardDeclined(reason)
