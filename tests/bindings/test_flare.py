"""Flare over HTTP, row by row of its document."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.db import OperationalError
from django.db.models import F
from django.utils import timezone

from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import CronJob, Job, RefusedFinish
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from jobs.spec.schedules import read_schedule, upcoming
from jobs.spec.timestamps import parse_timestamp
from tests.database import connection
from tests.factories import ago
from tests.flare_client import WORKER, FlareClient, refusal
from tests.ojs_client import OJSClient
from workers.bindings.flare import ids
from workers.chores import reaper
from workers.lifecycle import WorkerState
from workers.models import Worker

pytestmark = pytest.mark.django_db

INVALID = (400, "invalid_request")
LOST = (409, "invalid_state")
UNKNOWN = (404, "job_not_found")


@pytest.fixture
def flare(settings):
    settings.OJS = {"ALLOW_ANONYMOUS": True, "FLARE": {"ENABLED": True}}
    return FlareClient()


@pytest.fixture
def job(flare):
    """A job that this worker holds."""
    flare.enqueued()
    (job,) = flare.poll()
    return job


def stored(job_id):
    return Job.objects.get(pk=ids.read(job_id))


def about(moment, seconds):
    return abs(moment - timezone.now() - timedelta(seconds=seconds)) < timedelta(seconds=10)


# The switch


def test_where_it_is_switched_off_there_is_nothing(settings):
    settings.OJS = {"ALLOW_ANONYMOUS": True}

    assert FlareClient().poll_reply().status_code == 404
    assert Worker.objects.count() == 0


def test_the_manifest_says_where_it_is(flare, settings):
    def seen():
        manifest = flare.get("/ojs/manifest").json()
        return "flare" in manifest["protocols"], manifest["endpoints"].get("flare")

    assert seen() == (True, "http://testserver/flare/v1")
    settings.OJS = {}
    assert seen() == (False, None)


def test_a_path_that_is_no_endpoint_is_answered_in_its_form(flare):
    assert refusal(flare.send("workers/sing", {})) == (404, "not_found")
    assert refusal(flare.get("/flare/v1/nowhere")) == (404, "not_found")
    reply = flare.get("/flare/v1/workers/poll")
    assert (refusal(reply), reply.headers["Allow"]) == ((405, "invalid_request"), "POST")


@pytest.mark.parametrize(("problem", "status"), [(OperationalError, 503), (RuntimeError, 500)])
@pytest.mark.parametrize("asks", [FlareClient.poll_reply, FlareClient.register])
def test_trouble_is_answered_in_its_form(flare, asks, problem, status):
    def fail(*arguments):
        raise problem

    with connection.execute_wrapper(fail):
        reply = asks(flare)

    assert refusal(reply) == (status, "backend_error")
    assert reply.json()["error"]["retryable"] is True


@pytest.mark.parametrize("path", ["register", "poll", "ack", "heartbeat"])
def test_every_worker_endpoint_wants_a_bearer_key_that_may_work(settings, path):
    settings.OJS = {"FLARE": {"ENABLED": True}}
    producer = FlareClient(make_key("test", scopes=["produce"])[1])

    assert FlareClient().send(f"workers/{path}", {}).status_code == 401
    assert producer.send(f"workers/{path}", {}).status_code == 403


def test_the_job_endpoints_want_a_key_that_may_produce(settings):
    settings.OJS = {"FLARE": {"ENABLED": True}}
    worker = FlareClient(make_key("test", scopes=["work"])[1])

    assert FlareClient().enqueue().status_code == 401
    assert worker.enqueue().status_code == 403


def test_a_key_bound_to_a_worker_speaks_for_that_one_only(settings):
    settings.OJS = {"FLARE": {"ENABLED": True}}
    key = make_key("test", scopes=["work"], worker_id="mine")[1]

    assert FlareClient(key, "mine").poll() == []
    assert refusal(FlareClient(key, "other").poll_reply()) == (403, "permission_denied")


# Register


def test_a_registered_worker_stands_in_the_list_of_workers(flare):
    reply = flare.register(
        queues=["default", "email"],
        job_types=["email.send", "report.generate"],
        hostname="prod-host-01",
        sdk_version="0.1.0-beta.1",
    )

    assert (reply.status_code, reply.json()) == (200, {"status": "registered"})
    worker = Worker.objects.get(pk=WORKER)
    assert (worker.protocol, worker.hostname, worker.version) == (
        "flare",
        "prod-host-01",
        "0.1.0-beta.1",
    )
    assert worker.queues == ["default", "email"]
    assert worker.job_types == ["email.send", "report.generate"]


BAD_REGISTRATIONS = {
    "no worker_id": {"worker_id": None},
    "empty worker_id": {"worker_id": ""},
    "worker_id a number": {"worker_id": 7},
    "worker_id of 101 characters": {"worker_id": "w" * 101},
    "no queues": {"queues": None},
    "empty queues": {"queues": []},
    "queues a text": {"queues": "default"},
    "an empty queue name": {"queues": [""]},
    "a queue that is no text": {"queues": [1]},
    "what is no queue's name": {"queues": ["default", "Not one"]},
    "no job_types": {"job_types": None},
    "job_types a text": {"job_types": "email.send"},
    "hostname a number": {"hostname": 1},
    "sdk_version a number": {"sdk_version": 1},
    "schedules an object": {"recurring_schedules": {}},
    "a schedule that is no object": {"recurring_schedules": ["daily"]},
    "a schedule without a type": {"recurring_schedules": [{"cron_expression": "0 3 * * *"}]},
    "a schedule without an expression": {"recurring_schedules": [{"job_type": "a.b"}]},
    "a schedule that is none": {
        "recurring_schedules": [{"job_type": "a.b", "cron_expression": "every day"}]
    },
    "a schedule of seven fields": {
        "recurring_schedules": [{"job_type": "a.b", "cron_expression": "0 0 0 1 1 1 1"}]
    },
    "a time zone that is none": {
        "recurring_schedules": [
            {"job_type": "a.b", "cron_expression": "0 3 * * *", "timezone": "Mars/Olympus"}
        ]
    },
    "a schedule with no attempts": {
        "recurring_schedules": [
            {"job_type": "a.b", "cron_expression": "0 3 * * *", "max_attempts": 0}
        ]
    },
    "a schedule with no time": {
        "recurring_schedules": [
            {"job_type": "a.b", "cron_expression": "0 3 * * *", "timeout_seconds": 0}
        ]
    },
}


@pytest.mark.parametrize("body", BAD_REGISTRATIONS.values(), ids=BAD_REGISTRATIONS)
def test_a_registration_that_breaks_a_rule_is_refused_whole(flare, body):
    assert refusal(flare.register(**body)) == INVALID
    assert Worker.objects.count() == 0


def test_a_worker_id_may_have_a_hundred_characters(flare):
    assert flare.register(worker_id="w" * 100).status_code == 200


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"worker_id": "\\ud800"}', b"\xff"])
def test_a_body_that_is_no_json_object_is_refused(flare, body):
    assert refusal(flare.send("workers/register", body)) == INVALID


SCHEDULE = {
    "job_type": "report.generate",
    "cron_expression": "0 3 * * *",
    "queue": "reports",
    "timezone": "America/New_York",
    "max_attempts": 7,
    "timeout_seconds": 600,
}


def test_recurring_schedules_are_stored_under_the_name_of_their_type(flare):
    six = {"job_type": "email.send", "cron_expression": "*/30 * * * * *"}
    assert flare.register(recurring_schedules=[SCHEDULE, six]).status_code == 200

    daily, often = CronJob.objects.order_by("-name")
    assert (daily.name, often.name) == ("rjob_report.generate", "rjob_email.send")
    assert (daily.expression, daily.timezone) == ("0 3 * * *", "America/New_York")
    assert (often.expression, often.timezone) == ("*/30 * * * * *", "UTC")
    local = daily.next_run_at.astimezone(ZoneInfo("America/New_York"))
    assert (local.hour, local.minute) == (3, 0)


def test_registering_again_brings_a_schedule_up_to_date_and_makes_no_second(flare):
    flare.register(recurring_schedules=[SCHEDULE])
    flare.register(recurring_schedules=[SCHEDULE | {"cron_expression": "30 4 * * *"}])

    assert CronJob.objects.get().expression == "30 4 * * *"


def test_a_schedule_that_an_operator_disabled_stays_so_when_its_workers_come_back(flare):
    flare.register(recurring_schedules=[SCHEDULE])
    engine.set_cron_enabled("rjob_report.generate", enabled=False)

    for expression in (SCHEDULE["cron_expression"], "30 4 * * *"):
        changed = SCHEDULE | {"cron_expression": expression}
        assert flare.register(recurring_schedules=[changed]).status_code == 200
        row = CronJob.objects.get()
        assert (row.expression, row.enabled, row.next_run_at) == (expression, False, None)
    engine.set_cron_enabled("rjob_report.generate", enabled=True)
    assert CronJob.objects.get().next_run_at is not None


@pytest.mark.parametrize(
    ("cronos", "alike"),
    [
        ("0 12 ? * MON#1", "0 12 * * MON#1"),
        ("0 0 LW * ?", "0 0 LW * *"),
        ("@every_minute", "* * * * *"),
        ("@every_second", "* * * * * *"),
        ("0 22-1 * * *", "0 22,23,0,1 * * *"),
        ("0 22-4/3 * * *", "0 22,1,4 * * *"),
        ("0 0 * NOV-FEB FRI-MON", "0 0 * 11,12,1,2 5,6,0,1"),
        ("*/20 0-30 9-17/2 ? JAN-MAR MON-FRI", "*/20 0-30 9-17/2 * JAN-MAR MON-FRI"),
        ("? ?/6 * * *", "* */6 * * *"),
        ("30,45-15/2 1 * * *", "30,45,47,49,51,53,55,57,59,1,3,5,7,9,11,13,15 1 * * *"),
        ("0 0 * * 7-2", "0 0 * * 0,1,2"),
        ("0 0 * * fril", "0 0 * * 5L"),
        ("0 0 L-3W * *", "0 0 L-3W * *"),
        ("0 0 1-7 * MON", "0 0 1-7 * +MON"),
        ("0 0 */2 * MON", "0 0 */2 * MON"),
    ],
)
def test_what_only_cronos_knows_is_stored_in_the_words_of_every_schedule(flare, cronos, alike):
    flare.register(recurring_schedules=[SCHEDULE | {"cron_expression": cronos}])

    assert CronJob.objects.get().expression == alike


@pytest.mark.parametrize(
    "expression",
    [
        "0 22-1/0 * * *",
        "H 0 * * *",
        "0 H/6 * * *",
        "0 0 L-31 * *",
        "0 0 1LW * *",
        "0 0 32W * *",
        "LW 0 * * *",
        "0 0 * * LW",
        "0 0 * * XYZL",
        "0 0 31 2 MON",
        "@never",
        "*",
    ],
)
def test_what_not_even_cronos_knows_is_refused(flare, expression):
    schedule = SCHEDULE | {"cron_expression": expression}

    assert refusal(flare.register(recurring_schedules=[schedule])) == (400, "invalid_request")
    assert not CronJob.objects.exists()


def test_a_day_of_the_month_and_a_day_of_the_week_must_both_match(flare):
    flare.register(recurring_schedules=[SCHEDULE | {"cron_expression": "0 0 1-7 * MON"}])

    row = CronJob.objects.get()
    times = upcoming(read_schedule(row.expression, "UTC"), datetime(2026, 1, 1, tzinfo=UTC), 4)
    assert [f"{time:%a %d %b}" for time in times] == [
        "Mon 05 Jan",
        "Mon 02 Feb",
        "Mon 02 Mar",
        "Mon 06 Apr",
    ]


def test_two_schedules_of_one_type_are_refused_and_neither_is_kept(flare):
    other = {"job_type": "email.send", "cron_expression": "0 1 * * *"}
    reply = flare.register(
        recurring_schedules=[SCHEDULE, other, SCHEDULE | {"cron_expression": "30 4 * * *"}]
    )

    assert refusal(reply) == INVALID
    error = reply.json()["error"]
    assert error["details"]["field"] == "recurring_schedules[2].job_type"
    assert error["message"] == (
        "recurring_schedules[2]: recurring_schedules[0] is a schedule of 'report.generate' too, "
        "and both would be 'rjob_report.generate'; a job type has one schedule."
    )
    assert not CronJob.objects.exists()


NESTED = "Acme.Billing.Invoices+SendReminder"


def test_a_class_within_a_class_is_a_job_type(flare):
    flare.register(
        job_types=[NESTED], recurring_schedules=[SCHEDULE | {"job_type": NESTED, "queue": None}]
    )
    asked = flare.enqueue(job_type=NESTED)
    CronJob.objects.update(next_run_at=ago(1))
    reaper.sweep()

    assert asked.status_code == 201
    assert CronJob.objects.get().name == f"rjob_{NESTED}"
    assert [job["job_type"] for job in flare.poll(capacity=5)] == [NESTED] * 2


@pytest.mark.parametrize("name", ["Outer+", "+Inner", "Outer++Inner", "Outer+ Inner", "Outer`1"])
def test_what_is_no_name_of_a_class_is_no_job_type(flare, name):
    assert refusal(flare.enqueue(job_type=name)) == INVALID


def test_what_a_schedule_enqueues_is_polled_like_any_job(flare):
    flare.register(
        queues=["reports"], job_types=["report.generate"], recurring_schedules=[SCHEDULE]
    )
    CronJob.objects.update(next_run_at=ago(1))
    reaper.sweep()

    (job,) = flare.poll(queues=["reports"])

    assert (job["job_type"], job["payload"]) == ("report.generate", {})
    assert (job["max_attempts"], job["timeout_seconds"]) == (7, 600)


# Poll


def test_a_polled_job_says_all_that_the_document_promises(flare):
    job_id = flare.enqueued(payload={"to": "user@example.com"}, max_attempts=5, timeout_seconds=90)

    (job,) = flare.poll()

    assert parse_timestamp(job.pop("enqueued_at")) == stored(job_id).enqueued_at.replace(
        microsecond=stored(job_id).enqueued_at.microsecond // 1000 * 1000
    )
    assert job == {
        "id": job_id,
        "job_type": "email.send",
        "payload": {"to": "user@example.com"},
        "attempt": 1,
        "max_attempts": 5,
        "timeout_seconds": 90,
    }
    assert job_id.startswith("job_") and len(job_id) == 30


def test_without_work_there_is_an_empty_array_and_not_204(flare):
    reply = flare.poll_reply()

    assert (reply.status_code, reply.json()) == (200, {"jobs": []})


def test_a_job_that_says_nothing_has_the_defaults_of_the_document(flare, job):
    assert (job["max_attempts"], job["timeout_seconds"], job["payload"]) == (3, 1800, {})
    assert about(stored(job["id"]).reserved_until, 1800)


def test_capacity_is_one_unless_it_says_more(flare):
    for _ in range(60):
        flare.enqueued()

    assert len(flare.poll()) == 1
    assert len(flare.poll(capacity=5)) == 5
    assert len(flare.poll(capacity=50)) == 50


@pytest.mark.parametrize("capacity", [0, 51, -1, 1.5, "5", True])
def test_a_capacity_outside_1_to_50_is_refused(flare, capacity):
    assert refusal(flare.poll_reply(capacity=capacity)) == INVALID


@pytest.mark.parametrize(
    "body",
    [
        {"worker_id": None},
        {"worker_id": ""},
        {"worker_id": "w" * 101},
        {"queues": None},
        {"queues": []},
        {"queues": ["default", ""]},
        {"queues": ["Not one"]},
        {"job_types": "email.send"},
        {"job_types": [1]},
    ],
    ids=str,
)
def test_a_poll_that_breaks_a_rule_is_refused(flare, body):
    flare.enqueued()

    assert refusal(flare.poll_reply(**body)) == INVALID
    assert Job.objects.get().state == State.AVAILABLE


def test_only_the_queues_named_are_polled(flare):
    flare.enqueued(queue="email")

    assert flare.poll(queues=["default"]) == []
    assert len(flare.poll(queues=["default", "email"])) == 1


def test_only_jobs_of_the_types_named_are_returned(flare):
    flare.enqueued(job_type="report.generate")

    assert flare.poll(job_types=["email.send"]) == []
    assert flare.poll(job_types=[]) == []
    assert len(flare.poll(job_types=["email.send", "report.generate"])) == 1


def test_a_poll_without_types_returns_what_the_worker_registered_for(flare):
    flare.register(job_types=["email.send"])
    flare.enqueued(job_type="report.generate")

    assert flare.poll() == []
    assert len(FlareClient(worker_id="unregistered").poll()) == 1


def test_a_quieted_worker_is_polled_nothing_until_it_is_resumed(flare):
    flare.register()
    flare.enqueued()
    Worker.objects.direct(WorkerState.QUIET)

    assert flare.poll() == []

    Worker.objects.resume()
    assert len(flare.poll()) == 1


def test_a_worker_declared_dead_is_alive_again_with_its_next_call(flare):
    flare.register()
    flare.enqueued()
    Worker.objects.update(last_heartbeat_at=ago(3600))
    reaper.sweep()
    assert Worker.objects.get().state == WorkerState.TERMINATED

    assert len(flare.poll()) == 1
    assert Worker.objects.get().state == WorkerState.RUNNING


# Ack


def test_success_is_answered_with_the_resolved_action(flare, job):
    reply = flare.ack(job["id"], duration_ms=1042)

    assert reply.status_code == 200
    assert reply.json() == {"action": "succeeded", "retry_at": None, "children_activated": 0}
    assert flare.job(job["id"])["status"] == "succeeded"
    assert stored(job["id"]).finished_by == WORKER


def test_a_failure_is_retried_with_backoff_and_says_when(flare, job):
    reply = flare.fail(job["id"], stack_trace="at A\nat B")

    answer = reply.json()
    retry_at = parse_timestamp(answer.pop("retry_at"))
    assert (reply.status_code, answer) == (200, {"action": "retry", "children_activated": None})
    kept = stored(job["id"])
    assert kept.state == State.RETRYABLE
    assert abs(kept.scheduled_at - retry_at) < timedelta(milliseconds=1)
    (error,) = kept.errors.all()
    assert error.type == "System.Net.Http.HttpRequestException"
    assert error.message == "Connection refused"
    assert error.backtrace == ["at A", "at B"]
    assert error.details == {"duration_ms": 503}


def test_a_retried_job_is_polled_as_the_next_attempt(flare, job):
    flare.fail(job["id"])
    Job.objects.update(scheduled_at=ago(1))

    (again,) = flare.poll()

    assert (again["id"], again["attempt"]) == (job["id"], 2)
    assert parse_timestamp(again["enqueued_at"]) > parse_timestamp(job["enqueued_at"])


def test_a_failure_of_the_last_attempt_is_dead_letter(flare):
    flare.enqueued(max_attempts=1)
    (job,) = flare.poll()

    assert flare.fail(job["id"]).json() == {
        "action": "dead_letter",
        "retry_at": None,
        "children_activated": None,
    }
    assert flare.job(job["id"])["status"] == "dead_letter"


def test_a_job_that_wants_no_dead_letter_has_failed(flare):
    OJSClient().pushed(retry={"max_attempts": 1, "on_exhaustion": "discard"})
    (job,) = flare.poll()

    assert flare.fail(job["id"]).json()["action"] == "failed"
    assert flare.job(job["id"])["status"] == "failed"


@pytest.mark.parametrize(
    "body",
    [
        {"job_id": None},
        {"job_id": 7},
        {"worker_id": None},
        {"worker_id": "w" * 101},
        {"status": None},
        {"status": "done"},
        {"status": "failed"},
        {"status": "failed", "error": "broken"},
        {"status": "failed", "error": {"type": 1}},
        {"status": "failed", "error": {"message": 1}},
        {"status": "failed", "error": {"stack_trace": ["at A"]}},
        {"duration_ms": "1"},
        {"duration_ms": -1},
    ],
    ids=str,
)
def test_an_ack_that_breaks_a_rule_is_refused(flare, job, body):
    assert refusal(flare.ack(job["id"], **body)) == INVALID
    assert stored(job["id"]).state == State.ACTIVE


@pytest.mark.parametrize("job_id", ["job_01HYX3K7M8N9P2Q4R5S6T7U8V9", "job_", "nonsense", "ü" * 26])
def test_a_job_that_does_not_exist_is_not_found(flare, job_id):
    assert refusal(flare.ack(job_id)) == UNKNOWN
    assert refusal(flare.beat(job_id)) == UNKNOWN
    assert refusal(flare.cancel(job_id)) == UNKNOWN


def test_a_job_that_is_not_processing_cannot_be_acked(flare, job):
    flare.ack(job["id"])

    assert refusal(flare.ack(job["id"])) == LOST
    assert refusal(flare.fail(job["id"])) == LOST
    assert refusal(flare.ack(flare.enqueued())) == LOST


def test_only_the_worker_that_holds_a_job_may_ack_it(flare, job):
    other = FlareClient(worker_id="other")

    assert refusal(other.ack(job["id"])) == LOST
    assert refusal(other.beat(job["id"])) == LOST
    assert RefusedFinish.objects.get().held_by == WORKER
    assert flare.ack(job["id"]).status_code == 200


def test_a_refusal_calls_the_job_what_the_worker_calls_it(flare, job):
    unknown = ids.write(uuid7())
    for reply, name, job_id in (
        (FlareClient(worker_id="other").ack(job["id"]), "job_id", job["id"]),
        (flare.ack(unknown), "resource_id", unknown),
    ):
        error = reply.json()["error"]
        assert error["details"][name] == job_id
        assert f"'{job_id}'" in error["message"]


def discarded_to(on_exhaustion):
    def end(flare):
        OJSClient().pushed(retry={"max_attempts": 1, "on_exhaustion": on_exhaustion})
        (job,) = flare.poll()
        flare.fail(job["id"])
        return job["id"]

    return end


def polled_and(outcome):
    def end(flare):
        job_id = flare.enqueued()
        flare.poll()
        getattr(flare, outcome)(job_id)
        return job_id

    return end


WAYS = {
    "dead_letter": discarded_to("dead_letter"),
    "failed": discarded_to("discard"),
    "succeeded": polled_and("ack"),
    "retrying": polled_and("fail"),
    "cancelled": polled_and("cancel"),
    "pending": lambda flare: flare.enqueued(),
    "scheduled": lambda flare: flare.enqueued(scheduled_at="2100-01-01T00:00:00Z"),
}


@pytest.mark.parametrize("status", WAYS)
def test_a_refusal_calls_the_status_of_the_job_what_the_job_calls_it(flare, status):
    job_id = WAYS[status](flare)
    assert flare.job(job_id)["status"] == status

    refusals = [flare.ack(job_id), flare.fail(job_id)]
    if status != "cancelled":
        refusals.append(flare.beat(job_id))
    if status in ("dead_letter", "failed", "succeeded"):
        refusals.append(flare.cancel(job_id))
    for reply in refusals:
        assert refusal(reply) == LOST
        error = reply.json()["error"]
        assert error["details"]["current_state"] == status
        assert error["details"].get("expected_state", "processing") == "processing"
        assert f"'{status}'" in error["message"]
        named = set(re.findall(r"'(\w+)'", error["message"]))
        assert named <= {status, "processing", job_id}


# Heartbeat


def test_a_heartbeat_leaves_two_thirds_of_the_timeout(flare, job):
    reply = flare.beat(job["id"])

    assert (reply.status_code, reply.json()) == (200, {"status": "ok"})
    assert about(stored(job["id"]).reserved_until, 1200)


def test_the_silence_after_a_heartbeat_is_never_shorter_than_the_minimum_grace(flare, settings):
    settings.OJS = settings.OJS | {"FLARE": {"ENABLED": True, "MINIMUM_GRACE": 45}}
    flare.enqueued(timeout_seconds=30)
    (job,) = flare.poll()
    assert about(stored(job["id"]).reserved_until, 30)

    flare.beat(job["id"])

    assert about(stored(job["id"]).reserved_until, 45)


def test_every_heartbeat_counts_from_itself(flare, job):
    """Two thirds of the timeout, not of what the previous heartbeat left."""
    flare.beat(job["id"])
    flare.beat(job["id"])

    assert about(stored(job["id"]).reserved_until, 1200)


def test_progress_is_kept_as_the_maximum(flare, job):
    for progress in (0.25, 0.65, 0.5, None, 0):
        assert flare.beat(job["id"], progress=progress).json() == {"status": "ok"}

    assert flare.job(job["id"])["progress"] == 0.65


@pytest.mark.parametrize("progress", [1.01, -0.01, 42, -1])
def test_progress_outside_0_to_1_is_ignored_and_not_capped(flare, job, progress):
    assert flare.beat(job["id"], progress=progress).json() == {"status": "ok"}

    assert flare.job(job["id"])["progress"] is None


@pytest.mark.parametrize("progress", [0, 1])
def test_the_ends_are_progress_too(flare, job, progress):
    flare.beat(job["id"], progress=progress)

    assert flare.job(job["id"])["progress"] == progress


def test_a_new_attempt_begins_without_progress(flare, job):
    flare.beat(job["id"], progress=0.9)
    flare.fail(job["id"])
    Job.objects.update(scheduled_at=ago(1))
    flare.poll()

    assert flare.job(job["id"])["progress"] is None


@pytest.mark.parametrize(
    "body",
    [{"job_id": None}, {"worker_id": None}, {"worker_id": ""}, {"job_id": 1}, {"progress": "half"}],
    ids=str,
)
def test_a_heartbeat_that_breaks_a_rule_is_refused(flare, job, body):
    assert refusal(flare.beat(job["id"], **body)) == INVALID


def test_the_heartbeat_of_a_cancelled_job_says_cancel(flare, job):
    assert flare.cancel(job["id"]).json()["status"] == "cancelled"

    reply = flare.beat(job["id"])

    assert (reply.status_code, reply.json()) == (200, {"status": "cancel"})
    assert refusal(flare.ack(job["id"])) == LOST


def test_a_job_cancelled_over_ojs_is_cancelled_for_flare(flare, job):
    assert OJSClient().send(f"jobs/{ids.read(job['id'])}/cancel").status_code == 200

    assert flare.beat(job["id"]).json() == {"status": "cancel"}


# The stuck-job reaper


def stuck(job_id):
    """Let the job's liveness deadline pass."""
    Job.objects.filter(pk=ids.read(job_id)).update(reserved_until=ago(1))
    reaper.sweep()


