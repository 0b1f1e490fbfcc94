"""What the public Python, JavaScript, Go and Ruby SDKs send, and what each can read of our replies.

Each client below is the least that tells it from the others: its headers, the bodies it builds,
and how strictly it reads. The stories are then told once with each of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import uuid4

import pytest
from django.test import Client

from jobs import engine
from jobs.identifiers import uuid7
from jobs.models import Job
from jobs.retry import RetryPolicy
from tests.factories import JobErrorFactory, JobFactory, ago
from workers.models import Worker

OJS = "application/openjobspec+json"
STATES = {"running", "quiet", "terminate"}
RFC_3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")


class Sdk:
    """What all four have in common: they send `OJS-Version` and our media type."""

    name = ""
    version = "1.0"
    worker_id = "worker_0194"

    def __init__(self) -> None:
        self.http = Client(raise_request_exception=False)

    def headers(self) -> dict[str, str]:
        return {"Accept": OJS, "OJS-Version": self.version, "X-Request-ID": str(uuid4())}

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request as this client does; return what it makes of the reply."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = self.headers()
        reply = self.http.generic(
            method, f"/ojs/v1/{path}", data, content_type=self.content_type(body), headers=headers
        )
        if "X-Request-ID" in headers:
            assert reply.headers["X-Request-ID"] == headers["X-Request-ID"]
        return self.read(reply)

    def content_type(self, body: Any) -> str:
        return OJS

    def read(self, reply: Any) -> Any:
        assert reply.status_code in (200, 201), (reply.status_code, reply.content)
        return reply.json()

    # The wrapper most of them read

    def job_of(self, body: Any) -> dict[str, Any]:
        job: dict[str, Any] = body["job"]
        self.check(job)
        return job

    def check(self, job: dict[str, Any]) -> None:
        """Whatever this client would stumble over."""

    # Requests

    def enqueue(self, **options: Any) -> dict[str, Any]:
        raise NotImplementedError

    def fetch(self) -> list[dict[str, Any]]:
        body = {"queues": ["default"], "count": 1, "worker_id": self.worker_id}
        jobs: list[dict[str, Any]] = self.call("POST", "workers/fetch", body)["jobs"]
        for job in jobs:
            self.check(job)
        return jobs

    def ack(self, job_id: str, result: Any) -> None:
        self.call("POST", "workers/ack", {"job_id": job_id, "result": result})

    def nack(self, job_id: str, code: str, **error: Any) -> None:
        failed = {"code": code, "message": "It broke."} | error
        self.call("POST", "workers/nack", {"job_id": job_id, "error": failed})

    def beat(self, *active: str) -> str:
        raise NotImplementedError

    def info(self, job_id: str) -> dict[str, Any]:
        return self.job_of(self.call("GET", f"jobs/{job_id}"))

    def cancel(self, job_id: str) -> dict[str, Any]:
        return self.job_of(self.call("DELETE", f"jobs/{job_id}"))


class Python(Sdk):
    name = "python"

    def read(self, reply: Any) -> Any:
        # Anything else becomes {"_raw": …}, and every key is missing.
        assert "application/json" in reply.headers["Content-Type"]
        return super().read(reply)

    def check(self, job: dict[str, Any]) -> None:
        # get("meta", {}) and its like only cover absence.
        assert None not in [job.get(name, ()) for name in ("meta", "tags", "args", "errors")]

    def enqueue(self, **options: Any) -> dict[str, Any]:
        retry = {
            "max_attempts": 3,
            "initial_interval": "PT0.2S",
            "backoff_coefficient": 2.0,
            "max_interval": "PT5M",
            "jitter": False,
        }
        body = {
            "type": "email.send",
            "args": ["user@example.com"],
            "meta": {"trace": "t"},
            "options": {"retry": retry, "priority": 0, "timeout_ms": 30_000, "tags": ["a"]}
            | options,
        }
        return self.job_of(self.call("POST", "jobs", body))

    def fetch(self) -> list[dict[str, Any]]:
        body = {
            "queues": ["default"],
            "count": 1,
            "worker_id": self.worker_id,
            "visibility_timeout_ms": 30_000,
        }
        jobs: list[dict[str, Any]] = self.call("POST", "workers/fetch", body)["jobs"]
        for job in jobs:
            self.check(job)
        return jobs

    def beat(self, *active: str) -> str:
        body = {
            "worker_id": self.worker_id,
            "active_jobs": list(active),
            "visibility_timeout_ms": 30_000,
        }
        state = self.call("POST", "workers/heartbeat", body)["state"]
        assert state in STATES  # any other raises
        return str(state)


class JavaScript(Sdk):
    name = "javascript"

    def enqueue(self, **options: Any) -> dict[str, Any]:
        body = {
            "type": "email.send",
            "args": [{"to": "user@example.com"}],
            "options": {
                "queue": "default",
                "visibility_timeout_ms": 60_000,
                "retry": {
                    "maxAttempts": 3,
                    "initialInterval": "PT0.2S",
                    "backoffCoefficient": 2,
                    "jitter": False,
                },
            }
            | options,
        }
        return self.job_of(self.call("POST", "jobs", body))

    def fetch(self) -> list[dict[str, Any]]:
        body = {
            "queues": ["default"],
            "count": 10,
            "worker_id": self.worker_id,
            "visibility_timeout_ms": 30_000,
        }
        jobs: list[dict[str, Any]] = self.call("POST", "workers/fetch", body)["jobs"]
        # It would take `timeout`, which is seconds, for milliseconds and abort the handler.
        assert all("timeout" not in job for job in jobs)
        return jobs

    def beat(self, *active: str) -> str:
        body = {
            "worker_id": self.worker_id,
            "state": "running",
            "active_jobs": len(active),
            "active_job_ids": list(active),
            "hostname": "host-1",
            "pid": 4711,
            "queues": ["default"],
            "concurrency": 10,
            "labels": ["blue"],
        }
        return str(self.call("POST", "workers/heartbeat", body)["state"])


class Go(Sdk):
    """Decodes into structs: one value of another type and the whole reply is an error."""

    name = "go"
    version = "1.0.0-rc.1"
    INTEGERS = ("priority", "attempt", "max_attempts", "timeout_ms")
    TIMES = (
        "created_at",
        "enqueued_at",
        "started_at",
        "completed_at",
        "scheduled_at",
        "expires_at",
        "cancelled_at",
        "discarded_at",
        "next_attempt_at",
    )

    def headers(self) -> dict[str, str]:
        return {"Accept": OJS, "OJS-Version": self.version}

    def content_type(self, body: Any) -> str:
        return "" if body is None else OJS

    def check(self, job: dict[str, Any]) -> None:
        for name in ("id", "type", "state", "queue", "specversion"):
            assert type(job[name]) is str
        for name in self.INTEGERS:
            assert type(job.get(name, 0)) is int, name
        for name in self.TIMES:
            assert job.get(name) is None or RFC_3339.fullmatch(job[name]), name
        assert type(job["args"]) is list
        assert type(job["meta"]) is dict
        assert all(type(tag) is str for tag in job["tags"])
        assert type(job.get("result", {})) is dict
        for error in [*job.get("errors", []), *([job["error"]] if "error" in job else [])]:
            assert (type(error["code"]), type(error["message"])) == (str, str)
            assert type(error.get("details", {})) is dict
            assert type(error.get("retryable", True)) is bool

    def enqueue(self, **options: Any) -> dict[str, Any]:
        body = {
            "type": "email.send",
            "args": [{"to": "user@example.com"}],
            "options": {
                "queue": "default",
                "retry": {
                    "max_attempts": 3,
                    "initial_interval_ms": 200,
                    "backoff_coefficient": 2,
                    "max_interval_ms": 300_000,
                    "jitter": False,
                },
            }
            | options,
        }
        return self.job_of(self.call("POST", "jobs", body))

    def beat(self, *active: str) -> str:
        body = {
            "worker_id": self.worker_id,
            "state": "running",
            "active_jobs": len(active),
            "active_job_ids": list(active),
        }
        return str(self.call("POST", "workers/heartbeat", body)["state"])


class Ruby(Sdk):
    """Sends the envelope flat, and reads it flat."""

    name = "ruby"

    def job_of(self, body: Any) -> dict[str, Any]:
        self.check(body)
        job: dict[str, Any] = body
        return job

    def check(self, job: dict[str, Any]) -> None:
        retry = RetryPolicy.parse(job.get("retry"))
        assert retry.max_attempts >= 1  # each of these raises ArgumentError
        assert retry.backoff_coefficient >= 1.0
        assert retry.on_exhaustion in ("discard", "dead_letter")
        assert set((job.get("unique") or {}).get("keys", [])) <= {"type", "queue", "args", "meta"}
        for name in ("created_at", "enqueued_at"):
            datetime.fromisoformat(job[name])

    def enqueue(self, **options: Any) -> dict[str, Any]:
        body = {
            "specversion": "1.0",
            "id": str(uuid7()),
            "type": "email.send",
            "queue": "default",
            "args": ["user@example.com"],
            "meta": {},
            "priority": 0,
            "timeout": 30,
            "retry": {"max_attempts": 3, "initial_interval": "PT0.2S", "jitter": False},
        } | options
        job = self.job_of(self.call("POST", "jobs", body))
        assert job["id"] == body["id"]
        return job

    def fetch(self) -> list[dict[str, Any]]:
        body = {"queues": ["default"], "batch_size": 1}
        jobs: list[dict[str, Any]] = self.call("POST", "workers/fetch", body)["jobs"]
        for job in jobs:
            self.check(job)
        return jobs

    def beat(self, *active: str) -> str:
        body = {"worker_id": self.worker_id, "active_jobs": list(active)}
        return str(self.call("POST", "workers/heartbeat", body)["state"])


SDKS = [Python, JavaScript, Go, Ruby]


@pytest.fixture(params=SDKS, ids=[sdk.name for sdk in SDKS])
def sdk(request, db, settings) -> Sdk:
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    client: Sdk = request.param()
    return client


# The stories


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


def test_an_unsigned_ack_is_accepted_and_marked(sdk):
    """No SDK says in an ACK who it is."""
    job = sdk.enqueue()
    sdk.fetch()

    sdk.ack(job["id"], {})

    assert Job.objects.get().unfenced


@pytest.mark.parametrize("code", ["handler_error", "timeout", "handler_not_found", "cancelled"])
def test_a_failed_job_is_tried_again_and_brings_its_history(sdk, code):
    """Each SDK has codes of its own; unknown ones must be accepted."""
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


def test_a_failure_may_be_told_with_the_least(sdk):
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
    # The Ruby SDK fetches without a name, so its first heartbeat says who runs the job.
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
    """JavaScript parses every reply, Python and Go go by the code, Ruby by the status."""
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


# What only one of them does


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
