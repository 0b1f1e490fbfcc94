"""OpenTelemetry spans around every enqueue and every execution (OJS observability §5 and §6).

    OJS = {
        "ENQUEUE_MIDDLEWARE": ["jobs.opentelemetry.EnqueueSpan"],
        "EXECUTION_MIDDLEWARE": ["jobs.opentelemetry.ProcessSpan"],
    }

Needs `pip install 'django-ojs[opentelemetry]'` and, to send spans anywhere, a tracer provider that
the site configures; without one nothing is recorded. The trace context is in the job's `meta`
(`traceparent`, `tracestate`, `baggage`), where workers in other languages find it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured

try:
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ImportError as problem:
    raise ImproperlyConfigured(
        "jobs.opentelemetry needs the package opentelemetry-api: "
        "pip install 'django-ojs[opentelemetry]'"
    ) from problem

SCOPE = "openjobspec.org/ojs"
CARRIED = ("traceparent", "tracestate", "baggage")
"""Members of `meta` that carry a trace (OJS distributed tracing §6.1, §9.1)."""


class EnqueueSpan:
    """For `ENQUEUE_MIDDLEWARE`, outermost: a span `{queue} enqueue` for each job.

    Its context goes into the job's `meta`, unless the caller put one there. It ends before the job
    is checked and stored: what is refused then is an error of the span around it.
    """

    def __call__(self, job: dict[str, Any], next: Callable[[dict[str, Any]], Any]) -> Any:
        queue = job["queue"]
        attributes = _attributes("publish", queue, job["type"], job.get("id"))
        with _span(f"{queue} enqueue", SpanKind.PRODUCER, attributes):
            carrier: dict[str, str] = {}
            propagate.inject(carrier)
            for name in CARRIED:
                if name in carrier:
                    job["meta"].setdefault(name, carrier[name])
            return next(job)


class ProcessSpan:
    """For `EXECUTION_MIDDLEWARE`, outermost: a span `{queue} process` for each attempt.

    It begins a trace of its own and is linked to the span that enqueued the job, as the
    specification wants it (§5.2): a job may run hours after its request.
    """

    continues = False
    """Whether it is part of the trace that enqueued the job."""

    def __call__(self, context: Any, next: Callable[[], Any]) -> Any:
        origin = propagate.extract(_carried(context.meta), Context())
        remote = trace.get_current_span(origin).get_span_context()
        attributes = _attributes("process", context.queue, context.type, context.id)
        attributes |= {"ojs.job.attempt": context.attempt, "ojs.worker.id": context.worker_id}
        with _span(
            f"{context.queue} process",
            SpanKind.CONSUMER,
            attributes,
            parent=origin if self.continues else None,
            links=[Link(remote)] if remote.is_valid else [],
        ) as span:
            try:
                result = next()
            except Exception as problem:
                self._failed(span, context, problem)
                raise
            span.set_status(Status(StatusCode.OK))
            return result

    def _failed(self, span: Span, context: Any, problem: Exception) -> None:
        """Record an error; a handler that asks to run later has not failed (§8.1)."""
        if not getattr(problem, "fails", True):
            span.set_status(Status(StatusCode.OK))
            return
        span.record_exception(problem)
        span.set_status(Status(StatusCode.ERROR, str(problem)))
        span.set_attributes(
            {
                "error.type": f"{type(problem).__module__}.{type(problem).__qualname__}",
                "error.message": str(problem),
                "ojs.job.error.attempt": context.attempt,
            }
        )


class ContinuedSpan(ProcessSpan):
    """`ProcessSpan` as a child of the span that enqueued the job: for jobs that run soon."""

    continues = True


@contextmanager
def _span(
    name: str,
    kind: SpanKind,
    attributes: Mapping[str, Any],
    parent: Context | None = None,
    links: list[Link] | None = None,
) -> Iterator[Span]:
    tracer = trace.get_tracer(SCOPE)
    with tracer.start_as_current_span(
        name,
        context=parent,
        kind=kind,
        attributes=attributes,
        links=links,
        record_exception=kind == SpanKind.PRODUCER,
        set_status_on_exception=kind == SpanKind.PRODUCER,
    ) as span:
        yield span


def _carried(meta: Mapping[str, Any]) -> dict[str, str]:
    return {name: meta[name] for name in CARRIED if isinstance(meta.get(name), str)}


def _attributes(operation: str, queue: str, type: str, id: Any) -> dict[str, Any]:
    """Return the attributes that spans have (OJS observability §7.1)."""
    found = {
        "messaging.system": "ojs",
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
        "ojs.job.queue": queue,
        "ojs.job.type": type,
    }
    if id is not None:
        found |= {"messaging.message.id": str(id), "ojs.job.id": str(id)}
    return found