def test_a_stuck_job_is_retried_and_its_stale_worker_refused(flare, job):
    stuck(job["id"])

    assert refusal(flare.beat(job["id"])) == LOST
    assert refusal(flare.ack(job["id"])) == LOST
    (again,) = FlareClient(worker_id="other").poll()
    assert (again["id"], again["attempt"]) == (job["id"], 2)
    assert refusal(flare.beat(job["id"])) == LOST


def test_a_stuck_job_without_attempts_left_is_dead_letter(flare):
    flare.enqueued(max_attempts=1)
    (job,) = flare.poll()

    stuck(job["id"])

    assert flare.job(job["id"])["status"] == "dead_letter"


def test_a_worker_busy_with_a_long_job_may_be_silent_as_long_as_the_job_may_run(flare, job):
    Worker.objects.update(last_heartbeat_at=ago(1700))
    reaper.sweep()
    assert stored(job["id"]).state == State.ACTIVE

    Worker.objects.update(last_heartbeat_at=ago(1900))
    reaper.sweep()
    assert Worker.objects.get().state == WorkerState.TERMINATED
    assert stored(job["id"]).state == State.AVAILABLE


def test_a_worker_with_nothing_in_hand_is_dead_after_the_ordinary_silence(flare, job):
    flare.ack(job["id"])
    Worker.objects.update(last_heartbeat_at=ago(31))
    reaper.sweep()

    assert Worker.objects.get().state == WorkerState.TERMINATED


