"""Middleware around every enqueue and every execution of this site (OJS middleware).

A middleware is a callable, named in the settings by its dotted path; a class is instantiated
once, without arguments. One that names the chain it is for (`for_option`) is refused in the other.

* `OJS["ENQUEUE_MIDDLEWARE"]`: called with the envelope (a dict) and `next`. Returns what
  `next(job)` returns, or None to drop the job; an exception aborts the enqueue (§3).
* `OJS["EXECUTION_MIDDLEWARE"]`: called with the job's context and `next`. `next()` runs the
  handler and returns its result (§4). It may be a coroutine function, and must not swallow errors
  (§7.5).

Apps may change a chain in their `ready()`; once used, it is frozen (§5.3).
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils import translation
from django.utils.module_loading import import_string

from .conf import ojs_settings
from .spec.traces import TRACEPARENT, TRACESTATE, context_of

Middleware = Callable[..., object]
ENQUEUE, EXECUTION = "ENQUEUE_MIDDLEWARE", "EXECUTION_MIDDLEWARE"
TRACE = (TRACEPARENT, TRACESTATE)


class Chain:
    """An ordered list of middleware, outermost first, identified by path or identity."""

    def __init__(self, option: str) -> None:
        self.option = option
        self._around: type[Any] | None = None
        self.reset()

    def reset(self) -> None:
        self._entries: list[str | Middleware] | None = None
        self._built: tuple[Middleware, ...] | None = None

    @property
    def entries(self) -> list[str | Middleware]:
        """Return the entries of the chain, in order (§5.4)."""
        return list(self._own())

    def add(self, middleware: str | Middleware) -> None:
        self._changeable().append(middleware)

    def prepend(self, middleware: str | Middleware) -> None:
        self._changeable().insert(0, middleware)

    def insert_before(self, existing: str | Middleware, middleware: str | Middleware) -> None:
        self._changeable().insert(self._index(existing), middleware)

    def insert_after(self, existing: str | Middleware, middleware: str | Middleware) -> None:
        self._changeable().insert(self._index(existing) + 1, middleware)

    def remove(self, middleware: str | Middleware) -> None:
        del self._changeable()[self._index(middleware)]

    def surround(self, middleware: type[Any] | None) -> None:
        """Put a middleware around all others, unless an instance of it is among them."""
        self._around = middleware
        self._built = None

    def _own(self) -> list[str | Middleware]:
        if self._entries is None:
            self._entries = list(getattr(ojs_settings, self.option))
        return self._entries

    def _changeable(self) -> list[str | Middleware]:
        if self._built is not None:
            raise ImproperlyConfigured(
                f"{self.option} is in use and cannot be changed any more; do it in ready()."
            )
        return self._own()

    def _index(self, existing: str | Middleware) -> int:
        try:
            return self._own().index(existing)
        except ValueError:
            raise ImproperlyConfigured(f"{existing!r} is not in {self.option}.") from None

    def build(self) -> tuple[Middleware, ...]:
        """Import and instantiate the middleware, once; this freezes the chain."""
        if self._built is None:
            made = [self.load(entry) for entry in self._own()]
            around = self._around
            if around is not None and not any(isinstance(each, around) for each in made):
                made.insert(0, around())
            self._built = tuple(made)
        return self._built

    def load(self, entry: str | Middleware) -> Middleware:
        """
        Raises:
            ImproperlyConfigured: it cannot be imported or called.
        """
        found = entry
        if isinstance(entry, str):
            try:
                found = import_string(entry)
            except ImportError as problem:
                raise ImproperlyConfigured(
                    f'OJS["{self.option}"]: cannot import {entry!r}: {problem}'
                ) from problem
        try:
            made: Any = found() if inspect.isclass(found) else found
        except TypeError as problem:
            raise ImproperlyConfigured(
                f'OJS["{self.option}"]: {entry!r} cannot be made without arguments: {problem}'
            ) from problem
        if not callable(made):
            raise ImproperlyConfigured(f'OJS["{self.option}"]: {entry!r} is not callable.')
        meant = getattr(made, "for_option", self.option)
        if meant != self.option:
            raise ImproperlyConfigured(
                f'OJS["{self.option}"]: {entry!r} belongs into OJS["{meant}"].'
            )
        return made

    def __bool__(self) -> bool:
        return bool(self.build())

    def run(self, job: dict[str, Any]) -> dict[str, Any] | None:
        """Pass an envelope through an enqueue chain; None if a middleware dropped it."""

        def step(index: int, passed: dict[str, Any]) -> dict[str, Any] | None:
            if index == len(chain):
                return passed
            answer = chain[index](passed, lambda job: step(index + 1, job))
            if answer is not None and not isinstance(answer, dict):
                raise TypeError(
                    f"{chain[index]!r} must return next(job) or None, not {type(answer).__name__}."
                )
            return answer

        chain = self.build()
        return step(0, job)


enqueue_chain = Chain(ENQUEUE)
execution_chain = Chain(EXECUTION)


def _reset(*, setting: str, **kwargs: Any) -> None:
    if setting == "OJS":
        enqueue_chain.reset()
        execution_chain.reset()


setting_changed.connect(_reset, dispatch_uid="ojs_middleware")


_context: ContextVar[dict[str, Any] | None] = ContextVar("ojs_context", default=None)
_request: ContextVar[Any] = ContextVar("ojs_request", default=None)


@contextlib.contextmanager
def job_context(**meta: object) -> Iterator[None]:
    """Put `meta` on every job enqueued inside: `with job_context(tenant_id="acme"): …`"""
    token = _context.set((_context.get() or {}) | meta)
    try:
        yield
    finally:
        _context.reset(token)


class RequestContext:
    """For Django's `MIDDLEWARE`: gives `ContextMiddleware` the request that enqueues a job."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        if iscoroutinefunction(self):
            return self._async(request)
        token = _request.set(request)
        try:
            return self.get_response(request)
        finally:
            _request.reset(token)

    async def _async(self, request: Any) -> Any:
        token = _request.set(request)
        try:
            return await self.get_response(request)
        finally:
            _request.reset(token)


