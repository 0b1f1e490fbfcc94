"""OpenTelemetry spans of what happens to jobs (OJS observability §5 to §7, distributed tracing).

    OJS = {"OPENTELEMETRY": True}

Needs `pip install 'django-ojs[opentelemetry]'` and, to send spans anywhere, a tracer provider that
the site configures; without one nothing is recorded. `EnqueueSpan` and `ProcessSpan` then surround
every enqueue and every execution, and the server's verbs have spans of their own. Without the
option, a site may name the two in its settings, and has only these:

    OJS = {
        "ENQUEUE_MIDDLEWARE": ["jobs.opentelemetry.EnqueueSpan"],
        "EXECUTION_MIDDLEWARE": ["jobs.opentelemetry.ProcessSpan"],
    }

The trace context is in the job's `meta` (`traceparent`, `tracestate`, `baggage`), where workers in
other languages find it too.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

import orjson
from django.core.exceptions import ImproperlyConfigured
from django.db import Error as DatabaseProblem
from django.db.models.fields.json import KeyTransform

from . import __version__
from .engine import bounds
from .errors import QueueFull
from .middleware import ENQUEUE, EXECUTION, enqueue_chain, execution_chain
from .models import Job
from .record import tracing
from .spec import traces
from .spec.batches import representatives, shared_targets
from .spec.error_texts import class_name, legible, message_of
from .spec.reports import Completion
from .spec.timestamps import wire_timestamp
from .spec.traces import BAGGAGE, CONTEXT, LONGEST_BAGGAGE, TRACEPARENT

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ImportError as problem:
    raise ImproperlyConfigured(
        "jobs.opentelemetry needs the package opentelemetry-api: "
        "pip install 'django-ojs[opentelemetry]'"
    ) from problem

SCOPE = "openjobspec.org/ojs"
INSTANCE = "service.instance.id"
LAST_WORDS = 5_000
"""Milliseconds to send the last spans of a process."""
OK = Status(StatusCode.OK)
HIDDEN = "[encrypted]"


def instrument() -> None:
    """Record spans from now on; called once, when the process starts."""
    tracing.recorder = SpanRecorder()
    enqueue_chain.surround(EnqueueSpan)
    execution_chain.surround(ProcessSpan)


def uninstrument() -> None:
    """Undo `instrument()`."""
    tracing.recorder = None
    enqueue_chain.surround(None)
    execution_chain.surround(None)


def resource(*, of_process: bool = True) -> Any:
    """Return the SDK's description of this process: `ojs`, unless `OTEL_SERVICE_NAME` names it.

    Args:
        of_process: False for what is the same in every process, which has no instance id.
    """
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    ours = Resource.create({"service.name": "ojs", "service.version": __version__})
    if not of_process:
        own = {name: value for name, value in ours.attributes.items() if name != INSTANCE}
        ours = Resource(own)
    return ours.merge(OTELResourceDetector().detect())


# Middleware


class EnqueueSpan:
    """For `ENQUEUE_MIDDLEWARE`, outermost: a span `{queue} enqueue` for each job.

    Its context goes into the job's `meta`, unless the caller put one there. It ends before the job
    is checked and stored: what is refused then is an error of the span around it, and of
    `ojs.enqueue`.
    """

    for_option = ENQUEUE

    def __call__(self, job: dict[str, Any], next: Callable[[dict[str, Any]], Any]) -> Any:
        # They are not checked yet.
        queue, kind = legible(str(job["queue"])), legible(str(job["type"]))
        attributes = _attributes("publish", queue, kind, job.get("id"))
        with trace.get_tracer(SCOPE).start_as_current_span(
            f"{queue} enqueue",
            kind=SpanKind.PRODUCER,
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            if span.is_recording():
                span.set_attributes(_details(job.get))
            traces.give(_injected(), [job["meta"]])
            try:
                passed = next(job)
            except Exception as problem:
                _fail(span, problem)
                raise
            span.set_status(OK)
            return passed


class ProcessSpan:
    """For `EXECUTION_MIDDLEWARE`, outermost: a span `{queue} process` for each attempt.

    It begins a trace of its own and is linked to the span that enqueued the job, as the
    specification wants it (§5.2): a job may run hours after its request.
    """

    continues = False
    """Whether it is part of the trace that enqueued the job."""

    for_option = EXECUTION

    def __call__(self, context: Any, next: Callable[[], Any]) -> Any:
        origin = propagate.extract(_carried(context.meta), Context())
        attributes = _attributes("process", context.queue, context.type, context.id)
        attributes |= {"ojs.job.attempt": context.attempt, "ojs.worker.id": context.worker_id}
        # The handler sees the baggage in either case.
        parent = origin if self.continues else trace.set_span_in_context(trace.INVALID_SPAN, origin)
        token = contexts.attach(parent)
        try:
            span = trace.get_tracer(SCOPE).start_span(
                f"{context.queue} process",
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                links=_links(context.meta),
            )
            # What is returned here may still be refused, or not be committed.
            context.when_ended(partial(self._ended, span, context))
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                if span.is_recording():
                    self._describe(span, context)
                context.traceparent = _injected().get(TRACEPARENT, "")
                return next()
        finally:
            contexts.detach(token)

    def _describe(self, span: Span, context: Any) -> None:
        envelope = context.job
        span.set_attributes(_details(envelope.get))
        span.set_attributes(_workflow(envelope.get("workflow_id"), context.meta))
        with contextlib.suppress(TypeError):  # a value that only a test puts there
            span.set_attribute("messaging.message.body.size", len(orjson.dumps(envelope)))

    def _ended(self, span: Span, context: Any, problem: BaseException | None) -> None:
        """End the span; a handler that asks to run later has not failed (§8.1)."""
        if problem is None or not getattr(problem, "fails", True):
            span.set_status(OK)
        else:
            # What an error says of encoded arguments must not be in a trace either.
            hides = getattr(context, "vault", None) is not None
            _fail(span, problem, context.attempt, hides=hides)
        span.end()


class ContinuedSpan(ProcessSpan):
    """`ProcessSpan` as a child of the span that enqueued the job: for jobs that run soon."""

    continues = True


# The verbs


class SpanRecorder:
    """Records the spans of a server and of a worker process; see `tracing.Recorder`."""

    def _begin(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        *,
        carried: Mapping[str, Any] | None = None,
        links: Sequence[Link] = (),
        began: int | None = None,
    ) -> Span:
        """Begin a span: a child of the context that is carried, else of the current span."""
        parent = None
        if carried and TRACEPARENT in carried:
            parent = propagate.extract(_carried(carried), Context())
        return trace.get_tracer(SCOPE).start_span(
            name, context=parent, kind=kind, attributes=attributes, links=links, start_time=began
        )

    @contextmanager
    def enqueueing(self, new: Sequence[Any]) -> Iterator[None]:
        """One span `ojs.enqueue` for each job; one for all jobs that differ in their arguments."""
        together = representatives(new)
        is_batch = together is not new
        spans: list[Span] = []
        before: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for job in together:
            attributes = _attributes("publish", job.queue, job.type, None if is_batch else job.id)
            if is_batch:
                attributes["messaging.batch.message_count"] = len(new)
            attributes |= _details(partial(_value, job)) | _workflow(job.workflow_id, job.meta)
            name = "ojs.enqueue_batch" if is_batch else "ojs.enqueue"
            span = self._begin(name, SpanKind.SERVER, attributes, carried=job.meta)
            spans.append(span)
            if TRACEPARENT not in job.meta:
                metas = [each.meta for each in (shared_targets(new) if is_batch else [job])]
                before += [(meta, meta.copy()) for meta in metas]
                traces.give(_injected(trace.set_span_in_context(span)), metas)
        with _ending(spans):
            try:
                yield
            except Exception as problem:
                # They may be tried again, in smaller batches or when there is room.
                for meta, unchanged in before:
                    meta.clear()
                    meta.update(unchanged)
                if isinstance(problem, QueueFull) and bounds.is_patient():
                    spans.clear()  # what is not ended is not exported
                raise
            for span, job in zip(spans, together, strict=True):
                if span.is_recording():
                    span.set_attribute("ojs.job.state", str((job.existing or job).state))

    @contextmanager
    def settling(
        self, operation: str, reports: Sequence[Any]
    ) -> Iterator[Callable[[Sequence[Any]], None]]:
        spans = [
            self._begin(
                operation,
                SpanKind.SERVER,
                {"messaging.system": "ojs", "messaging.operation.type": "settle"},
                carried={TRACEPARENT: report.traceparent} if report.traceparent else None,
            )
            for report in reports
        ]
        follows = {report.job_id: report.traceparent for report in reports if report.traceparent}
        token = tracing.previous.set(follows)
        try:
            with _ending(spans):
                yield lambda outcomes: _describe_settled(spans, reports, outcomes)
        finally:
            tracing.previous.reset(token)

    def fetched(self, jobs: Iterable[Any], worker_id: str, began: int) -> None:
        for job in jobs:
            self._fetch("ojs.fetch", SpanKind.SERVER, job, _loaded(job.meta), worker_id, began)

    def brought(self, jobs: Iterable[Any], began: int) -> None:
        for context in jobs:
            name = f"{context.queue} fetch"
            meta, worker_id = context.meta, context.worker_id
            self._fetch(name, SpanKind.CONSUMER, context, meta, worker_id, began)

    def _fetch(
        self, name: str, kind: SpanKind, job: Any, meta: Mapping[str, Any], by: str, began: int
    ) -> None:
        attributes = _attributes("receive", job.queue, job.type, job.id)
        attributes |= {"ojs.job.attempt": job.attempt, "ojs.job.state": "active"}
        attributes |= _workflow(getattr(job, "workflow_id", None), meta)
        if by:
            attributes["ojs.worker.id"] = by
        span = self._begin(name, kind, attributes, links=_links(meta), began=began)
        span.set_status(OK)
        span.end()

    def flush(self) -> None:
        flush = getattr(trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(LAST_WORDS)

    @contextmanager
    def internal(self, name: str) -> Iterator[_Activity]:
        span = self._begin(name, SpanKind.INTERNAL, {"messaging.system": "ojs"})
        activity = _Activity()
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield activity
        except Exception as problem:
            _fail(span, problem)
            span.end()
            raise
        if activity.touched is None or activity.touched:
            if activity.touched:
                span.set_attribute("ojs.count", activity.touched)
            span.set_status(OK)
            span.end()  # one that is not ended is not exported

    @contextmanager
    def reporting(
        self, reports: Sequence[tuple[Any, Any]]
    ) -> Iterator[Callable[[Mapping[UUID, str]], None]]:
        spans: dict[UUID, Span] = {}
        for context, report in reports:
            attributes = _attributes("settle", context.queue, context.type, context.id)
            attributes |= {"ojs.job.attempt": context.attempt, "ojs.worker.id": context.worker_id}
            attributes |= _workflow(context.job.get("workflow_id"), context.meta)
            name = "ojs.ack" if isinstance(report, Completion) else "ojs.nack"
            carried = {TRACEPARENT: context.traceparent} if context.traceparent else None
            links = [] if carried else _links(context.meta)
            span = self._begin(name, SpanKind.CLIENT, attributes, carried=carried, links=links)
            report.traceparent = _injected(trace.set_span_in_context(span)).get(TRACEPARENT, "")
            spans[context.id] = span

        def answered(refused: Mapping[UUID, str]) -> None:
            for job_id, reason in refused.items():
                spans[job_id].set_status(Status(StatusCode.ERROR, legible(reason)))

        with _ending(list(spans.values())):
            yield answered


class _Activity:
    """How much an internal operation touched; None if it does not count."""

    touched: int | None = None

    def count(self, number: int) -> None:
        self.touched = number


@contextmanager
def _ending(spans: Sequence[Span]) -> Iterator[None]:
    """End spans with the block; an error of the block is an error of each of them."""
    try:
        yield
    except Exception as problem:
        for span in spans:
            _fail(span, problem)
        raise
    else:
        for span in spans:
            # The SDK keeps the first final status: an error that was set stays.
            if getattr(getattr(span, "status", None), "status_code", None) != StatusCode.ERROR:
                span.set_status(OK)
    finally:
        for span in spans:
            span.end()


def _describe_settled(spans: Sequence[Span], reports: Sequence[Any], outcomes: Any) -> None:
    """Add to spans which jobs were settled, how, and in whose traces they were enqueued."""
    pairs = zip(spans, reports, strict=True)
    recorded = [report.job_id for span, report in pairs if span.is_recording()]
    if not recorded:
        return
    known: dict[UUID, Any] = {}
    # Whatever was settled stays settled.
    with contextlib.suppress(DatabaseProblem):
        known = {row[0]: row for row in _rows(recorded)}
    for span, report, outcome in zip(spans, reports, outcomes, strict=True):
        span.set_attribute("ojs.job.id", str(report.job_id))
        if report.job_id in known:
            _, queue, kind, workflow_id, *carried = known[report.job_id]
            meta = dict(zip(DESCRIBED, carried, strict=True))
            about = _attributes("settle", queue, kind, report.job_id)
            span.set_attributes(about | _workflow(workflow_id, meta))
            for link in _links(meta):
                span.add_link(link.context)
        if report.worker_id:
            span.set_attribute("ojs.worker.id", report.worker_id)
        if outcome.error is not None:
            _fail(span, outcome.error)
        else:
            span.set_attributes(
                {"ojs.job.state": str(outcome.state), "ojs.job.attempt": outcome.attempt}
            )


DESCRIBED = (TRACEPARENT, traces.WORKFLOW_TYPE, traces.WORKFLOW_STEP)
"""Members of `meta` that spans need."""


def _rows(job_ids: Sequence[UUID]) -> Any:
    members = {
        f"member_{place}": KeyTransform(name, "meta") for place, name in enumerate(DESCRIBED)
    }
    rows = Job.objects.filter(pk__in=job_ids).annotate(**members)
    return rows.values_list("pk", "queue", "type", "workflow_id", *members)


def _fail(
    span: Span, problem: BaseException, attempt: int | None = None, *, hides: bool = False
) -> None:
    """Record an error (OJS distributed tracing §5.5, §8).

    Args:
        hides: only its type, neither its message nor where it was raised.
    """
    kind = type(problem)
    name = legible(f"{kind.__module__}.{kind.__qualname__}")
    text = HIDDEN if hides else message_of(problem)
    # Not `record_exception`: one text that protobuf cannot carry, and no span of its batch is sent.
    event = {"exception.type": class_name(kind), "exception.message": text}
    if not hides:
        frames = "".join(traceback.format_exception(problem))
        event["exception.stacktrace"] = legible(frames)
    span.add_event("exception", event)
    span.set_status(Status(StatusCode.ERROR, text))
    span.set_attributes({"error.type": name, "error.message": text})
    if attempt is not None:
        span.set_attribute("ojs.job.error.attempt", attempt)


# Trace contexts


def _injected(context: Context | None = None) -> dict[str, str]:
    """Return the trace context of the current span, or of the one in `context`."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier, context)
    found = {name: carrier[name] for name in CONTEXT if name in carrier}
    if len(found.get(BAGGAGE, "")) > LONGEST_BAGGAGE:
        del found[BAGGAGE]
    return found