# Jobs


def test_an_enqueued_job_is_described_in_flare_words(flare):
    reply = flare.enqueue(
        job_type="report.generate", payload={"id": 1}, queue="reports", priority=5, tags=["a"]
    )

    document = reply.json()
    assert reply.status_code == 201
    assert reply.headers["Location"].endswith(document["id"])
    assert (document["job_type"], document["status"]) == ("report.generate", "pending")
    assert (document["queue"], document["priority"]) == ("reports", 5)
    assert flare.job(document["id"])["payload"] == {"id": 1}


def test_a_job_may_be_scheduled(flare):
    assert flare.enqueue(scheduled_at="2999-01-01T00:00:00Z").json()["status"] == "scheduled"
    assert flare.poll() == []


@pytest.mark.parametrize(
    "body",
    [
        {"job_type": None},
        {"job_type": ""},
        {"job_type": "no spaces"},
        {"payload": []},
        {"payload": "text"},
        {"queue": "Upper"},
        {"priority": 101},
        {"max_attempts": 0},
        {"timeout_seconds": 0},
        {"timeout_seconds": "90"},
        {"scheduled_at": "tomorrow"},
        {"tags": "a"},
        {"parent_id": 7},
        {"parent_id": "job_01HYX3K7M8N9P2Q4R5S6T7U8V9", "scheduled_at": "2999-01-01T00:00:00Z"},
    ],
    ids=str,
)
def test_a_job_that_breaks_a_rule_is_not_enqueued(flare, body):
    assert refusal(flare.enqueue(**body)) == INVALID
    assert Job.objects.count() == 0


