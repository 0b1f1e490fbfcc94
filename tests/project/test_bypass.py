"""Hot requests bypass Django's handler, without losing any effect of it or of the middleware.

`test_fast_path` shows that the responses are the same.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application

from ojs_project.bypass import Bypass
from ojs_project.middleware import OUR_POLICY
from tests.database import connection

from .wsgi import answered, environment

JOB = {"type": "email.send", "args": [1]}
FLARE_JOB = {"job_type": "email.send", "payload": {}}


def enqueue(body: Any = JOB, **headers: str) -> dict[str, Any]:
    return environment("POST", "/ojs/v1/jobs", body, headers)


@pytest.fixture
def project():
    """Django's application, which records its requests."""
    serve = get_wsgi_application()

    def note(environ, start_response):
        note.seen.append(environ["PATH_INFO"])
        return serve(environ, start_response)

    note.seen = []
    return note


@pytest.fixture
def application(transactional_db, settings, project):
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.OJS = {"ALLOW_ANONYMOUS": True, "FLARE": {"ENABLED": True}}
    return Bypass(project)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/ojs/v1/jobs", JOB),
        ("/ojs/v1/jobs/batch", {"jobs": [JOB]}),
        ("/ojs/v1/workers/fetch", {"queues": ["default"]}),
        ("/ojs/v1/jobs/fetch", {"queues": ["default"]}),
        ("/ojs/v1/workers/heartbeat", {"worker_id": "w"}),
        ("/ojs/v1/workers/ack", {"acks": []}),
        ("/ojs/v1/workers/nack", {"nacks": []}),
        ("/ojs/v1/jobs/01931f6c-0000-7000-8000-000000000001/ack", {}),
        ("/flare/v1/jobs", FLARE_JOB),
        ("/flare/v1/workers/poll", {"worker_id": "w", "queues": ["default"], "capacity": 1}),
        ("/flare/v1/workers/ack", {}),
        ("/flare/v1/workers/heartbeat", {}),
    ],
)
def test_the_hot_verbs_do_not_come_to_django(application, project, path, body):
    status, headers, _ = answered(application, environment("POST", path, body, {}))

    assert project.seen == []
    assert status[:3] in ("200", "201", "400", "404")
    assert headers["Content-Security-Policy"] == OUR_POLICY
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/ojs/v1/jobs"), ("POST", "/ojs/v1/workers/register"), ("GET", "/admin/login/")],
)
def test_everything_else_does(application, project, method, path):
    answered(application, environment(method, path, b"", {}))

    assert project.seen == [path]


def test_switched_off_everything_comes_to_django(application, project, settings):
    settings.OJS = {"ALLOW_ANONYMOUS": True, "FAST_PATH": False}

    assert answered(application, enqueue())[0] == "201 Created"
    assert project.seen == ["/ojs/v1/jobs"]


def test_a_wrong_host_is_left_to_django(application, project):
    status, headers, body = answered(application, enqueue(HTTP_HOST="evil.example"))

    assert project.seen == ["/ojs/v1/jobs"]
    assert status == "400 Bad Request"
    assert json.loads(body)["error"]["code"] == "invalid_request"
    assert headers["Content-Security-Policy"] == OUR_POLICY


def test_the_body_may_come_without_a_length(application, project):
    environ = enqueue() | {"wsgi.input_terminated": True}
    del environ["CONTENT_LENGTH"]

    assert answered(application, environ)[0] == "201 Created"
    assert project.seen == []


def test_listeners_to_the_signals_of_requests_hear_of_these_too(application, project):
    heard: list[str] = []

    def hear(signal, **kwargs):
        heard.append("started" if signal is request_started else "finished")

    request_started.connect(hear)
    request_finished.connect(hear)
    try:
        answered(application, enqueue())
    finally:
        request_started.disconnect(hear)
        request_finished.disconnect(hear)

    assert heard == ["started", "finished"]
    assert project.seen == []


def test_a_refusal_is_logged_as_django_logs_it(application, project, caplog):
    with caplog.at_level(logging.WARNING, "django.request"):
        answered(application, enqueue({"type": 1}))
        answered(project, enqueue({"type": 1}))

    ours, djangos = caplog.records
    assert ours.getMessage() == djangos.getMessage() == "Bad Request: /ojs/v1/jobs"
    assert (ours.status_code, ours.levelname) == (djangos.status_code, djangos.levelname)
    assert ours.request.path == djangos.request.path == "/ojs/v1/jobs"


def test_a_connection_that_is_too_old_is_closed_when_the_request_ends(application, project):
    connection.ensure_connection()
    connection.close_at = 0

    answered(application, enqueue({"type": 1}))

    assert connection.connection is None
    assert project.seen == []


def test_https_is_asked_for_and_promised_as_ever(application, project, settings):
    settings.SECURE_SSL_REDIRECT = True
    settings.SECURE_HSTS_SECONDS = 60
    settings.SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")
    # The middleware has read the settings already.
    application = Bypass(get_wsgi_application())

    refused = answered(application, enqueue())
    served = answered(application, enqueue(HTTP_X_FORWARDED_PROTO="https"))

    assert refused[0] == "301 Moved Permanently"
    assert served[0] == "201 Created"
    assert served[1]["Strict-Transport-Security"] == "max-age=60"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("FORCE_SCRIPT_NAME", "/jobs"),
        ("MIDDLEWARE", ["django.middleware.gzip.GZipMiddleware"]),
    ],
)
def test_what_a_site_puts_before_it_sees_every_request(project, settings, db, option, value):
    setattr(settings, option, value)

    answered(Bypass(project), enqueue())

    assert project.seen == ["/ojs/v1/jobs"]
