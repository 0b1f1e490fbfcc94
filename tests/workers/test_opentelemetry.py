"""Spans of the server's verbs, and the trace context of jobs (OJS observability §5 to §7,
distributed tracing)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

import jobs
from jobs import engine, testing
from jobs.api.verbs import trace as keep_trace
from jobs.errors import QueueFull
from jobs.middleware import execution_chain
from jobs.models import CronJob, Job
from jobs.opentelemetry import ContinuedSpan
from jobs.record import tracing
from jobs.spec.batches import UniformBatch, new_jobs
from jobs.spec.validation import new_job
from tests.endings import WAYS, failing_handlers
from tests.factories import JobFactory, ago
from tests.flare_client import FlareClient
from tests.once import once_is_enough
from tests.processes import ROOT
from tests.spans import instrumented, links, parent, traceparent
from workers import protocol
from workers.chores import reaper
from workers.runtime import handlers
from workers.runtime.client import LocalClient
from workers.runtime.options import Options
from workers.runtime.process import WorkerProcess

pytestmark = pytest.mark.django_db

GIVEN = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = f"00-{'a' * 32}-{'b' * 16}-01"
ENDINGS = (":observability", ":distributed-tracing")
HEADERS = {"HTTP_TRACEPARENT": GIVEN, "HTTP_TRACESTATE": "ojs=p:8;r:62"}


@pytest.fixture
def spans():
    with instrumented() as found:
        yield found


def metas() -> list[dict[str, Any]]:
    return [job.meta for job in Job.objects.order_by("pk")]


JOB = {"type": "email.send", "args": []}
SITE = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "jobs", "workers"]
)
django.setup()
import sys
from jobs.record import tracing
print(tracing.recorder, [name for name in sys.modules if "opentelemetry" in name])
"""


# The trace context of an HTTP request, with or without OpenTelemetry


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("jobs", JOB),
        ("jobs/batch", {"jobs": [JOB, JOB]}),
        ("jobs/batch", {"jobs": [JOB, JOB | {"type": "email.other"}]}),
        ("jobs/bulk", {"jobs": [JOB]}),
        ("workflows", {"type": "group", "jobs": [JOB, {"type": "group", "jobs": [JOB]}]}),
    ],
)
def test_the_trace_context_of_a_request_is_kept_in_its_jobs(api, path, body):
    reply = api.send(path, body, **HEADERS)

    assert reply.status_code < 300, reply.content
    for job in api.fetch("default", count=10):
        assert job["meta"]["traceparent"] == GIVEN
        assert job["meta"]["tracestate"] == "ojs=p:8;r:62"


def test_the_trace_context_of_a_flare_request_is_kept_in_its_job(db, settings):
    settings.OJS = {"ALLOW_ANONYMOUS": True, "FLARE": {"ENABLED": True}}
    reply = FlareClient().post(
        "/flare/v1/jobs",
        data=b'{"job_type": "email.send"}',
        content_type="application/json",
        **HEADERS,
    )

    assert reply.status_code == 201, reply.content
    assert [meta["traceparent"] for meta in metas()] == [GIVEN]


def test_a_later_step_of_a_chain_has_the_context_of_the_request(api):
    api.send("workflows", {"type": "chain", "steps": [JOB, JOB]}, **HEADERS)
    for _ in range(2):
        (job,) = api.fetch("default", worker_id="w")
        api.ack(job["id"], worker_id="w")

    assert [meta["traceparent"] for meta in metas()] == [GIVEN, GIVEN]
    assert [meta["ojs.workflow.trace_origin"] for meta in metas()] == [GIVEN, GIVEN]


def test_a_trace_context_that_the_client_put_into_meta_stays(api):
    api.pushed(meta={"traceparent": OTHER})
    api.send("jobs", JOB | {"meta": {"traceparent": OTHER}}, **HEADERS)

    assert metas() == [{"traceparent": OTHER}] * 2


@pytest.mark.parametrize(
    "headers",
    [
        {"HTTP_TRACEPARENT": "nonsense"},
        {"HTTP_TRACEPARENT": GIVEN + "x" * 300},
        {"HTTP_TRACEPARENT": "ff" + GIVEN[2:]},
        {"HTTP_TRACEPARENT": GIVEN + "-x"},
        {"HTTP_TRACEPARENT": f"00-{'0' * 32}-{'b' * 16}-01"},
        {"HTTP_TRACEPARENT": f"00-{'a' * 32}-{'0' * 16}-01"},
        {"HTTP_TRACESTATE": "a=b"},
        {},
    ],
)
def test_a_trace_context_that_cannot_be_read_is_none(api, headers):
    api.send("jobs", JOB, **headers)

    assert metas() == [{}]