def test_a_finished_job_cannot_be_cancelled(flare, job):
    flare.ack(job["id"])

    assert refusal(flare.cancel(job["id"])) == LOST


def test_the_last_error_is_shown(flare, job):
    flare.fail(job["id"], stack_trace="at A\nat B")

    shown = flare.job(job["id"])
    assert (shown["status"], shown["attempt"]) == ("retrying", 1)
    assert shown["error"] == {
        "type": "System.Net.Http.HttpRequestException",
        "message": "Connection refused",
        "stack_trace": "at A\nat B",
    }


@pytest.mark.parametrize("number", [0, 1, 2**128 - 1, 0x018F3E9A7B6C7D8E9FA0B1C2D3E4F506])
def test_every_job_has_one_flare_id_and_it_leads_back(number):
    from uuid import UUID

    job_id = UUID(int=number)

    assert ids.read(ids.write(job_id)) == ids.read(str(job_id)) == job_id


# Continuations


def test_continuations_wait_for_their_parent_and_are_counted_when_it_succeeds(flare, job):
    children = {flare.enqueued(parent_id=job["id"], payload={"child": n}) for n in range(2)}
    for child in children:
        assert flare.job(child)["status"] == "awaiting"
    assert flare.poll() == []

    assert flare.ack(job["id"]).json()["children_activated"] == 2
    assert {polled["id"] for polled in flare.poll(capacity=5)} == children


