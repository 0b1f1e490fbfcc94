"""Common to all endpoints: codes, headers, media types, errors (HTTP §3 to §6, §16, §19)."""

from __future__ import annotations

import io
import re

import pytest
from django.apps import apps
from django.core.management import call_command

from jobs.models import Job, Queue
from tests.factories import JobFactory, WorkerFactory
from tests.ojs_client import OJSClient, refusal
from workers import conformance

OJS = "application/openjobspec+json"
FOR_SDKS = 'application/openjobspec+json; profile="application/json"'
NOBODYS = "019414d4-0000-7000-8000-000000000000"


# Errors (§16)


def test_a_validation_error_says_what_is_wrong_and_where(api):
    reply = api.push(args={"to": "user@example.com"})

    assert reply.status_code == 400
    error = refusal(reply)
    assert error["code"] == "invalid_request"
    assert error["message"] == "The 'args' field must be an array, not object."
    assert error["details"]["field"] == "args"
    assert error["details"]["expected"] == "array"
    assert error["details"]["received"] == "object"
    (problem,) = error["details"]["validation_errors"]
    assert problem["path"] == "$.args"
    assert error["docs_url"] == error["doc_url"]
    assert error["docs_url"].startswith("https://")


LOST = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
GOOD = {"type": "a.b", "args": []}
PATHS = {
    "of a job": ("jobs", GOOD | {"queue": 7}, "$.queue"),
    "of its options": ("jobs", GOOD | {"options": {"queue": 7}}, "$.options.queue"),
    "of its retry policy": (
        "jobs",
        GOOD | {"options": {"retry": {"jitter": 7}}},
        "$.options.retry.jitter",
    ),
    "of a batch": (
        "jobs/batch",
        {"jobs": [GOOD, GOOD | {"options": {"tags": [7]}}]},
        "$.jobs[1].options.tags[0]",
    ),
    "no job": ("jobs/batch", {"jobs": [7]}, "$.jobs[0]"),
    "of an error": ("workers/nack", {"job_id": LOST, "error": {"code": 7}}, "$.error.code"),
    "of a list": ("workers/ack", {"acks": [{"job_id": 7}]}, "$.acks[0].job_id"),
    "of an error in a list": (
        "workers/nack",
        {"nacks": [{"job_id": LOST, "error": {"code": "x"}}]},
        "$.nacks[0].error.message",
    ),
}


@pytest.mark.parametrize("what", PATHS)
def test_a_refusal_gives_the_path_to_what_is_wrong_from_the_top(api, what):
    """JSON format §12.4."""
    path, body, place = PATHS[what]

    (problem,) = refusal(api.send(path, body))["details"]["validation_errors"]

    assert problem["path"] == place
    assert problem["message"]


def test_a_bad_retry_policy_is_unprocessable(api):
    """The public cases decide (conformance README, row 5)."""
    reply = api.push(options={"retry": {"max_attempts": -1}})

    assert reply.status_code == 422
    error = refusal(reply)
    assert (error["code"], error["type"]) == ("invalid_request", "validation_error")
    assert error["details"]["rule"] == "validation.retry_policy_invalid"
    assert error["details"]["field"] == "retry.max_attempts"


def test_another_major_version_of_the_envelope_is_unsupported(api):
    reply = api.push(specversion="2.0")

    assert reply.status_code == 422
    assert refusal(reply)["code"] == "unsupported"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"jobs/{NOBODYS}"),
        ("DELETE", f"jobs/{NOBODYS}"),
        ("POST", f"jobs/{NOBODYS}/cancel"),
        ("POST", f"jobs/{NOBODYS}/activate"),
        ("GET", "jobs/not-a-uuid"),
        ("DELETE", "jobs/not-a-uuid"),
    ],
)
def test_a_job_that_does_not_exist_is_not_found(api, method, path):
    reply = api.generic(method, f"/ojs/v1/{path}")

    assert reply.status_code == 404
    error = refusal(reply)
    assert error["code"] == "not_found"
    assert error["details"] == {"resource_type": "job", "resource_id": path.split("/")[1]}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "path",
    ["/ojs", "/ojs/", "/ojs/v1", "/ojs/v1/", "/ojs/v2/jobs", "/ojs/v1/jobs/", "/ojs/v1/webhooks"],
)
def test_what_is_no_endpoint_is_not_found_in_the_ojs_form(api, method, path):
    reply = api.generic(method, path)

    assert reply.status_code == 404
    error = refusal(reply)
    assert (error["code"], error["details"]["resource_id"]) == ("not_found", path)