def test_a_trace_context_of_a_later_version_may_have_more_members(api):
    api.send("jobs", JOB, HTTP_TRACEPARENT=f"01{GIVEN[2:]}-more")

    assert metas() == [{"traceparent": f"01{GIVEN[2:]}-more"}]


@pytest.mark.parametrize(
    ("state", "is_kept"),
    [
        ("congo=t61rcWkgMzE, rojo=00f067aa0ba902b7", True),
        ("acme@vendor=a b,,", True),
        (",".join(f"k{number}=v" for number in range(32)), True),
        (",".join(f"k{number}=v" for number in range(33)), False),
        ("no members", False),
        ("Upper=a", False),
        ("a=", False),
        ("a=b=c", False),
        (" , ", False),
        ("a=" + "b" * 511, False),
    ],
)
def test_a_state_of_vendors_that_is_not_valid_is_ignored(api, state, is_kept):
    api.send("jobs", JOB, HTTP_TRACEPARENT=GIVEN, HTTP_TRACESTATE=state)

    assert metas() == [{"traceparent": GIVEN} | ({"tracestate": state} if is_kept else {})]


def test_baggage_is_kept_unless_it_is_too_long(api):
    for baggage in ("tenant=acme", "x=" + "y" * 8191):
        api.send("jobs", JOB, HTTP_BAGGAGE=baggage, **HEADERS)

    assert [meta.get("baggage") for meta in metas()] == ["tenant=acme", None]


def test_jobs_of_a_batch_share_their_context():
    """It is part of what they have in common, not a reason to look at each of them."""
    new = new_jobs([JOB] * 3, ago(0))

    keep_trace(HEADERS, new)

    assert isinstance(new, UniformBatch)
    assert not new.made
    assert [job.meta["traceparent"] for job in new] == [GIVEN] * 3