def test_a_failure_that_is_retried_activates_nothing(flare, job):
    child = flare.enqueued(parent_id=job["id"])

    assert flare.fail(job["id"]).json()["children_activated"] is None
    assert flare.job(child)["status"] == "awaiting"


def test_the_continuation_of_a_job_that_will_never_succeed_is_cancelled(flare):
    parent = flare.enqueued(max_attempts=1)
    child = flare.enqueued(parent_id=parent)
    grandchild = flare.enqueued(parent_id=child)

    flare.poll()
    flare.fail(parent)

    assert flare.job(child)["status"] == flare.job(grandchild)["status"] == "cancelled"


def test_the_continuation_of_a_job_that_has_succeeded_is_pending_at_once(flare, job):
    flare.ack(job["id"])

    assert flare.enqueue(parent_id=job["id"]).json()["status"] == "pending"


def test_there_is_no_continuation_of_a_job_that_does_not_exist(flare):
    assert refusal(flare.enqueue(parent_id="job_01HYX3K7M8N9P2Q4R5S6T7U8V9")) == UNKNOWN
    assert Job.objects.count() == 0


def test_an_ojs_worker_sets_flare_continuations_free(flare):
    parent = flare.enqueued()
    child = flare.enqueued(parent_id=parent)
    ojs = OJSClient()

    (job,) = ojs.fetch(worker_id="ojs-worker")
    ojs.ack(job["id"], worker_id="ojs-worker")

    assert [polled["id"] for polled in flare.poll()] == [child]