@pytest.mark.parametrize("path", ["/ojs/v1/jobs", "/ojs/v1/webhooks", "/ojs/v1/workers/fetch"])
def test_no_csrf_token_is_asked_for(api, path):
    """A client is not a browser: Django's page about tokens would mean nothing to it."""
    reply = OJSClient().post(path)
    strict = type(api)()
    strict.handler.enforce_csrf_checks = True

    assert strict.post(path).status_code == reply.status_code
    assert reply.headers["Content-Type"] == OJS


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("jobs", "GET, HEAD, POST"),
        ("jobs/batch", "POST"),
        (f"jobs/{NOBODYS}", "GET, HEAD, DELETE, PATCH"),
        ("queues", "GET, HEAD, POST"),
        ("dead-letter", "GET, HEAD, DELETE"),
        ("events", "GET, HEAD"),
        ("health", "GET, HEAD"),
        ("workers/fetch", "POST"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE", "ASSERT", "push"])
def test_other_methods_are_refused_and_the_right_ones_named(api, path, allowed, method):
    method = "PUT" if method in allowed else method
    reply = api.generic(method, f"/ojs/v1/{path}")

    assert reply.status_code == 405
    assert sorted(reply.headers["Allow"].split(", ")) == sorted(allowed.split(", "))
    assert refusal(reply)["code"] == "invalid_request"


def test_a_head_request_has_headers_and_no_body(api):
    reply = api.head("/ojs/v1/queues")

    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["OJS-Version"] == "1.0"


# Headers (§3.2, §4, §6.5, §19)


@pytest.mark.parametrize("path", ["/ojs/manifest", "/ojs/v1/health", "/ojs/v1/queues", "/ojs/v1/x"])
def test_every_reply_has_the_standard_headers(api, path):
    headers = api.get(path).headers

    assert headers["OJS-Version"] == "1.0"
    assert headers["Content-Type"] == OJS
    assert re.fullmatch(r"req_[0-9a-f-]{36}", headers["X-Request-Id"])


@pytest.mark.parametrize("given", ["req_client-0194", "0e6ee2a8-6b3c-4d0e-8a6c-1", "a", "x" * 128])
def test_the_clients_request_id_is_used(api, given):
    reply = api.get(f"/ojs/v1/jobs/{NOBODYS}", headers={"X-Request-Id": given})

    assert reply.headers["X-Request-Id"] == given
    assert refusal(reply)["request_id"] == given


@pytest.mark.parametrize(
    "given", ["", " ", "a b", "a\tb", "a\r\nX-Evil: 1", "\x00", "ümlaut", "x" * 129, "\x7f"]
)
def test_a_request_id_that_does_not_belong_into_a_header_is_replaced(api, given):
    reply = api.get(f"/ojs/v1/jobs/{NOBODYS}", headers={"X-Request-Id": given})

    assert reply.headers["X-Request-Id"].startswith("req_")
    assert "X-Evil" not in reply.headers
    assert refusal(reply)["request_id"] == reply.headers["X-Request-Id"]


def test_two_requests_have_two_ids(api):
    assert api.see("queues").headers["X-Request-Id"] != api.see("queues").headers["X-Request-Id"]


@pytest.mark.parametrize("path", ["/ojs/v1/queues", "/ojs/v1/jobs"])
def test_a_request_may_name_the_extensions_that_it_needs(api, path):
    """OJS extension lifecycle §8.3."""
    there, missing = "urn:ojs:ext:rate-limiting", "urn:ojs:ext:x:acme:gpu"

    for needed, status in ((there, 200), (f"{there}, {missing}", 422)):
        reply = api.get(path, headers={"OJS-Requires-Extension": needed})
        assert reply.status_code == status

    assert refusal(reply)["code"] == "EXTENSION_NOT_SUPPORTED"
    assert refusal(reply)["details"]["extension"] == missing


@pytest.mark.parametrize(
    "version", ["1.0", "1", "1.0.0", "1.0.3", "1.0.0-rc.1", "1.0.0-rc.27", "1.1", ""]
)
def test_versions_we_speak(api, version):
    reply = api.get("/ojs/v1/queues", headers={"OJS-Version": version})

    assert reply.status_code == 200
    assert reply.headers["OJS-Version"] == "1.0"


@pytest.mark.parametrize("version", ["2.0", "0.9", "1.", "2", "latest", "1.0; drop", "١"])
@pytest.mark.parametrize("path", ["/ojs/v1/queues", "/ojs/manifest", "/ojs/v1/health"])
def test_versions_we_do_not_speak_are_unprocessable(api, path, version):
    reply = api.get(path, headers={"OJS-Version": version})

    assert reply.status_code == 422
    error = refusal(reply)
    assert (error["code"], error["details"]) == ("unsupported", {"supported": ["1.0"]})


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, OJS),
        ({"Accept": OJS}, OJS),
        ({"Accept": "*/*"}, OJS),
        ({"Accept": "text/html"}, OJS),
        ({"Accept": "application/json"}, "application/json"),
        ({"Accept": f"application/json, {OJS}"}, OJS),
        ({"OJS-Version": "1.0"}, FOR_SDKS),
        ({"OJS-Version": "1.0", "Accept": OJS}, FOR_SDKS),
        ({"OJS-Version": "1.0", "Accept": "application/json"}, "application/json"),
    ],
)
def test_the_media_type_suits_the_client(api, headers, expected):
    """CLIENTS D1."""
    assert api.get("/ojs/v1/queues", headers=headers).headers["Content-Type"] == expected
    error = api.get("/ojs/v1/nothing", headers=headers)
    assert error.headers["Content-Type"] == expected


