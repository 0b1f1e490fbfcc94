"""Registers the functions that run job types. Found in `<app>/handlers.py`, like admin.py.

    @handler("email.send", concurrency=2, timeout=30, versions=">=1.0 <3.0")
    def send(context, to, template): ...

A Django task is the handler of the type named by its dotted path; see `jobs.backends`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.exceptions import ImproperlyConfigured

from jobs import crontab
from jobs.composition import Step
from jobs.handles import JobHandle
from jobs.options import JobOptions, Moment, RetryPolicy
from jobs.producer import enqueue_many
from jobs.spec.validation import TYPE_PATTERN
from jobs.spec.versions import ALL, Versions
from jobs.task_options import (
    Errors,
    checked_errors,
    checked_limits,
    checked_options,
    checked_versions,
)

from .context import JobContext
from .handling import Handler
from .tasks import imported_types, task_handler

P = ParamSpec("P")
R = TypeVar("R")

_handlers: dict[str, Handler] = {}
own: dict[str, Handler] = {}
"""Handlers of this server's own jobs: found, but no part of what a site has."""


class Registered(Generic[P, R]):
    """A handler: called like its function, and enqueued with its function's arguments.

    send(context, "ann")  # runs it, here and now
    send.enqueue("ann")  # a job, in the caller's transaction
    send.using(queue="mail").enqueue("ann")
    jobs.chain(send.job("ann"), …)
    """

    def __init__(
        self,
        type: str,
        function: Callable[Concatenate[JobContext, P], R],
        options: Mapping[str, object],
    ) -> None:
        self.type = type
        self.function = function
        self.options = options
        # What it is called with: not the context, which the worker adds.
        self._signature = _without_context(function)
        functools.update_wrapper(self, function)
        if iscoroutinefunction(function):
            markcoroutinefunction(self)

    def __call__(self, context: JobContext, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(context, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<handler of {self.type!r}: {_place(self.function)}>"

    def using(self, **options: Unpack[JobOptions]) -> Registered[P, R]:
        """Return the same handler, whose jobs have these options as well."""
        given = {name: value for name, value in options.items() if value is not None}
        return Registered(self.type, self.function, {**self.options, **given})

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle | None:
        """Enqueue a job with these arguments; see `jobs.enqueue()`.

        Raises:
            TypeError: the function cannot be called with them.
        """
        return enqueue_many([self.job_document(args, kwargs)])[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle | None:
        """`enqueue()` for async code."""
        return (await sync_to_async(enqueue_many)([self.job_document(args, kwargs)]))[0]

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Step:
        """Describe a job with these arguments for a workflow; see `jobs.job()`.

        Raises:
            TypeError: the function cannot be called with them.
        """
        return Step(self.job_document(args, kwargs))

    def job_document(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, object]:
        """Return what `jobs.enqueue()` takes for a call with these arguments.

        Raises:
            TypeError: the function cannot be called with them.
        """
        return {**self.options, "type": self.type, "args": self._positional(args, kwargs)}

    def _positional(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the arguments as a list, which is all that a job has."""
        if self._signature is None:
            if kwargs:
                raise TypeError(f"{self.type}: a job has positional arguments only.")
            return list(args)
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise TypeError(f"{self.type}: {problem}") from None
        if bound.kwargs:
            # One left out before one given by name.
            bound.apply_defaults()
        left = {
            name: value
            for name, value in bound.kwargs.items()
            if self._signature.parameters.get(name) is None
            or value is not self._signature.parameters[name].default
        }
        if left:
            raise TypeError(
                f"{self.type}: {min(left)!r} is keyword-only, and a job has positional arguments "
                "only."
            )
        return list(bound.args)


def _without_context(function: Any) -> inspect.Signature | None:
    """Return the function's signature without its first parameter; None if it has none."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind == inspect.Parameter.VAR_POSITIONAL:
        return signature
    if parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        return signature
    return signature.replace(parameters=parameters[1:])


def handler(
    type: str,
    *,
    concurrency: int | None = None,
    timeout: timedelta | float | None = None,
    atomic_ack: bool = False,
    versions: str = "*",
    retry_on: Errors | None = None,
    discard_on: Errors = (),
    retry: RetryPolicy | None = None,
    queue: str | None = None,
    priority: int | None = None,
    tags: Sequence[str] | None = None,
    unique: Mapping[str, object] | None = None,
    expires_at: Moment | None = None,
    rate_limit: Mapping[str, object] | None = None,
    version: str | None = None,
) -> Callable[[Callable[Concatenate[JobContext, P], R]], Registered[P, R]]:
    """Register a function for jobs of `type`; it is called with the context and the job's args.

    Returns a decorator, after which the function can be called as before, and also enqueued:
    `send.enqueue(to, template)`.

    Args:
        concurrency: most jobs of this type at once in one process.
        timeout: seconds or a timedelta, after which the handler is interrupted and the job fails.
        atomic_ack: run in a transaction that also completes the job, so that its effects in this
            database happen exactly once. Synchronous handlers of a site's own worker only.
        versions: those it can run (OJS job versioning §8.1): `2.0`, `>=1.0 <3.0`, or any.
        retry_on: retry only after these exceptions; any other is final.
        discard_on: after these exceptions, give the job up at once, without a dead letter.
        retry, queue, priority, tags, unique, expires_at, rate_limit, version: of the jobs that its
            `enqueue()` and `job()` make; as for `jobs.enqueue()`.

    Raises:
        ImproperlyConfigured: the type is not a valid job type, or already has a handler.
    """
    if not isinstance(type, str):
        raise ImproperlyConfigured(
            f"handler() requires the type of its jobs, @handler('email.send'), not {type!r}."
        )
    if not TYPE_PATTERN.fullmatch(type):
        raise ImproperlyConfigured(f"{type!r} is not a job type such as 'email.send'.")

    def register(decorated: Callable[Concatenate[JobContext, P], R]) -> Registered[P, R]:
        # One function may handle several types.
        function: Callable[Concatenate[JobContext, P], R] = (
            decorated.function if isinstance(decorated, Registered) else decorated
        )
        name = f"Handler of {type!r}"
        made = Handler(
            type,
            function,
            concurrency,
            checked_limits(name, function, concurrency, timeout, atomic_ack),
            atomic_ack,
            None,
            checked_versions(name, versions),
            *checked_errors(name, retry_on, discard_on),
        )
        options = checked_options(
            name,
            retry=retry,
            queue=queue,
            priority=priority,
            tags=tags,
            unique=unique,
            expires_at=expires_at,
            rate_limit=rate_limit,
            version=version,
        )
        known = _handlers.get(type)
        if known is not None and _place(known.function) != _place(function):
            raise ImproperlyConfigured(
                f"Jobs of type {type!r} have two handlers: {_place(known.function)} and "
                f"{_place(function)}."
            )
        _handlers[type] = made
        return Registered(type, function, options)

    return register


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', function)}"


def autodiscover() -> None:
    """Import `handlers` and `tasks` of every installed app."""
    crontab.autodiscover()


def find(type: str) -> Handler | None:
    """The handler of a type, including Django tasks."""
    found = own.get(type) or _handlers.get(type)
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
