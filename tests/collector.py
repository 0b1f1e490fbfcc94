"""A stand-in for an OpenTelemetry collector: takes OTLP over HTTP, as protobuf."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector(ThreadingHTTPServer):
    """What it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.requests: list[tuple[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The usual variables, for processes that shall export here soon."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "200",
        }

    def spans(self, name: str = "") -> list[Any]:
        return [
            span
            for _, request in list(self.requests)
            if isinstance(request, ExportTraceServiceRequest)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
            if name in ("", span.name)
        ]

    def services(self) -> set[str]:
        return {
            attributes(resource.resource)["service.name"]
            for _, request in list(self.requests)
            for resource in (
                request.resource_spans
                if isinstance(request, ExportTraceServiceRequest)
                else request.resource_metrics
            )
        }

    def metric(self, name: str) -> Any:
        """The newest values of a metric; None if there are none."""
        found = [
            metric
            for _, request in list(self.requests)
            if isinstance(request, ExportMetricsServiceRequest)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return found[-1] if found else None


def attributes(item: Any) -> dict[str, Any]:
    """The attributes of a span, a resource or a data point."""
    return {
        pair.key: getattr(pair.value, str(pair.value.WhichOneof("value")))
        for pair in item.attributes
    }


class Handler(BaseHTTPRequestHandler):
    server: Collector
    PATHS = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.requests.append((self.path, self.PATHS[self.path].FromString(body)))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector as long as the block lasts."""
    with Collector() as collector:
        thread = threading.Thread(target=collector.serve_forever, daemon=True)
        thread.start()
        try:
            yield collector
        finally:
            collector.shutdown()
            thread.join()
