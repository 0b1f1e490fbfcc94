"""Requests of the public Python, JavaScript, Go and Ruby SDKs, and what they can read.

Each scenario runs once with each SDK, as `tests.sdks` describes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jobs import engine
from jobs.models import Job
from jobs.spec.identifiers import uuid7
from tests.factories import JobErrorFactory, JobFactory, ago
from tests.once import once_is_enough
from tests.sdks import RFC_3339, Go, JavaScript, Python, Ruby, Sdk
from workers.models import Worker

pytestmark = once_is_enough

SDKS = [Python, JavaScript, Go, Ruby]


@pytest.fixture(params=SDKS, ids=[sdk.name for sdk in SDKS])
def sdk(request, db, settings) -> Sdk:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    client: Sdk = request.param()
    return client


# Scenarios for all SDKs


def test_a_job_from_beginning_to_end(sdk):
    job = sdk.enqueue()
    assert (job["state"], job["attempt"], job["max_attempts"]) == ("available", 0, 3)

    (fetched,) = sdk.fetch()
    assert (fetched["id"], fetched["state"], fetched["attempt"]) == (job["id"], "active", 1)
    assert fetched["type"] == "email.send"
    assert fetched["queue"] == "default"
    assert sdk.beat(job["id"]) == "running"

    sdk.ack(job["id"], {"sent": True})

    done = sdk.info(job["id"])
    assert (done["state"], done["result"]) == ("completed", {"sent": True})
    assert sdk.fetch() == []


def test_a_job_without_retries_says_that_it_runs_once(sdk):
    """The Ruby SDK reads no policy with less than one attempt, whoever enqueued the job."""
    made = sdk.enqueue(retry={"max_attempts": 0})

    (fetched,) = sdk.fetch()

    for job in (made, fetched, sdk.info(made["id"])):
        assert (job["max_attempts"], job["retry"]["max_attempts"]) == (1, 1)


def test_an_unsigned_ack_is_accepted_and_marked(sdk):
    """No SDK sends its worker id in an ACK."""
    job = sdk.enqueue()
    sdk.fetch()

    sdk.ack(job["id"], {})

    assert Job.objects.get().unfenced


@pytest.mark.parametrize("code", ["handler_error", "timeout", "handler_not_found", "cancelled"])
def test_a_failed_job_is_tried_again_and_brings_its_history(sdk, code):
    """Each SDK has its own codes; unknown ones must be accepted."""
    job = sdk.enqueue()
    sdk.fetch()

    sdk.nack(job["id"], code, retryable=True, details={"error_class": "SmtpError", "n": 1})

    waiting = sdk.info(job["id"])
    assert (waiting["state"], waiting["retry_delay_ms"]) == ("retryable", 200)
    assert waiting["error"]["code"] == code
    assert waiting["error"]["type"] == "SmtpError"

    Job.objects.update(scheduled_at=ago(1))
    (again,) = sdk.fetch()
    assert (again["attempt"], len(again["errors"])) == (2, 1)
    assert again["errors"][0]["code"] == code


def test_a_failure_may_be_reported_with_the_least(sdk):
    job = sdk.enqueue()
    sdk.fetch()

    sdk.call("POST", "workers/nack", {"job_id": job["id"], "error": {"code": "c", "message": "m"}})

    assert sdk.info(job["id"])["state"] == "retryable"


def test_a_worker_is_known_by_its_heartbeat_alone(sdk):
    """No SDK ever registers."""
    assert sdk.beat() == "running"

    assert Worker.objects.get().worker_id == sdk.worker_id


def test_a_heartbeat_extends_and_adopts_the_jobs_it_names(sdk):
    job = sdk.enqueue()
    sdk.fetch()
    Job.objects.update(reserved_until=ago(-5))
    before = Job.objects.get().reserved_until

    sdk.beat(job["id"])

    held = Job.objects.get()
    assert held.reserved_until > before
    # The Ruby SDK fetches without a worker id, so its first heartbeat names the job's worker.
    assert held.reserved_by == sdk.worker_id


def test_a_quieted_worker_hears_it_in_its_next_heartbeat(sdk):
    sdk.beat()
    Worker.objects.update(directive="quiet")

    assert sdk.beat() == "quiet"


def test_a_job_is_cancelled(sdk):
    job = sdk.enqueue()

    cancelled = sdk.cancel(job["id"])

    assert (cancelled["state"], cancelled["previous_state"]) == ("cancelled", "available")
    assert sdk.info(job["id"])["state"] == "cancelled"


def test_many_are_enqueued_at_once(sdk):
    jobs = [{"type": "email.send", "args": [{"n": number}]} for number in range(3)]

    body = sdk.call("POST", "jobs/batch", {"jobs": jobs})

    assert body["count"] == 3
    for job in body["jobs"]:
        sdk.check(job)
    assert [job["args"] for job in body["jobs"]] == [job["args"] for job in jobs]


def test_the_dead_letter_is_listed_retried_and_emptied(sdk):
    jobs = [JobFactory(dead=True, finished_at=ago(age)) for age in (1, 2)]
    for job in jobs:
        JobErrorFactory(job=job, attempt=3)

    body = sdk.call("GET", "dead-letter?limit=1&offset=0&queue=default")
    assert [job["id"] for job in body["jobs"]] == [str(jobs[0].pk)]
    sdk.check(body["jobs"][0])
    page = body["pagination"]
    assert (page["total"], page["limit"], page["offset"]) == (2, 1, 0)
    assert page["has_more"] is True

    retried = sdk.job_of(sdk.call("POST", f"dead-letter/{jobs[0].pk}/retry"))
    assert (retried["state"], retried["attempt"]) == ("available", 0)

    assert sdk.call("DELETE", f"dead-letter/{jobs[1].pk}")["deleted"] is True
    assert sdk.call("GET", "dead-letter")["jobs"] == []


def test_the_queues_are_listed(sdk):
    sdk.enqueue()
    engine.pause("billing")

    body = sdk.call("GET", "queues")

    assert [(queue["name"], queue["status"]) for queue in body["queues"]] == [
        ("billing", "paused"),
        ("default", "active"),
    ]
    assert all(RFC_3339.fullmatch(queue["created_at"]) for queue in body["queues"])
    page = body["pagination"]
    assert [type(page[name]) for name in ("total", "limit", "offset")] == [int] * 3
    assert type(page["has_more"]) is bool


def test_the_manifest_can_be_decoded(sdk):
    reply = sdk.http.get("/ojs/manifest", headers=sdk.headers())

    manifest = sdk.read(reply)
    assert type(manifest["conformance_level"]) is int
    implementation = manifest["implementation"]
    assert {type(implementation[name]) for name in ("name", "version", "language")} == {str}
    # As Go declares them: []string, string, map[string]bool, []string, map[string]string.
    assert {type(each) for each in manifest["protocols"]} == {str}
    assert type(manifest["backend"]) is str
    assert {type(each) for each in manifest["capabilities"].values()} == {bool}
    assert {type(each) for each in manifest["extensions"]} == {str}
    assert {type(each) for each in manifest["endpoints"].values()} == {str}


def test_health_can_be_decoded(sdk):
    health = sdk.read(sdk.http.get("/ojs/v1/health", headers=sdk.headers()))

    assert health["version"] == "1.0"
    assert type(health["status"]) is str
    assert type(health["uptime_seconds"]) is int
    assert type(health["backend"]["latency_ms"]) is int


# Errors, as each maps them


ERRORS: dict[str, tuple[int, str, Callable[[Sdk], Any]]] = {
    "validation": (400, "invalid_request", lambda sdk: ("POST", "jobs", {"type": "a", "args": {}})),
    "not found": (404, "not_found", lambda sdk: ("GET", f"jobs/{uuid7()}", None)),
    "no endpoint": (404, "not_found", lambda sdk: ("GET", "schemas/urn%3Aojs%2Fx", None)),
    "no method": (405, "invalid_request", lambda sdk: ("PATCH", "queues", {})),
    "conflict": (
        409,
        "conflict",
        lambda sdk: ("POST", "workers/ack", {"job_id": str(JobFactory(completed=True).pk)}),
    ),
    "duplicate": (
        409,
        "duplicate",
        lambda sdk: ("POST", "jobs", {"type": "a", "args": [], "id": str(JobFactory().pk)}),
    ),
    "unsupported": (
        422,
        "unsupported",
        lambda sdk: ("POST", "jobs", {"specversion": "9.0", "type": "a", "args": []}),
    ),
}


@pytest.mark.parametrize("kind", list(ERRORS))
def test_errors_can_be_mapped_by_status_and_by_code(sdk, kind):
    """JavaScript parses every reply, Python and Go use the code, Ruby by the status."""
    status, code, request = ERRORS[kind]
    method, path, body = request(sdk)

    reply = sdk.http.generic(
        method,
        f"/ojs/v1/{path}",
        b"" if body is None else json.dumps(body).encode(),
        content_type=sdk.content_type(body),
        headers=sdk.headers(),
    )

    assert reply.status_code == status
    error = reply.json()["error"]
    assert error["code"] == code
    assert type(error["message"]) is str
    assert error["retryable"] is False
    assert type(error["details"]) is dict
    assert type(error["request_id"]) is str
    if kind == "not found":
        assert error["details"]["resource_type"] == "job"
        assert type(error["details"]["resource_id"]) is str


# Particularities of single SDKs


@pytest.fixture
def go(db, settings) -> Go:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    return Go()


@pytest.fixture
def ruby(db, settings) -> Ruby:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    return Ruby()


@pytest.fixture
def javascript(db, settings) -> JavaScript:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    return JavaScript()


def test_go_writes_times_in_nanoseconds_and_its_own_zone(go):
    job = go.enqueue(delay_until="2999-02-12T12:30:00.123456789+02:00")

    assert job["state"] == "scheduled"
    assert Job.objects.get().scheduled_at.isoformat() == "2999-02-12T10:30:00.123456+00:00"


def test_go_sends_no_content_type_without_a_body(go):
    job = JobFactory(pending=True)

    assert go.call("POST", f"jobs/{job.pk}/activate")["job"]["state"] == "available"


def test_go_names_fields_of_its_arguments_in_unique_and_gets_them_back(go):
    unique = {"key": ["to"], "period_ms": 60_000, "on_conflict": "reject"}

    assert go.enqueue(unique=unique)["unique"] == unique


def test_ruby_fetches_and_acks_without_a_name(ruby):
    job = ruby.enqueue()
    ruby.fetch()
    assert Job.objects.get().reserved_by == ""

    ruby.ack(job["id"], "a string")

    assert ruby.info(job["id"])["result"] == "a string"


def test_ruby_schedules_by_the_envelopes_own_name(ruby):
    assert ruby.enqueue(scheduled_at="2999-01-01T00:00:00Z")["state"] == "scheduled"


def test_ruby_gets_its_unique_policy_back_as_sent(ruby):
    unique = {"keys": ["type", "args"], "period": "PT1H", "on_conflict": "reject"}

    assert ruby.enqueue(unique=unique)["unique"] == unique


def test_rubys_timeout_is_seconds_and_kept_from_javascript_workers(ruby, javascript):
    job = ruby.enqueue(timeout=45)
    assert job["timeout"] == 45
    assert job["timeout_ms"] == 45_000

    (fetched,) = javascript.fetch()

    assert fetched["timeout_ms"] == 45_000


def test_the_serverless_helpers_of_javascript_ack_by_path(javascript):
    """An empty body with a JSON content type, and a plain string as the error."""
    done, failed = JobFactory(active=True), JobFactory(active=True)

    javascript.call("POST", f"jobs/{done.pk}/ack")
    javascript.call("POST", f"jobs/{failed.pk}/nack", {"error": "It broke."})

    assert javascript.info(str(done.pk))["state"] == "completed"
    error = javascript.info(str(failed.pk))["error"]
    assert (error["message"], error["code"]) == ("It broke.", "handler_error")


def test_a_job_of_one_language_is_run_by_another(sdk, ruby):
    job = sdk.enqueue()

    (fetched,) = ruby.fetch()
    ruby.ack(fetched["id"], {"by": "ruby"})

    assert sdk.info(job["id"])["result"] == {"by": "ruby"}
