"""Real processes that export to a collector: a job's way from a Django view through a worker over
HTTP and back, its figures, and log lines as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from opentelemetry import trace

import jobs
from tests.collector import Collector, attributes, collecting
from tests.once import once_is_enough
from tests.processes import environment, eventually, manage_to, server
from tests.spans import Spans, instrumented
from tests.workers.site import NOWHERE
from workers.models import Worker

pytestmark = [pytest.mark.slow, once_is_enough]

CONTINUED = '["jobs.opentelemetry.ContinuedSpan", "jobs.middleware.LogExecution"]'
SERVER, CLIENT, CONSUMER = 2, 3, 5
"""Kinds of spans in OTLP."""


def order(request: HttpRequest) -> HttpResponse:
    """A view of a site whose requests have spans."""
    with trace.get_tracer("django").start_as_current_span(f"{request.method} {request.path}"):
        job = jobs.enqueue("shop.echo", ["secret-argument"], queue="mail")
        assert job is not None
        return HttpResponse(str(job.id))


def test_one_trace_leads_from_a_view_through_a_worker_over_http_and_back(tmp_path, database_url):
    shop = {"DJANGO_SETTINGS_MODULE": "tests.shop.settings", "SHOP_FOLDER": str(tmp_path)}
    logs = {name: tmp_path / f"{name}.log" for name in ("server", "runreaper", "worker")}
    with collecting() as collector, instrumented() as spans:
        site = environment(database_url, ALLOW_ANONYMOUS=1, LOG_JOBS=1) | shop
        site |= collector.environment | {"DJANGO_LOG_FORMAT": "json"}
        options = {"OJS_EXECUTION_MIDDLEWARE": CONTINUED, "OTEL_SERVICE_NAME": "mailer"}
        remote = site | options | {"DATABASE_URL": NOWHERE}
        with server(tmp_path, site) as api, manage_to(logs["runreaper"], site, "runreaper"):
            command = ["runjobworker", "--queues", "mail", "--url", api.url]
            with manage_to(logs["worker"], remote, *command) as worker:
                eventually(Worker.objects.filter(state="running").exists, lambda: worker.output)
                job_id = order(RequestFactory().post("/orders")).content.decode()
                eventually(lambda: api.get(f"jobs/{job_id}")["job"]["state"] == "completed")
                eventually(lambda: collector.metric("ojs.job.completed"))
                assert worker.terminate() == 0
            eventually(lambda: len(collector.spans("ojs.ack")) == 2)

    assert collector.services() == {"ojs", "mailer"}
    trace_id, span_id = one_trace(spans, collector, job_id)
    same_figures(collector)
    told, done = log_lines(logs)
    assert told["ojs"]["job_id"] == done["ojs"]["job_id"] == job_id
    assert done["trace"] == {"trace_id": trace_id, "span_id": span_id}
    assert "secret-argument" not in "".join(log.read_text() for log in logs.values())
    assert not any("secret-argument" in str(request) for _, request in collector.requests)


def one_trace(spans: Spans, collector: Collector, job_id: str) -> tuple[str, str]:
    """Check what led to what; return the ids of the trace and of the handler's span."""
    view, produced, stored = map(spans, ("POST /orders", "mail enqueue", "ojs.enqueue"))
    assert produced.parent.span_id == view.context.span_id
    assert stored.parent.span_id == produced.context.span_id

    (process,) = collector.spans("mail process")
    acks = collector.spans("ojs.ack")
    (reported,) = (span for span in acks if span.parent_span_id == process.span_id)
    (settled,) = (span for span in acks if span.parent_span_id == reported.span_id)
    assert int.from_bytes(process.parent_span_id, "big") == produced.context.span_id
    assert (process.kind, reported.kind, settled.kind) == (CONSUMER, CLIENT, SERVER)
    for span in (process, reported, settled):
        assert int.from_bytes(span.trace_id, "big") == view.context.trace_id

    fetches = [*collector.spans("mail fetch"), *collector.spans("ojs.fetch")]
    assert [span.kind for span in fetches] == [CONSUMER, SERVER]
    for span in fetches:
        (link,) = span.links
        assert int.from_bytes(link.span_id, "big") == produced.context.span_id
    about = {"ojs.job.id": job_id, "ojs.job.type": "shop.echo", "ojs.job.queue": "mail"}
    for span in (process, reported, settled, *fetches):
        assert about.items() <= attributes(span).items()
    return process.trace_id.hex(), process.span_id.hex()


def same_figures(collector: Collector) -> None:
    completed = collector.metric("ojs.job.completed")
    (point,) = completed.sum.data_points
    assert attributes(point) == {"queue": "mail", "type": "shop.echo"}
    assert (point.as_double, completed.unit, completed.sum.is_monotonic) == (1.0, "{job}", True)
    (duration,) = collector.metric("ojs.job.duration").histogram.data_points
    assert (duration.count, sum(duration.bucket_counts)) == (1, 1)
    assert len(duration.bucket_counts) == len(duration.explicit_bounds) + 1


def log_lines(logs: dict[str, Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Check that every line is a document; return what server and worker say of the job's end."""
    written = {
        name: [json.loads(line) for line in log.read_text().splitlines()]
        for name, log in logs.items()
    }
    required = {"timestamp", "severity", "severity_number", "message", "component"}
    assert all(required <= line.keys() for found in written.values() for line in found)
    assert any(line["message"].startswith("The reaper runs") for line in written["runreaper"])
    (told,) = (line for line in written["server"] if line["message"].startswith("Job completed"))
    assert (told["component"], told["category"]) == ("server", "lifecycle")
    (done,) = (line for line in written["worker"] if "Completed in" in line["message"])
    assert (done["component"], done["severity"]) == ("worker", "INFO")
    return told, done
