"""Sentry's queue monitoring, and errors of handlers as its issues.

    OJS = {
        "ENQUEUE_MIDDLEWARE": ["jobs.sentry.SentryEnqueue"],
        "EXECUTION_MIDDLEWARE": ["jobs.sentry.SentryProcess"],
    }

Needs `pip install 'django-ojs[sentry]'` and `sentry_sdk.init(...)` in the site's settings; without
the latter nothing is sent. The spans are those that Sentry knows for any queue (`queue.publish`,
`queue.process`), and a job continues the trace of the request that enqueued it. The trace is in
the job's `meta` (`traceparent`, `baggage`; OJS distributed tracing §6.1), not in headers of
Sentry's own: a worker with OpenTelemetry, in whatever language, continues it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import orjson
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from .middleware import ENQUEUE, EXECUTION
from .spec.timestamps import parse_timestamp
from .spec.traces import BAGGAGE, TRACEPARENT, context_of, parent_of

try:
    import sentry_sdk
    from sentry_sdk.scope import use_isolation_scope, use_scope
except ImportError as problem:
    raise ImproperlyConfigured(
        "jobs.sentry needs the package sentry-sdk: pip install 'django-ojs[sentry]'"
    ) from problem

ORIGIN = "auto.queue.ojs"
SAMPLED = {"0": "00", "1": "01", "": "00"}
"""The flag at the end of `sentry-trace` → that of `traceparent`."""
ODD = frozenset("13579bdf")


class SentryEnqueue:
    """For `ENQUEUE_MIDDLEWARE`, outermost: a span `queue.publish` for each job."""

    for_option = ENQUEUE

    def __call__(self, job: dict[str, Any], next: Callable[[dict[str, Any]], Any]) -> Any:
        with sentry_sdk.start_span(op="queue.publish", name=job["type"], origin=ORIGIN) as span:
            for name, value in {
                **_about(job["queue"], job["id"]),
                "messaging.message.body.size": _size(job["args"]),
            }.items():
                span.set_data(name, value)
            for name, value in _trace_headers().items():
                job["meta"].setdefault(name, value)
            return next(job)


class SentryProcess:
    """For `EXECUTION_MIDDLEWARE`, outermost: a transaction of its own for each attempt, with a span
    `queue.process`, in the trace that enqueued the job.

    What an attempt fails with becomes an issue, with the job as context; what handlers raise to
    decide about their job (`Retry`, `Snooze`, `Discard`) does not.
    """

    for_option = EXECUTION

    def __call__(self, context: Any, next: Callable[[], Any]) -> Any:
        with sentry_sdk.isolation_scope() as scope:
            # Those of this thread: they are about other jobs.
            scope.clear_breadcrumbs()
            scope.set_tag("ojs.job.type", context.type)
            scope.set_tag("ojs.job.queue", context.queue)
            scope.set_context(
                "job",
                {
                    "id": str(context.id),
                    "attempt": context.attempt,
                    "max_attempts": context.max_attempts,
                    "worker": context.worker_id,
                },
            )
            transaction = sentry_sdk.continue_trace(
                _incoming(context.meta),
                op="queue.task.ojs",
                name=context.type,
                source="task",
                origin=ORIGIN,
            )
            # Left when the attempt has ended, and without the exception: Sentry takes every
            # exception that passes its spans for an error.
            running = ExitStack()
            running.enter_context(sentry_sdk.start_transaction(transaction))
            span = running.enter_context(
                sentry_sdk.start_span(op="queue.process", name=context.type, origin=ORIGIN)
            )
            scopes = scope, sentry_sdk.get_current_scope()
            context.when_ended(partial(self._ended, scopes, running, (span, transaction)))
            for name, value in {
                **_about(context.queue, str(context.id)),
                "messaging.message.body.size": _size(context.args),
                "messaging.message.retry.count": context.attempt - 1,
                "messaging.message.receive.latency": _latency(context.job),
            }.items():
                span.set_data(name, value)
            return next()

    def _ended(
        self,
        scopes: tuple[Any, Any],
        running: ExitStack,
        spans: Iterable[Any],
        problem: BaseException | None,
    ) -> None:
        isolation, current = scopes
        with use_isolation_scope(isolation), use_scope(current):
            if problem is not None and getattr(problem, "is_error", True):
                sentry_sdk.capture_exception(problem)
            failed = problem is not None and getattr(problem, "fails", True)
            for each in spans:
                each.set_status("internal_error" if failed else "ok")
            running.close()


def _about(queue: str, id: str) -> dict[str, Any]:
    return {
        "messaging.system": "ojs",
        "messaging.destination.name": queue,
        "messaging.message.id": id,
    }


def _size(args: Any) -> int:
    """Return the bytes of the arguments; what is not JSON is refused after the middleware."""
    try:
        return len(orjson.dumps(args))
    except TypeError:
        return 0


def _latency(job: Mapping[str, Any]) -> float:
    """Return the milliseconds from when the job could run until now."""
    since = job.get("enqueued_at") or job.get("created_at")
    if not since:
        return 0.0
    return max(0.0, (timezone.now() - parse_timestamp(since)).total_seconds() * 1000)


def _trace_headers() -> dict[str, str]:
    """Return the current trace as members of `meta`; empty without a client."""
    if not sentry_sdk.get_client().options.get("dsn"):
        return {}
    trace, _, rest = (sentry_sdk.get_traceparent() or "").partition("-")
    span, _, sampled = rest.partition("-")
    headers = {"traceparent": f"00-{trace}-{span}-{SAMPLED.get(sampled, '00')}"} if span else {}
    baggage = sentry_sdk.get_baggage()
    return headers | ({"baggage": baggage} if baggage else {})


def _incoming(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace in `meta` as headers that Sentry reads."""
    carried = context_of(meta.get)
    parent = parent_of(carried.get(TRACEPARENT))
    if parent is None:
        return {}
    # The lowest bit of the flags; others may be set.
    sampled = int(parent["flags"][-1] in ODD)
    found = {"sentry-trace": f"{parent['trace_id']}-{parent['span_id']}-{sampled}"}
    if BAGGAGE in carried:
        found["baggage"] = carried[BAGGAGE]
    return found