class ContextMiddleware:
    """Copies user, request id, locale and trace context into `meta` (OJS framework adapters §7.1).

    Values that the caller set in `meta` are kept.
    """

    for_option = ENQUEUE

    def __call__(self, job: dict[str, Any], next: Any) -> Any:
        for name, value in self.collect().items():
            job["meta"].setdefault(name, value)
        return next(job)

    def collect(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        locale = translation.get_language()
        if locale:
            found["ojs.context.locale"] = locale
        request = _request.get()
        if request is not None:
            found |= self._of_request(request)
        return found | current_trace() | (_context.get() or {})

    def _of_request(self, request: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        user = getattr(request, "user", None)
        if user is not None and user.is_authenticated:
            found["ojs.context.user_id"] = str(user.pk)
        request_id = request.headers.get("X-Request-Id")
        if request_id:
            found["ojs.context.request_id"] = request_id[:255]
        carried = context_of(request.headers.get)
        return found | {name: carried[name] for name in TRACE if name in carried}


class RestoreContext:
    """For `EXECUTION_MIDDLEWARE`: runs a job in the locale and context it was enqueued in.

    Jobs it enqueues in turn, through `ContextMiddleware`, continue the trace and the user.
    """

    for_option = EXECUTION

    def __call__(self, context: Any, next: Any) -> Any:
        meta = context.meta
        kept = {
            name: value
            for name, value in meta.items()
            if name.startswith("ojs.context.") or name in (*TRACE, "tenant_id")
        }
        locale = kept.pop("ojs.context.locale", None)
        with contextlib.ExitStack() as stack:
            stack.enter_context(job_context(**kept))
            if isinstance(locale, str):
                stack.enter_context(translation.override(locale))
            return next()


class LogExecution:
    """For `EXECUTION_MIDDLEWARE`, outermost: logs each successful execution with its duration
    (OJS logging §6.4). Failures are logged anyway."""

    for_option = EXECUTION

    def __call__(self, context: Any, next: Any) -> Any:
        began = time.perf_counter()
        result = next()
        took = round((time.perf_counter() - began) * 1000, 3)
        context.log("Completed in %.3f ms.", took, duration_ms=took)
        return result


def current_trace() -> dict[str, str]:
    """Return the W3C trace context of OpenTelemetry's current span; empty if there is none."""
    try:
        from opentelemetry import propagate
    except ImportError:
        return {}
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {name: carrier[name] for name in TRACE if name in carrier}