# Cross pairs


def test_near_the_bound_of_its_queue_a_producer_is_warned(flare):
    engine.queues.configure("default", {"max_depth": 4, "warning_threshold": 0.5})

    replies = [flare.send("jobs", {"job_type": "email.send"}) for _ in range(4)]

    assert [reply.status_code for reply in replies] == [201] * 4
    assert [reply.headers.get("X-OJS-Queue-Pressure") for reply in replies] == [
        None,
        None,
        "0.75",
        "1.00",
    ]
    assert replies[2].headers["X-OJS-Queue-Depth"] == "3"
    assert replies[2].headers["X-OJS-Queue-Bound"] == "4"


def test_a_job_enqueued_over_ojs_is_run_over_flare(flare):
    job_id = OJSClient().pushed(args=["user@example.com", 2], timeout=90)

    (job,) = flare.poll()
    assert job["payload"] == {"args": ["user@example.com", 2]}
    assert job["timeout_seconds"] == 90
    assert about(Job.objects.get().reserved_until, 90)
    assert flare.ack(job["id"]).status_code == 200

    assert OJSClient().job(job_id)["state"] == "completed"


def test_a_job_may_run_longer_than_a_reservation_lasts_if_it_says_so(flare):
    OJSClient().pushed(timeout=7200)

    (job,) = flare.poll()

    assert job["timeout_seconds"] == 7200
    assert about(Job.objects.get().reserved_until, 7200)


