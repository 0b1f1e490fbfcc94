"""Spans of OpenTelemetry and of Sentry around enqueues and executions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from opentelemetry import baggage, trace
from opentelemetry import context as contexts
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.trace import SpanKind, StatusCode

import jobs
from jobs import testing
from tests.endings import WAYS, failing_handlers
from tests.issues import Sent, reported
from tests.spans import Spans
from workers.runtime import Retry, Snooze, handlers
from workers.runtime.client import LocalClient
from workers.runtime.options import Options
from workers.runtime.process import WorkerProcess

KINDS = ["tests.work", "tests.work_async"]


@pytest.fixture(autouse=True)
def work() -> Iterator[None]:
    def decide(how: str) -> str:
        if how == "fail":
            raise ValueError("no route")
        if how == "snooze":
            raise Snooze(60)
        if how == "retry":
            raise Retry(reason="busy")
        if how == "enqueue":
            jobs.enqueue("tests.work", queue="inner")
        return how

    @handlers.handler("tests.work")
    def work(context: Any, how: str = "") -> str:
        return decide(how)

    @handlers.handler("tests.work_async")
    async def work_async(context: Any, how: str = "") -> str:
        return decide(how)

    yield
    for kind in KINDS:
        handlers.forget(kind)


# OpenTelemetry


@pytest.fixture
def spans(settings: Any) -> Iterator[Spans]:
    settings.OJS = {
        "ENQUEUE_MIDDLEWARE": ["jobs.opentelemetry.EnqueueSpan"],
        "EXECUTION_MIDDLEWARE": ["jobs.opentelemetry.ProcessSpan"],
    }
    spans = Spans()
    spans.clear()
    with testing.fake():
        yield spans


def of_request(kind: str, how: str = "", **options: Any) -> Any:
    with trace.get_tracer("site").start_as_current_span("POST /orders"):
        job = jobs.enqueue(kind, [how], queue="mail", **options)
    testing.run_jobs()
    return job


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_is_linked_to_the_request_that_enqueued_it(spans, kind):
    job = of_request(kind)

    request, enqueue, process = (
        spans(name) for name in ("POST /orders", "mail enqueue", "mail process")
    )
    assert (enqueue.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert enqueue.parent.span_id == request.context.span_id
    trace_id, span_id = (
        trace.format_trace_id(enqueue.context.trace_id),
        trace.format_span_id(enqueue.context.span_id),
    )
    assert job.meta["traceparent"].startswith(f"00-{trace_id}-{span_id}-")
    # The specification wants a link, and no child of a request that ended long ago (§5.2).
    assert process.parent is None
    assert [link.context.span_id for link in process.links] == [enqueue.context.span_id]
    for span, operation in ((enqueue, "publish"), (process, "process")):
        assert {
            "messaging.system": "ojs",
            "messaging.operation.type": operation,
            "messaging.destination.name": "mail",
            "messaging.message.id": str(job.id),
            "ojs.job.id": str(job.id),
            "ojs.job.type": kind,
            "ojs.job.queue": "mail",
        }.items() <= dict(span.attributes).items()
    assert process.status.status_code == StatusCode.OK
    assert process.attributes["ojs.job.attempt"] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_may_be_part_of_the_trace(spans, settings, kind):
    settings.OJS = settings.OJS | {"EXECUTION_MIDDLEWARE": ["jobs.opentelemetry.ContinuedSpan"]}

    of_request(kind)

    assert spans("mail process").parent.span_id == spans("mail enqueue").context.span_id


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_job_enqueues_is_part_of_its_trace(spans, kind):
    of_request(kind, "enqueue")

    assert spans("inner enqueue").parent.span_id == spans("mail process").context.span_id


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_recorded(spans, kind):
    of_request(kind, "fail")

    process = spans("mail process")
    assert process.status.status_code == StatusCode.ERROR
    assert [event.name for event in process.events] == ["exception"]
    assert process.attributes["error.type"] == "builtins.ValueError"
    assert process.attributes["error.message"] == "no route"
    assert process.attributes["ojs.job.error.attempt"] == 1


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("lost for words")


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (OSError("cannot open \udcff.txt"), r"cannot open \udcff.txt"),
        (Mute(), "<exception str() failed>"),
    ],
)
def test_an_error_that_no_text_can_carry_costs_no_other_span_its_export(spans, problem, message):
    """A collector gets the spans of a process in batches, each of which is encoded as a whole."""

    @handlers.handler("tests.tell")
    def tell(context: Any) -> None:
        raise problem

    jobs.enqueue("tests.work", queue="mail")
    failed = jobs.enqueue("tests.tell", queue="files")
    testing.run_jobs()
    handlers.forget("tests.tell")

    (error,) = failed.refresh().errors
    process = spans("files process")
    (event,) = process.events
    told = process.status.description, process.attributes["error.message"]
    assert {error.message, *told, event.attributes["exception.message"]} == {message}
    assert error.type.rpartition(".")[2] in event.attributes["exception.stacktrace"]
    assert encode_spans(spans.all()).resource_spans


def test_what_enqueue_middleware_raises_costs_no_other_span_its_export(spans, settings):
    def refuse(job: Any, next: Any) -> None:
        raise OSError("cannot open \udcff.txt")

    settings.OJS = settings.OJS | {"ENQUEUE_MIDDLEWARE": ["jobs.opentelemetry.EnqueueSpan", refuse]}

    with pytest.raises(OSError):
        jobs.enqueue("tests.work", queue="mail\udcff")

    (enqueue,) = spans.all()
    assert enqueue.name == r"mail\udcff enqueue"
    assert enqueue.status.status_code == StatusCode.ERROR
    assert encode_spans([enqueue]).resource_spans


def test_a_job_that_asks_to_run_later_has_not_failed(spans):
    of_request("tests.work", "snooze")

    assert spans("mail process").status.status_code == StatusCode.OK


@pytest.mark.parametrize("kind", KINDS)
def test_a_handler_sees_the_baggage(spans, kind):
    """And passes it on to what it enqueues, with the context of its own span."""
    token = contexts.attach(baggage.set_baggage("tenant", "acme"))
    try:
        job = jobs.enqueue(kind, ["enqueue"], queue="mail")
    finally:
        contexts.detach(token)
    testing.run_jobs()

    assert job.meta["baggage"] == "tenant=acme"
    (inner,) = jobs.find(queue="inner")
    assert inner.meta["baggage"] == "tenant=acme"
    assert inner.meta["traceparent"] != job.meta["traceparent"]


@pytest.mark.parametrize("meta", [{"traceparent": "nonsense"}, {"traceparent": 5}, {}])
def test_a_trace_that_cannot_be_read_is_none(spans, settings, meta):
    settings.OJS = {"EXECUTION_MIDDLEWARE": ["jobs.opentelemetry.ProcessSpan"]}

    of_request("tests.work", meta=meta)

    assert not spans("mail process").links


@pytest.mark.parametrize("flags", ["01", "03"])
def test_a_worker_with_sentry_continues_a_trace_of_opentelemetry(sentry, flags):
    jobs.enqueue("tests.work", meta={"traceparent": f"00-{'a' * 32}-{'b' * 16}-{flags}"})
    testing.run_jobs()

    found = sentry.transaction("tests.work")["contexts"]["trace"]
    assert (found["trace_id"], found["parent_span_id"]) == ("a" * 32, "b" * 16)


def test_a_worker_with_sentry_continues_no_trace_that_is_not_valid(sentry):
    jobs.enqueue("tests.work", meta={"traceparent": f"00-{'0' * 32}-{'b' * 16}-01"})
    testing.run_jobs()

    found = sentry.transaction("tests.work")["contexts"]["trace"]
    assert found["trace_id"] != "0" * 32
    assert not found.get("parent_span_id")


# Sentry


@pytest.fixture
def sentry(settings: Any) -> Iterator[Sent]:
    settings.OJS = {
        "ENQUEUE_MIDDLEWARE": ["jobs.sentry.SentryEnqueue"],
        "EXECUTION_MIDDLEWARE": ["jobs.sentry.SentryProcess"],
    }
    with testing.fake(), reported() as sent:
        yield sent


def of_transaction(kind: str, how: str = "") -> Any:
    with sentry_sdk.start_transaction(op="http.server", name="POST /orders"):
        job = jobs.enqueue(kind, [how], queue="mail")
    testing.run_jobs()
    return job


@pytest.mark.parametrize("kind", KINDS)
def test_sentrys_trace_continues_in_the_worker(sentry, kind):
    job = of_transaction(kind)

    request, run = sentry.transaction("POST /orders"), sentry.transaction(kind)
    (publish,) = (span for span in request["spans"] if span["op"] == "queue.publish")
    (process,) = (span for span in run["spans"] if span["op"] == "queue.process")
    assert run["contexts"]["trace"]["trace_id"] == request["contexts"]["trace"]["trace_id"]
    assert run["contexts"]["trace"]["parent_span_id"] == publish["span_id"]
    assert run["contexts"]["trace"]["op"] == "queue.task.ojs"
    assert job.meta["traceparent"] == f"00-{publish['trace_id']}-{publish['span_id']}-01"
    assert "sentry-trace_id" in job.meta["baggage"]
    about = {
        "messaging.destination.name": "mail",
        "messaging.message.id": str(job.id),
        "messaging.message.body.size": len(b'[""]'),
    }
    assert about.items() <= publish["data"].items()
    assert about.items() <= process["data"].items()
    assert process["data"]["messaging.message.retry.count"] == 0
    assert process["data"]["messaging.message.receive.latency"] >= 0
    assert (process["status"], run["contexts"]["trace"]["status"]) == ("ok", "ok")
    assert sentry.errors == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_one_issue_with_its_job(sentry, kind):
    job = of_transaction(kind, "fail")

    (issue,) = sentry.errors
    (error,) = issue["exception"]["values"]
    assert (error["type"], error["value"]) == ("ValueError", "no route")
    assert issue["contexts"]["job"]["id"] == str(job.id)
    assert issue["tags"]["ojs.job.type"] == kind
    run = sentry.transaction(kind)
    assert run["contexts"]["trace"]["status"] == "internal_error"
    assert issue["contexts"]["trace"]["trace_id"] == run["contexts"]["trace"]["trace_id"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("kind", "how", "error"), WAYS)
def test_an_attempt_that_failed_is_one_issue_however_it_ended(settings, kind, how, error):
    """The worker logs most of them as well; that is the same issue."""
    settings.OJS = {"EXECUTION_MIDDLEWARE": ["jobs.sentry.SentryProcess"]}
    job = jobs.enqueue(kind, [how], queue="mail", max_attempts=1)

    with failing_handlers(), reported() as sentry:
        WorkerProcess(LocalClient("w"), Options(queues=["mail"], burst=True)).run()

    (issue,) = sentry.errors
    assert issue["exception"]["values"][-1]["type"] == error.rpartition(".")[2]
    assert issue["contexts"]["job"]["id"] == str(job.id)
    assert issue["tags"]["ojs.job.type"] == kind
    run = sentry.transaction(kind)["contexts"]["trace"]
    assert run["status"] == "internal_error"
    assert issue["contexts"]["trace"]["trace_id"] == run["trace_id"]


def test_breadcrumbs_are_those_of_the_job(sentry):
    @handlers.handler("tests.walk")
    def walk(context: Any, name: str) -> None:
        sentry_sdk.add_breadcrumb(message=f"within {name}")
        raise ValueError(name)

    for name in ("first", "second"):
        jobs.enqueue("tests.walk", [name], max_attempts=1)
        sentry_sdk.add_breadcrumb(message=f"before {name}")
    testing.run_jobs()
    handlers.forget("tests.walk")

    told = [issue["breadcrumbs"]["values"] for issue in sentry.errors]
    assert [[crumb["message"] for crumb in crumbs] for crumbs in told] == [
        ["within first"],
        ["within second"],
    ]


@pytest.mark.parametrize(("how", "status"), [("snooze", "ok"), ("retry", "internal_error")])
def test_what_a_handler_decides_is_no_issue(sentry, how, status):
    of_transaction("tests.work", how)

    assert sentry.errors == []
    assert sentry.transaction("tests.work")["contexts"]["trace"]["status"] == status


def test_without_a_client_nothing_is_put_into_a_job(sentry):
    sentry_sdk.init()

    job = of_transaction("tests.work")

    assert (job.meta, sentry.items) == ({}, [])


# What is logged and stored of an error


@pytest.mark.parametrize("kind", KINDS)
def test_a_traceback_leads_with_the_sites_frames_whatever_middleware_there_is(
    sentry, settings, kind, caplog
):
    chain = ["opentelemetry.ContinuedSpan", "sentry.SentryProcess", "middleware.RestoreContext"]
    chain += ["middleware.LogExecution"]
    settings.OJS = {"EXECUTION_MIDDLEWARE": [f"jobs.{name}" for name in chain]}

    job = of_transaction(kind, "fail").refresh()

    (error,) = job.errors
    assert error.backtrace is not None
    assert f'File "{__file__}"' in error.backtrace[1]
    assert "raise ValueError" in error.backtrace[-2]
