"""Spans of this process, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@cache
def exporter() -> InMemorySpanExporter:
    """The exporter of this process, which can have only one tracer provider."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


class Spans:
    """The spans that ended so far."""

    def all(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in exporter().get_finished_spans() if name in ("", span.name)]

    def __call__(self, name: str) -> Any:
        """The only span of this name."""
        (found,) = self.all(name)
        return found

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.all()]

    def clear(self) -> None:
        exporter().clear()


def traceparent(span: Any) -> str:
    """The context of a span, as a header has it."""
    context = span.get_span_context()
    ids = trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)
    return f"00-{ids[0]}-{ids[1]}-{int(context.trace_flags):02x}"


def parent(span: Any) -> str:
    """The `traceparent` of a span's parent; empty for a root."""
    if span.parent is None:
        return ""
    trace_id, span_id = span.parent.trace_id, span.parent.span_id
    flags = int(span.parent.trace_flags)
    ids = trace.format_trace_id(trace_id), trace.format_span_id(span_id)
    return f"00-{ids[0]}-{ids[1]}-{flags:02x}"


def links(span: Any) -> list[str]:
    """The `traceparent` of each span that a span is linked to."""
    return [
        f"00-{trace.format_trace_id(link.context.trace_id)}-"
        f"{trace.format_span_id(link.context.span_id)}-{int(link.context.trace_flags):02x}"
        for link in span.links
    ]


@contextmanager
def instrumented() -> Iterator[Spans]:
    """Record spans as long as the block lasts."""
    from jobs import opentelemetry

    exporter().clear()
    opentelemetry.instrument()
    try:
        yield Spans()
    finally:
        opentelemetry.uninstrument()
