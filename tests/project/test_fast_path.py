"""What comes the short way is answered as Django's handler would answer it."""

from __future__ import annotations

import gzip
import io
import json
import logging
import re
from typing import Any

import pytest
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.test import RequestFactory

from jobs.http.authentication import make_key
from ojs_project.fast_path import FastPath
from ojs_project.middleware import OUR_POLICY
from tests.database import connection

V1 = "/ojs/v1"
JOB = {"type": "email.send", "args": [1]}
ID = "01931f6c-0000-7000-8000-0000000000"
NAMED = {"HTTP_X_REQUEST_ID": "mine"}
MOMENT = re.compile(rb"\d{4}-\d\d-\d\dT[\d:.]+Z|[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f-]{17}")

REQUESTS: dict[str, tuple[str, str, Any, dict[str, str]]] = {
    "a job": ("POST", "jobs", JOB, {}),
    "a job, by an SDK": ("POST", "jobs", JOB, {"HTTP_OJS_VERSION": "1.0"}),
    "no job": ("POST", "jobs", {"type": 1}, {}),
    "jobs": ("POST", "jobs/batch", {"jobs": [JOB, JOB]}, {}),
    "bad JSON": ("POST", "jobs", b"{", {}),
    "an empty body": ("POST", "jobs", b"", {}),
    "another type": ("POST", "jobs", b"a=1", {"CONTENT_TYPE": "text/plain"}),
    "compressed": ("POST", "jobs", gzip.compress(json.dumps(JOB).encode()), {"gzip": ""}),
    "another version": ("POST", "jobs", JOB, {"HTTP_OJS_VERSION": "2.0"}),
    "no key": ("POST", "jobs", JOB, {"HTTP_AUTHORIZATION": ""}),
    "a wrong key": ("POST", "jobs", JOB, {"HTTP_AUTHORIZATION": "Bearer nobody's"}),
    "a fetch": ("POST", "workers/fetch", {"queues": ["default"], "worker_id": "w"}, {}),
    "a fetch of nothing": ("POST", "workers/fetch", {"queues": ["none"]}, {}),
    "an ack of nothing": ("POST", "workers/ack", {"job_id": f"{ID}01"}, {}),
    "acks": ("POST", "workers/ack", {"acks": [{"job_id": f"{ID}01"}]}, {}),
    "a nack at the job's address": ("POST", f"jobs/{ID}01/nack", {"error": "broken"}, {}),
    "a beat": ("POST", "workers/heartbeat", {"worker_id": "w", "state": "running"}, {}),
    "another method": ("GET", "workers/fetch", b"", {}),
    "options": ("OPTIONS", "jobs", b"", {}),
    "a job that is not there": ("GET", f"jobs/{ID}01", b"", {}),
    "a page of events": ("GET", "events?limit=1", b"", {}),
    "a bad page": ("GET", "events?limit=none", b"", {}),
    "a NUL": ("GET", "events?cursor=%00", b"", {}),
    "queues": ("GET", "queues", b"", {"HTTP_ACCEPT": "application/json"}),
    "the head of queues": ("HEAD", "queues", b"", {}),
    "the manifest": ("GET", "../manifest", b"", {}),
    "the metrics": ("GET", "metrics", b"", {}),
    "a stream of nothing": ("GET", f"jobs/{ID}01/progress/stream", b"", {}),
    "the description": ("GET", "openapi.json", b"", {}),
    "its page": ("GET", "docs", b"", {}),
    "nothing": ("GET", "nothing", b"", {}),
    "nothing at all": ("GET", "..", b"", {}),
    "umlauts": ("GET", "jobs/ähm", b"", {}),
    "Flare": ("POST", "../../flare/v1/workers/poll", {}, {}),
    "an end of the line": ("GET", "jobs%0a", b"", {}),
    "another host": ("GET", "../manifest", b"", {"HTTP_HOST": "evil.example"}),
    "a job under another host": ("POST", "jobs", JOB, {"HTTP_HOST": "evil.example"}),
    "another host's page": ("GET", "docs", b"", {"HTTP_HOST": "evil.example"}),
    "nothing under another host": ("GET", "nothing", b"", {"HTTP_HOST": "evil.example"}),
    "Flare under another host": (
        *("POST", "../../flare/v1/workers/poll", {}, {"HTTP_HOST": "evil.example"}),
    ),
}


@pytest.fixture
def application(transactional_db, settings):
    """The project's application, and Django's inside of it."""
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.OJS = {"FLARE": {"ENABLED": True}}
    return FastPath(get_wsgi_application())


def environment(method: str, path: str, body: Any, headers: dict[str, str]) -> dict[str, Any]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    extra = {"CONTENT_TYPE": "application/json"} | headers
    if "gzip" in extra:
        extra["HTTP_CONTENT_ENCODING"] = "gzip"
        del extra["gzip"]
    place = path.removeprefix("../../") if path.startswith("../../") else ""
    full = f"/{place}" if place else f"/ojs/{path[3:]}" if path[:2] == ".." else f"{V1}/{path}"
    asked = RequestFactory().generic(method, full, content, **extra)
    asked.environ["wsgi.input"] = io.BytesIO(content)
    return dict(asked.environ)