def pass_by(seconds, *chores):
    """Let time pass for the jobs that are held and for their workers, and then run the reaper."""
    passed = timedelta(seconds=seconds)
    Job.objects.update(
        started_at=F("started_at") - passed, reserved_until=F("reserved_until") - passed
    )
    Worker.objects.update(last_heartbeat_at=F("last_heartbeat_at") - passed)
    reaper.sweep(chores)


def test_a_job_is_its_workers_during_its_grace(flare):
    OJSClient().pushed(timeout=60, grace_period=600, retry={"max_attempts": 3})
    (job,) = flare.poll()
    assert job["timeout_seconds"] == 60

    pass_by(300)

    assert flare.poll() == []
    assert flare.ack(job["id"]).status_code == 200


@pytest.mark.parametrize("final", [False, True])
def test_the_retry_policy_decides_about_a_job_that_ran_too_long(flare, final):
    policy = {"max_attempts": 3, "non_retryable_errors": ["timeout"] if final else []}
    OJSClient().pushed(timeout=60, retry=policy)
    flare.poll()

    pass_by(61)

    job = Job.objects.get()
    assert (job.state, job.attempt) == ("discarded" if final else "retryable", 1)
    assert job.dead_letter == final
    assert job.errors.get().type == "timeout"


@pytest.mark.parametrize("away", [3, 600])
@pytest.mark.parametrize("first", [[], ["expired-reservations"], ["timeouts"]], ids=str)
def test_a_job_that_ran_too_long_while_no_reaper_ran_has_timed_out(flare, first, away):
    OJSClient().pushed(timeout=60, retry={"max_attempts": 3, "non_retryable_errors": ["timeout"]})
    flare.poll()

    pass_by(60 + away, *first)
    reaper.sweep()

    job = Job.objects.get()
    assert (job.state, job.attempt) == ("discarded", 1)
    assert job.errors.get().type == "timeout"