@pytest.mark.parametrize(
    "content_type",
    [
        OJS,
        "application/json",
        "Application/JSON",
        f"{OJS}; charset=utf-8",
        "application/json;x=y",
    ],
)
def test_media_types_we_read(api, content_type):
    reply = api.send("jobs", {"type": "a", "args": []}, content_type=content_type)

    assert reply.status_code == 201


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/xml",
        "multipart/form-data; boundary=x",
        "application/jsonx",
        "junk",
    ],
)
def test_other_media_types_are_refused(api, content_type):
    reply = api.send("jobs", {"type": "a", "args": []}, content_type=content_type)

    assert reply.status_code == 400
    error = refusal(reply)
    assert error["code"] == "invalid_request"
    assert error["details"]["supported"] == ["application/json", OJS]
    assert not Job.objects.exists()


def test_everybody_gets_the_job_flat_and_wrapped(api):
    """The Ruby SDK and the public command line read the fields at the top level."""
    job_id = api.pushed()

    plain = api.see(f"jobs/{job_id}").json()
    for_sdks = api.get(f"/ojs/v1/jobs/{job_id}", headers={"OJS-Version": "1.0"}).json()

    assert plain == for_sdks == plain["job"] | {"job": plain["job"]}


# Manifest and health (§8, §21)


def test_the_manifest_says_what_works(api):
    body = api.get("/ojs/manifest").json()

    assert (body["ojs_version"], body["specversion"]) == ("1.0", "1.0")
    assert body["implementation"]["name"] == "django-ojs"
    assert body["implementation"]["language"] == "python"
    assert "http" in body["protocols"]
    assert body["backend"] in ("postgres", "sqlite")
    assert body["conformance_level"] == 4
    assert all(type(value) is bool for value in body["capabilities"].values())
    assert body["endpoints"]["base_url"] == "http://testserver/ojs/v1"


PROMISES = {
    "batch_enqueue": ("POST", "/ojs/v1/jobs/batch"),
    "dead_letter": ("GET", "/ojs/v1/dead-letter"),
    "events": ("GET", "/ojs/v1/events"),
    "cron_jobs": ("GET", "/ojs/v1/cron"),
    "workflows": ("POST", "/ojs/v1/workflows"),
    "schema_validation": ("GET", "/ojs/v1/schemas"),
    "pause_resume": ("POST", "/ojs/v1/queues/default/pause"),
}


@pytest.mark.parametrize("capability", list(PROMISES))
def test_the_manifest_promises_an_endpoint_exactly_if_there_is_one(api, capability):
    promised = api.get("/ojs/manifest").json()["capabilities"][capability]
    method, path = PROMISES[capability]

    assert (api.generic(method, path).status_code != 404) is promised


def test_health_says_ok_once_a_reaper_runs(api):
    from workers.chores import reaper

    body = api.see("health").json()
    assert body["status"] == "degraded"
    assert body["reaper"]["status"] == "unhealthy"

    reaper.sign_of_life("here:1")

    reply = api.see("health")
    body = reply.json()
    assert (reply.status_code, body["status"], body["version"]) == (200, "ok", "1.0")
    assert type(body["uptime_seconds"]) is int
    assert body["backend"]["status"] == "healthy"
    assert type(body["backend"]["latency_ms"]) is int
    assert body["reaper"]["status"] == "healthy"


# Test hooks


def test_a_real_server_cannot_be_reset(api):
    JobFactory()

    assert api.send("admin/reset").status_code == 404
    assert Job.objects.count() == 1


def test_the_public_cases_may_reset_their_server(api, settings):
    settings.OJS = {**settings.OJS, "CONFORMANCE_MODE": True}
    api.pushed()

    assert api.send("admin/reset").json() == {"reset": True}
    assert not Job.objects.exists()
    assert not Queue.objects.exists()
    api.pushed()
    assert Queue.objects.exists()


PROCESSES = {"Endpoint", "Listener", "Reaper", "Sweep", "EventCursor"}
"""What running processes tell of themselves, in names of models."""


def test_a_reset_leaves_neither_jobs_nor_workers_nor_what_became_of_them(api, settings):
    settings.OJS = {**settings.OJS, "CONFORMANCE_MODE": True}
    api.pushed()
    api.fetch(worker_id="w")
    WorkerFactory(worker_id="asked", directive="quiet")
    call_command("fleet", "drain", "--all", stdout=io.StringIO())

    api.send("admin/reset")

    left = {model.__name__ for model in ours() if model._default_manager.exists()}
    assert left <= PROCESSES


def test_every_table_is_emptied_or_kept_for_a_reason():
    emptied = set(conformance.LEFT_BY_CASES)

    kept = {model.__name__ for model in ours() if model not in emptied}
    assert kept == PROCESSES | {"ApiKey"}


def ours():
    return [
        model
        for label in ("ojs_jobs", "ojs_workers")
        for model in apps.get_app_config(label).get_models()
        if not model._meta.proxy
    ]