def answered(application: Any, environ: dict[str, Any]) -> tuple[str, dict[str, str], bytes]:
    told: list[Any] = []
    parts = application(environ, lambda status, headers: told.append((status, headers)))
    try:
        body = b"".join(parts)
    finally:
        getattr(parts, "close", lambda: None)()
    ((status, headers),) = told
    assert len(headers) == len(dict(headers))
    return status, dict(headers), body


def plain(text: bytes) -> bytes:
    """The text without what is another one each time: moments and ids."""
    return MOMENT.sub(b"", text)


def test_every_kind_of_request_is_answered_alike(application):
    _, key = make_key("any", scopes=["produce", "work", "operate"])
    for name, (method, path, body, headers) in REQUESTS.items():
        said = {"HTTP_AUTHORIZATION": f"Bearer {key}"} | NAMED | headers
        short = answered(application, environment(method, path, body, said))
        long = answered(application._project, environment(method, path, body, said))

        assert short[0] == long[0], name
        assert plain(short[2]) == plain(long[2]), name
        assert plain(json.dumps(short[1], sort_keys=True).encode()) == plain(
            json.dumps(long[1], sort_keys=True).encode()
        ), name


@pytest.mark.parametrize("way", ["short", "long"])
@pytest.mark.parametrize("path", ["../manifest", "health", "jobs", "docs", "nothing"])
def test_a_wrong_host_is_a_bad_request_either_way(application, path, way):
    asked = environment("GET", path, b"", {"HTTP_HOST": "evil.example"})

    status, headers, body = answered(application if way == "short" else application._project, asked)

    assert status == "400 Bad Request"
    assert json.loads(body)["error"]["code"] == "invalid_request"
    assert headers["Content-Security-Policy"] == OUR_POLICY


@pytest.mark.parametrize("way", ["short", "long"])
@pytest.mark.parametrize("headers", [{"HTTP_ORIGIN": "https://evil.example"}, {"CONTENT_TYPE": ""}])
def test_a_page_of_another_site_enqueues_nothing_either_way(application, settings, headers, way):
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    serve = application if way == "short" else application._project

    assert answered(serve, environment("POST", "jobs", JOB, headers))[0][:3] in ("400", "403")
    assert answered(serve, environment("POST", "jobs", JOB, {}))[0] == "201 Created"


def test_the_body_may_come_without_a_length(application, settings):
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    environ = environment("POST", "jobs", JOB, {}) | {"wsgi.input_terminated": True}
    del environ["CONTENT_LENGTH"]

    assert answered(application, environ)[0] == "201 Created"


def test_who_listens_for_requests_hears_of_these_too(application):
    heard: list[str] = []

    def hear(signal, **kwargs):
        heard.append("started" if signal is request_started else "finished")

    request_started.connect(hear)
    request_finished.connect(hear)
    try:
        answered(application, environment("GET", "../manifest", b"", {}))
    finally:
        request_started.disconnect(hear)
        request_finished.disconnect(hear)

    assert heard == ["started", "finished"]


def test_a_refusal_is_logged_as_django_logs_it(application, caplog):
    with caplog.at_level(logging.WARNING, "django.request"):
        answered(application, environment("GET", "nothing", b"", {}))

    (record,) = caplog.records
    assert record.getMessage() == "Not Found: /ojs/v1/nothing"
    assert record.request.path == "/ojs/v1/nothing"


def test_a_connection_that_is_too_old_is_closed_when_the_request_ends(application, monkeypatch):
    connection.ensure_connection()
    connection.close_at = 0

    answered(application, environment("GET", "../manifest", b"", {}))

    assert connection.connection is None


def test_https_is_asked_for_and_promised_as_ever(transactional_db, settings):
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_HSTS_SECONDS = 60
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    application = FastPath(get_wsgi_application())
    asked = environment("GET", "../manifest", b"", {})

    refused = answered(application, dict(asked))
    served = answered(application, asked | {"HTTP_X_FORWARDED_PROTO": "https"})

    assert refused[0] == "301 Moved Permanently"
    assert served[0] == "200 OK"
    assert served[1]["Strict-Transport-Security"] == "max-age=60"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("FORCE_SCRIPT_NAME", "/jobs"),
        ("MIDDLEWARE", ["django.middleware.gzip.GZipMiddleware"]),
    ],
)
def test_what_a_site_puts_before_it_sees_every_request(settings, option, value):
    setattr(settings, option, value)
    seen: list[str] = []

    def project(environ, start_response):
        seen.append(environ["PATH_INFO"])
        return []

    FastPath(project)(environment("GET", "queues", b"", {}), None)

    assert seen == ["/ojs/v1/queues"]