@once_is_enough
def test_a_process_that_records_nothing_does_not_import_opentelemetry():
    done = subprocess.run(
        [sys.executable, "-c", SITE], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["None", "[]"]


# Spans of the verbs


def test_each_verb_has_a_span_with_the_attributes_of_its_job(api, spans):
    job_id = api.send("jobs", JOB | {"priority": 7}, **HEADERS).json()["job"]["id"]
    api.fetch("default", worker_id="w")
    api.ack(job_id, worker_id="w", traceparent=OTHER)

    enqueue, fetch, ack = (spans(name) for name in ("ojs.enqueue", "ojs.fetch", "ojs.ack"))
    assert parent(enqueue) == GIVEN
    assert (parent(fetch), links(fetch)) == ("", [GIVEN])
    assert (parent(ack), links(ack)) == (OTHER, [GIVEN])
    states = {enqueue: "available", fetch: "active", ack: "completed"}
    operations = {enqueue: "publish", fetch: "receive", ack: "settle"}
    for span, state in states.items():
        assert (span.kind, span.status.status_code) == (SpanKind.SERVER, StatusCode.OK)
        assert {
            "messaging.system": "ojs",
            "messaging.operation.type": operations[span],
            "messaging.destination.name": "default",
            "messaging.message.id": job_id,
            "ojs.job.id": job_id,
            "ojs.job.type": "email.send",
            "ojs.job.queue": "default",
            "ojs.job.state": state,
        }.items() <= dict(span.attributes).items()
    assert enqueue.attributes["ojs.job.priority"] == 7
    assert fetch.attributes["ojs.job.attempt"] == ack.attributes["ojs.job.attempt"] == 1
    assert fetch.attributes["ojs.worker.id"] == ack.attributes["ojs.worker.id"] == "w"
    assert fetch.start_time < fetch.end_time


@pytest.mark.parametrize("form", ["header", "list", "fetch"])
def test_a_report_says_in_which_span_it_was_sent(api, spans, form):
    ids = [api.pushed(), api.pushed()]
    api.fetch("default", worker_id="w", count=2)
    item = {"job_id": ids[0], "traceparent": OTHER}
    if form == "header":
        api.send("workers/ack", {"job_id": ids[0], "worker_id": "w"}, HTTP_TRACEPARENT=OTHER)
    elif form == "list":
        acks = [item, {"job_id": ids[1]}]
        api.send("workers/ack", {"acks": acks, "worker_id": "w"}, HTTP_TRACEPARENT=GIVEN)
    else:
        api.fetch("default", worker_id="w", acks=[item, {"job_id": ids[1]}])

    acks = {span.attributes["ojs.job.id"]: parent(span) for span in spans.all("ojs.ack")}
    assert acks.pop(ids[0]) == OTHER
    assert set(acks.values()) <= {""}


def test_a_trace_context_of_a_report_that_cannot_be_read_is_ignored(api, spans):
    job_id = api.pushed()
    api.fetch("default", worker_id="w")

    reply = api.ack(job_id, worker_id="w", traceparent="nonsense")

    assert (reply.status_code, parent(spans("ojs.ack"))) == (200, "")


def test_a_refused_report_is_an_error(api, spans):
    job_id = api.pushed()

    assert api.ack(job_id, worker_id="w").status_code == 409
    ack = spans("ojs.ack")
    assert ack.status.status_code == StatusCode.ERROR
    assert ack.attributes["error.type"].startswith("jobs.errors.")
    assert ack.attributes["ojs.job.type"] == "email.send"
    assert [event.name for event in ack.events] == ["exception"]


def test_a_failure_that_was_reported_is_no_error_of_the_report(api, spans):
    job_id = api.pushed()
    api.fetch("default", worker_id="w")
    api.nack(job_id)

    nack = spans("ojs.nack")
    assert nack.status.status_code == StatusCode.OK
    assert nack.attributes["ojs.job.state"] == "retryable"


def test_a_job_that_is_not_accepted_is_an_error(api, spans):
    known = api.pushed(unique={"keys": ["type"], "on_conflict": "reject"})
    reply = api.push(unique={"keys": ["type"], "on_conflict": "reject"})

    assert reply.status_code == 409
    accepted, refused = spans.all("ojs.enqueue")
    assert accepted.attributes["ojs.job.id"] == known
    assert refused.status.status_code == StatusCode.ERROR
    assert refused.attributes["error.message"]


def test_jobs_that_wait_for_room_have_the_trace_of_the_enqueue_that_stored_them(spans):
    new = [new_job(JOB, ago(0))]
    full = QueueFull("default", 1, 1, "block", "email.send")

    with (
        pytest.raises(QueueFull),
        engine.bounds.patiently(),
        tracing.enqueueing(new),
    ):
        raise full

    assert (spans.all(), new[0].meta) == ([], {})
    engine.enqueue(new)
    assert metas() == [{"traceparent": traceparent(spans("ojs.enqueue"))}]


def test_a_job_without_a_trace_gets_that_of_its_enqueue(api, spans):
    api.pushed()

    assert metas() == [{"traceparent": traceparent(spans("ojs.enqueue"))}]


def test_jobs_that_differ_only_in_arguments_share_a_span(api, spans):
    api.send("jobs/batch", {"jobs": [JOB | {"args": [n]} for n in range(3)]})

    batch = spans("ojs.enqueue_batch")
    assert batch.attributes["messaging.batch.message_count"] == 3
    assert metas() == [{"traceparent": traceparent(batch)}] * 3


def test_what_a_site_enqueues_is_part_of_its_request(spans):
    with trace.get_tracer("site").start_as_current_span("POST /orders") as request:
        jobs.enqueue("email.send", queue="mail")

    producer, stored = spans("mail enqueue"), spans("ojs.enqueue")
    assert parent(producer) == traceparent(request)
    assert parent(stored) == traceparent(producer)
    assert producer.status.status_code == StatusCode.OK
    assert metas() == [{"traceparent": traceparent(producer)}]


@pytest.mark.parametrize("named", [[], ["jobs.opentelemetry.ContinuedSpan"]])
def test_middleware_that_a_site_names_is_there_once(spans, settings, named):
    settings.OJS = {"EXECUTION_MIDDLEWARE": named}

    (around,) = execution_chain.build()

    assert isinstance(around, ContinuedSpan) == bool(named)


def test_any_protocol_reports_through_the_same_verbs(spans):
    job = JobFactory(active=True, reserved_by="w", meta={"traceparent": GIVEN})

    (outcome,) = protocol.fail([protocol.Failure(job.pk, "w", message="broken")])

    assert outcome.error is None
    assert links(spans("ojs.nack")) == [GIVEN]


# Retries, workflows, schedules


def test_each_attempt_is_linked_to_the_same_enqueue(spans):
    job = JobFactory(meta={"traceparent": GIVEN}, max_attempts=2)
    for _ in range(2):
        Job.objects.filter(pk=job.pk).update(state="available")
        (claimed,) = protocol.fetch(["default"], worker_id="w")
        protocol.fail([protocol.Failure(claimed.id, "w", claimed.attempt, message="broken")])

    fetches = spans.all("ojs.fetch")
    assert [span.attributes["ojs.job.attempt"] for span in fetches] == [1, 2]
    assert [links(span) for span in fetches] == [[GIVEN], [GIVEN]]


def test_a_step_follows_the_attempt_before_it_and_remembers_where_it_began(api, spans):
    api.send("workflows", {"type": "chain", "steps": [JOB, JOB]}, **HEADERS)
    (first,) = api.fetch("default", worker_id="w")
    api.ack(first["id"], worker_id="w", traceparent=OTHER)
    (second,) = api.fetch("default", worker_id="w")

    assert first["meta"]["traceparent"] == GIVEN
    assert second["meta"]["traceparent"] == OTHER
    origins = [job["meta"]["ojs.workflow.trace_origin"] for job in (first, second)]
    assert origins == [GIVEN, GIVEN]
    for place, span in enumerate(spans.all("ojs.fetch")):
        assert {
            "ojs.workflow.id": second["workflow_id"],
            "ojs.workflow.type": "chain",
            "ojs.workflow.step": place,
        }.items() <= dict(span.attributes).items()
    stored = spans.all("ojs.enqueue")[1]
    assert parent(stored) == OTHER
    assert spans("ojs.workflow.advance").kind == SpanKind.INTERNAL


def test_a_batch_has_its_callback_in_the_same_trace(api, spans):
    callbacks = {"on_complete": JOB | {"type": "email.done"}}
    api.send("workflows", {"type": "batch", "jobs": [JOB], "callbacks": callbacks}, **HEADERS)
    (only,) = api.fetch("default", worker_id="w")
    api.ack(only["id"], worker_id="w")
    (done,) = api.fetch("default", worker_id="w")

    assert (done["type"], done["meta"]["traceparent"]) == ("email.done", GIVEN)
    assert done["meta"]["ojs.workflow.step"] == 1


def test_what_undoes_a_step_is_in_the_same_trace(api, spans):
    undone = JOB | {"compensate_type": "email.undo"}
    api.send("workflows", {"type": "chain", "steps": [undone, JOB]}, **HEADERS)
    api.ack(api.fetch("default", worker_id="w")[0]["id"], worker_id="w")
    (second,) = api.fetch("default", worker_id="w")
    api.nack(second["id"], worker_id="w", retryable=False)

    (undo,) = api.fetch("default", worker_id="w")

    assert (undo["type"], undo["meta"]["traceparent"]) == ("email.undo", GIVEN)


def test_each_run_of_a_schedule_begins_a_trace(api, spans):
    body = {"name": "daily", "cron": "0 6 * * *", "type": "email.send", "args": []}
    assert api.send("cron", body, **HEADERS).status_code < 300
    CronJob.objects.update(next_run_at=ago(1))

    engine.enqueue_due_schedules()

    trigger, stored = spans("ojs.cron.trigger"), spans("ojs.enqueue")
    assert (trigger.kind, parent(trigger)) == (SpanKind.INTERNAL, "")
    assert parent(stored) == traceparent(trigger)
    (meta,) = metas()
    assert meta["traceparent"] == traceparent(stored)


def test_a_sweep_that_finds_something_has_a_span(spans):
    JobFactory(state="scheduled", scheduled_at=ago(60))
    JobFactory(active=True, reserved_until=ago(1))

    reaper.sweep()
    reaper.sweep()

    assert sorted(spans.names) == ["ojs.scheduler.poll", "ojs.visibility.check"]
    assert spans("ojs.visibility.check").attributes["ojs.count"] == 1


def test_an_error_of_a_sweep_is_recorded(spans):
    broken = reaper.Chore("broken", lambda: 1 // 0, "things", span="ojs.visibility.check")

    with pytest.raises(ZeroDivisionError):
        reaper.run(broken)

    assert spans("ojs.visibility.check").status.status_code == StatusCode.ERROR


def test_spans_know_nothing_of_arguments(api, spans):
    job_id = api.pushed(args=["secret-argument"])
    api.fetch("default", worker_id="w")
    api.ack(job_id, worker_id="w", result="secret-result")

    said = [span.to_json() for span in spans.all()]
    assert len(said) == 3
    assert not any("secret" in text for text in said)


# What the manifest claims


@pytest.mark.parametrize(
    ("options", "named"),
    [({}, ["distributed-tracing", "observability"]), ({"METRICS": False}, ["distributed-tracing"])],
)
def test_the_manifest_claims_what_holds(api, spans, settings, options, named):
    settings.OJS = settings.OJS | options

    assert [f"urn:ojs:ext:{name}" for name in named] == [
        name for name in api.get("/ojs/manifest").json()["extensions"] if name.endswith(ENDINGS)
    ]


def test_the_manifest_claims_no_traces_where_none_are_recorded(api):
    named = api.get("/ojs/manifest").json()["extensions"]

    assert not [name for name in named if name.endswith(ENDINGS)]


# A worker beside the database


@pytest.fixture
def working() -> Iterator[None]:
    @handlers.handler("tests.plain")
    def plain(context: Any, how: str = "") -> None:
        if how:
            raise ValueError(how)

    @handlers.handler("tests.cancelled")
    def cancelled(context: Any) -> None:
        engine.cancel(context.id)

    @handlers.handler("tests.atomic", atomic_ack=True)
    def atomic(context: Any) -> None:
        pass

    yield
    for kind in ("tests.plain", "tests.atomic", "tests.cancelled"):
        handlers.forget(kind)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("kind", "args", "report"),
    [
        ("tests.plain", [], "ojs.ack"),
        ("tests.plain", ["broken"], "ojs.nack"),
        ("tests.atomic", [], "ojs.ack"),
    ],
)
def test_a_worker_reports_in_the_span_of_its_attempt(spans, working, kind, args, report):
    job = jobs.enqueue(kind, args, queue="mail")

    WorkerProcess(LocalClient("w"), Options(queues=["mail"], burst=True)).run()

    enqueue, fetch, process = map(spans, ("mail enqueue", "mail fetch", "mail process"))
    assert (fetch.kind, links(fetch)) == (SpanKind.CONSUMER, [traceparent(enqueue)])
    assert links(process) == [traceparent(enqueue)]
    (sent,) = (span for span in spans.all(report) if span.kind == SpanKind.CLIENT)
    (settled,) = (span for span in spans.all(report) if span.kind == SpanKind.SERVER)
    assert parent(sent) == traceparent(process)
    assert parent(settled) == traceparent(sent)
    for span in (fetch, process, sent, settled):
        assert span.attributes["ojs.job.id"] == str(job.id)
        assert span.attributes["ojs.worker.id"] == "w"
    failed = process.status.status_code == StatusCode.ERROR
    assert failed == bool(args)
    assert sent.status.status_code == settled.status.status_code == StatusCode.OK


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("kind", "how", "error"), WAYS)
def test_an_attempt_that_failed_is_an_error_however_it_ended(spans, kind, how, error):
    """What the handler returned, or when the middleware was left, does not decide it alone."""
    made = jobs.enqueue(kind, [how], queue="mail", max_attempts=1)

    with failing_handlers():
        WorkerProcess(LocalClient("w"), Options(queues=["mail"], burst=True)).run()

    process = spans("mail process")
    (event,) = process.events
    assert made.refresh().state == "discarded"
    assert process.status.status_code == StatusCode.ERROR
    assert process.attributes["error.type"] == error
    assert process.attributes["ojs.job.error.attempt"] == 1
    assert process.attributes["error.message"] == event.attributes["exception.message"] != ""