def test_a_worker_that_was_silent_before_the_time_of_its_job_was_up_lost_it(flare):
    OJSClient().pushed(timeout=900, retry={"max_attempts": 3})
    (job,) = flare.poll()
    flare.beat(job["id"])

    pass_by(3600, "timeouts", "expired-reservations")

    job = Job.objects.get()
    assert (job.state, job.attempt) == ("available", 2)
    assert job.errors.get().type == "visibility_timeout"


def test_after_a_heartbeat_the_grace_does_not_lengthen_the_silence(flare):
    OJSClient().pushed(timeout=900, grace_period=600)
    (job,) = flare.poll()

    flare.beat(job["id"])

    assert about(stored(job["id"]).reserved_until, 600)


def test_a_job_enqueued_over_flare_is_run_over_ojs(flare):
    job_id = flare.enqueued(payload={"to": "user@example.com"}, timeout_seconds=90)
    ojs = OJSClient()

    (job,) = ojs.fetch(worker_id="ojs-worker")
    assert job["args"] == [{"to": "user@example.com"}]
    assert job["visibility_timeout_ms"] == 90_000
    assert refusal(flare.ack(job_id)) == LOST
    assert ojs.ack(job["id"], worker_id="ojs-worker").status_code == 200

    assert flare.job(job_id)["status"] == "succeeded"


def test_an_ojs_heartbeat_and_a_flare_worker_do_not_disturb_each_other(flare, job):
    OJSClient().send("workers/heartbeat", {"worker_id": "ojs-worker", "active_job_ids": []})
    engine.expire()

    assert {worker.protocol for worker in Worker.objects.all()} == {"flare", "ojs"}
    assert flare.beat(job["id"]).json() == {"status": "ok"}
