"""Registers the functions that run job types. Found in `<app>/handlers.py`, like admin.py.

    @handler("email.send", concurrency=2, timeout=30, versions=">=1.0 <3.0")
    def send(context, to, template): ...

A Django task is the handler of the type named by its dotted path; see `jobs.backends`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from jobs.spec.validation import TYPE_PATTERN
from jobs.spec.versions import ALL, Versions
from jobs.task_options import checked_limits, checked_versions

from .handling import Handler
from .tasks import imported_types, task_handler

F = TypeVar("F", bound=Callable[..., Any])


_handlers: dict[str, Handler] = {}


def handler(
    type: str,
    *,
    concurrency: int | None = None,
    timeout: timedelta | float | None = None,
    atomic_ack: bool = False,
    versions: str = "*",
) -> Callable[[F], F]:
    """Register a function for jobs of `type`; it is called with the context and the job's args.

    Args:
        concurrency: most jobs of this type at once in one process.
        timeout: seconds or a timedelta, after which the handler is interrupted and the job fails.
        atomic_ack: run in a transaction that also completes the job, so that its effects in this
            database happen exactly once. Synchronous handlers of a site's own worker only.
        versions: those it can run (OJS job versioning §8.1): `2.0`, `>=1.0 <3.0`, or any.

    Raises:
        ImproperlyConfigured: the type is not a valid job type, or already has a handler.
    """
    if not isinstance(type, str):
        raise ImproperlyConfigured(
            f"handler() wants the type of its jobs, @handler('email.send'), not {type!r}."
        )
    if not TYPE_PATTERN.fullmatch(type):
        raise ImproperlyConfigured(f"{type!r} is not a job type such as 'email.send'.")

    def register(function: F) -> F:
        name = f"Handler of {type!r}"
        limit = checked_limits(name, function, concurrency, timeout, atomic_ack)
        taken = checked_versions(name, versions)
        made = Handler(type, function, concurrency, limit, atomic_ack, versions=taken)
        known = _handlers.get(type)
        if known is not None and _place(known.function) != _place(function):
            raise ImproperlyConfigured(
                f"Jobs of type {type!r} have two handlers: {_place(known.function)} and "
                f"{_place(function)}."
            )
        _handlers[type] = made
        return function

    return register


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


def autodiscover() -> None:
    """Import `handlers` and `tasks` of every installed app."""
    autodiscover_modules("handlers")
    autodiscover_modules("tasks")


def find(type: str) -> Handler | None:
    """The handler of a type, including Django tasks."""
    found = _handlers.get(type)
    if found is None:
        found = task_handler(type)
        if found is not None:
            _handlers[type] = found
    return found


def known() -> list[str]:
    """The types that have a handler, including the Django tasks that are imported."""
    return sorted({*_handlers, *imported_types()})


def versions() -> dict[str, Versions]:
    """The version ranges that a worker declares, for types not run in all versions."""
    found = ((name, find(name)) for name in known())
    return {name: it.versions for name, it in found if it is not None and it.versions != ALL}


def registered() -> list[Handler]:
    return list(_handlers.values())


def forget(type: str) -> None:
    """Remove a handler (tests)."""
    _handlers.pop(type, None)