def test_what_observes_an_attempt_does_not_decide_its_outcome(settings, working):
    told: list[Any] = []

    def observe(context: Any, next: Any) -> Any:
        context.when_ended(told.append)
        context.when_ended(lambda problem: 1 // 0)
        return next()

    settings.OJS = {"EXECUTION_MIDDLEWARE": [observe]}
    with testing.fake():
        made = jobs.enqueue("tests.plain")
        testing.run_jobs()

        assert made.refresh().state == "completed"
    assert told == [None]


@pytest.mark.django_db(transaction=True)
def test_what_an_error_says_of_an_encrypted_job_is_in_no_span(spans, working, settings):
    settings.OJS = settings.OJS | {
        "ENQUEUE_MIDDLEWARE": ["jobs.codecs.Encode"],
        "EXECUTION_MIDDLEWARE": ["jobs.codecs.Decode"],
    }
    jobs.enqueue("tests.plain", ["broken"], queue="mail")

    WorkerProcess(LocalClient("w"), Options(queues=["mail"], burst=True)).run()

    process = spans("mail process")
    assert process.status.status_code == StatusCode.ERROR
    assert process.attributes["error.message"] == "[encrypted]"
    assert "broken" not in process.to_json()


@pytest.mark.django_db(transaction=True)
def test_a_report_that_is_refused_is_an_error_at_both_ends(spans, working):
    jobs.enqueue("tests.cancelled", queue="mail")

    WorkerProcess(LocalClient("w"), Options(queues=["mail"], burst=True)).run()

    assert spans("mail process").status.status_code == StatusCode.OK
    assert [span.status.status_code for span in spans.all("ojs.ack")] == [StatusCode.ERROR] * 2
