"""Handlers: which function runs which type of job. Found in `<app>/handlers.py`, like admin.py.

    @handler("email.send", concurrency=2, timeout=30, versions=">=1.0 <3.0")
    def send(context, to, template): ...

A Django task is a handler of the type that is its dotted path; see `jobs.backends`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from jobs.spec.validation import TYPE_PATTERN
from jobs.spec.versions import ALL, Versions, version_number
from jobs.task_options import checked_limits, checked_versions

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and how it is run."""

    type: str
    function: Callable[..., Any]
    concurrency: int | None = None
    """Most jobs of this type at once in one process; None means as many as there are places."""
    timeout: timedelta | None = None
    """Longest execution; the job's own timeout may be shorter."""
    atomic_ack: bool = False
    """Run in a transaction that also completes the job: both are committed, or neither."""
    ended: Callable[[Any, Any], None] | None = None
    """Told of each execution what will be reported of it; must not raise."""
    versions: Versions = ALL
    """Those it can run; the server gives jobs of others to other workers (OJS versioning §8)."""

    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", iscoroutinefunction(self.function))

    def call(self, context: Any) -> Any:
        return self.function(context, *context.args)

    def takes(self, context: Any) -> bool:
        """Whether it runs jobs of this version; one without a version goes to everybody."""
        return self.versions == ALL or version_number(context.version) in self.versions

    def tell(self, context: Any, outcome: Any) -> None:
        if self.ended is not None:
            self.ended(context, outcome)

    async def atell(self, context: Any, outcome: Any) -> None:
        if self.ended is not None:
            await sync_to_async(self.ended)(context, outcome)


_handlers: dict[str, Handler] = {}


def handler(
    type: str,
    *,
    concurrency: int | None = None,
    timeout: timedelta | float | None = None,
    atomic_ack: bool = False,
    versions: str = "*",
) -> Callable[[F], F]:
    """Say that a function runs jobs of `type`; it is called with the context and the job's args.

    Args:
        concurrency: most jobs of this type at once in one process.
        timeout: seconds or a timedelta; then the handler is interrupted and the job fails.
        atomic_ack: run in a transaction that also completes the job, so that its effects in this
            database happen exactly once. Synchronous handlers of a site's own worker only.
        versions: those it can run (OJS job versioning §8.1): `2.0`, `>=1.0 <3.0`, or any.

    Raises:
        ImproperlyConfigured: the type is no job type or has a handler already.
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
    """The handler of a type, be it a Django task."""
    found = _handlers.get(type)
    if found is None:
        from .tasks import task_handler

        found = task_handler(type)
        if found is not None:
            _handlers[type] = found
    return found


def known() -> list[str]:
    """The types that have a handler, Django tasks among them as far as they are imported."""
    from .tasks import imported_types

    return sorted({*_handlers, *imported_types()})


def versions() -> dict[str, Versions]:
    """What is run of each type of which not every version is: what a worker declares."""
    found = ((name, find(name)) for name in known())
    return {name: it.versions for name, it in found if it is not None and it.versions != ALL}


def registered() -> list[Handler]:
    return list(_handlers.values())


def forget(type: str) -> None:
    """Take a handler away (tests)."""
    _handlers.pop(type, None)