def _carried(meta: Mapping[str, Any]) -> dict[str, str]:
    return {name: meta[name] for name in CONTEXT if isinstance(meta.get(name), str)}


def _links(meta: Mapping[str, Any]) -> list[Link]:
    """Return a link to the span that enqueued a job, if its `meta` names one."""
    if TRACEPARENT not in meta:
        return []
    origin = propagate.extract(_carried(meta), Context())
    remote = trace.get_current_span(origin).get_span_context()
    return [Link(remote)] if remote.is_valid else []


def _loaded(meta: Any) -> Mapping[str, Any]:
    """Return the `meta` of a claimed job, which is not parsed."""
    found: dict[str, Any] = orjson.loads(orjson.dumps(meta))
    return found


# Attributes (OJS observability §7, distributed tracing §5)


def _attributes(operation: str, queue: str, type: str, id: Any) -> dict[str, Any]:
    """Return the attributes that all spans about a job have."""
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


def _details(get: Callable[[str], Any]) -> dict[str, Any]:
    """Return the attributes of what is optional in a job."""
    priority, scheduled_at = get("priority"), get("scheduled_at")
    found: dict[str, Any] = {}
    if isinstance(priority, int):
        found["ojs.job.priority"] = priority
    if isinstance(scheduled_at, datetime | str):
        found["ojs.job.scheduled_at"] = wire_timestamp(scheduled_at)
    return found


def _value(job: Any, name: str) -> Any:
    return getattr(job, name, None)


def _workflow(workflow_id: Any, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a job of a workflow (distributed tracing §5.3)."""
    if workflow_id is None:
        return {}
    found = {"ojs.workflow.id": str(workflow_id)}
    for name in (traces.WORKFLOW_TYPE, traces.WORKFLOW_STEP):
        if meta.get(name) is not None:
            found[name] = meta[name]
    return found
