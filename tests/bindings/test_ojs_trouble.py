"""An unavailable database, bugs in the server, and unusual settings of the host site."""

from __future__ import annotations

from functools import partial
from unittest.mock import Mock

import pytest
from django.contrib.auth.models import AnonymousUser
from django.db import DatabaseError, InterfaceError, OperationalError, connections
from django.urls import resolve

from jobs.http.authentication import make_key
from jobs.models import Job, RefusedFinish
from jobs.store import outages
from tests.database import connection
from tests.factories import JobFactory
from tests.ojs_client import refusal

SECRET = "password=hunter2 host=10.0.0.7"
REQUESTS = [
    ("POST", "jobs", b'{"type":"a","args":[]}'),
    ("GET", "queues", b""),
    ("GET", "jobs/019414d4-0000-7000-8000-000000000000", b""),
    ("POST", "workers/fetch", b'{"queues":["default"],"worker_id":"w"}'),
    ("POST", "workers/heartbeat", b'{"worker_id":"w"}'),
    ("POST", "workers/ack", b'{"job_id":"019414d4-0000-7000-8000-000000000000"}'),
]


@pytest.fixture
def broken(request):
    """Every statement fails, in the way that the test names."""

    def fail(execute, sql, parameters, many, context):
        raise request.param(SECRET)

    return connection.execute_wrapper(fail)


@pytest.mark.parametrize("broken", [OperationalError, InterfaceError], indirect=True)
@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_an_unreachable_database_is_said_to_be_worth_another_try(api, broken, method, path, body):
    """HTTP §16.2, ERR-006: 503 with `Retry-After`."""
    with broken:
        reply = api.generic(method, f"/ojs/v1/{path}", body, content_type="application/json")

    assert reply.status_code == 503
    error = reply.json()["error"]
    assert (error["code"], error["retryable"]) == ("backend_error", True)
    assert error["request_id"] == reply.headers["X-Request-Id"]
    assert int(reply.headers["Retry-After"]) >= 1
    assert SECRET.encode() not in reply.content


@pytest.mark.parametrize("broken", [OperationalError], indirect=True)
@pytest.mark.parametrize("is_fast", [True, False])
def test_the_log_has_one_line_and_later_a_count(
    api, settings, monkeypatch, caplog, broken, is_fast
):
    settings.OJS = settings.OJS | {"FAST_PATH": is_fast}
    ends = []
    monkeypatch.setattr(outages, "EVERY", 60)
    monkeypatch.setattr(
        outages.threading, "Timer", lambda every, call, args: ended(ends, call, args)
    )
    with broken:
        for method, path, body in REQUESTS:
            api.generic(method, f"/ojs/v1/{path}", body, content_type="application/json")
        (end,) = ends
        end()
        api.see("queues")

    count = len(REQUESTS) - 1
    assert [record.getMessage() for record in caplog.records] == [
        f"The database is unreachable. {SECRET}",
        f"The database is unreachable. {count} more requests were refused within 60 s.",
        f"The database is unreachable. {SECRET}",
    ]


def ended(ends, call, args):
    """A timer whose time is up when the test says so."""
    ends.append(partial(call, *args))
    return Mock()


@pytest.mark.parametrize("broken", [OperationalError, InterfaceError], indirect=True)
def test_health_says_that_the_database_is_away(api, broken):
    with broken:
        reply = api.see("health")

    assert reply.status_code == 503
    assert int(reply.headers["Retry-After"]) >= 1
    body = reply.json()
    assert (body["status"], body["backend"]["status"]) == ("degraded", "unhealthy")
    assert SECRET.encode() not in reply.content


@pytest.mark.parametrize("broken", [OperationalError, InterfaceError], indirect=True)
def test_the_manifest_needs_no_database(api, broken):
    with broken:
        assert api.get("/ojs/manifest").status_code == 200


@pytest.mark.parametrize(
    "broken", [DatabaseError, RuntimeError, KeyError, ValueError], indirect=True
)
@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_a_bug_is_answered_in_the_ojs_form_and_gives_nothing_away(api, broken, method, path, body):
    with broken:
        reply = api.generic(method, f"/ojs/v1/{path}", body, content_type="application/json")

    assert reply.status_code == 500
    error = reply.json()["error"]
    assert error["code"] == "backend_error"
    assert type(error["retryable"]) is bool
    assert reply.headers["OJS-Version"] == "1.0"
    assert b"hunter2" not in reply.content


# Inside a host site


@pytest.fixture
def atomic_requests(transactional_db, settings, monkeypatch):
    """A site that begins a transaction for each request, in each of its databases."""
    # Without the stand-alone project's bypass around Django's handler, which begins it.
    settings.MIDDLEWARE = [each for each in settings.MIDDLEWARE if "ProtocolMiddleware" not in each]
    for database in connections.all():
        monkeypatch.setitem(database.settings_dict, "ATOMIC_REQUESTS", True)


def test_no_request_holds_a_transaction_although_the_site_begins_one_for_each(api, atomic_requests):
    """It would last for as long as a fetch waits for jobs."""
    held = []

    def look(execute, sql, parameters, many, context):
        held.append(connection.in_atomic_block)
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(look):
        assert api.see("queues").status_code == 200

    assert held and not any(held)


def test_a_refusal_is_remembered_although_the_site_rolls_back_what_failed(api, atomic_requests):
    job = JobFactory(active=True, reserved_by="worker-1")

    reply = api.ack(job.pk, worker_id="worker-2")

    assert reply.status_code == 409
    assert RefusedFinish.objects.count() == 1


@pytest.mark.parametrize("fast_path", [True, False])
def test_the_sites_own_rest_framework_settings_change_nothing(api, settings, fast_path):
    settings.OJS = settings.OJS | {"FAST_PATH": fast_path}
    nonsense = "nowhere.Nothing"
    settings.REST_FRAMEWORK = {
        "DEFAULT_AUTHENTICATION_CLASSES": [nonsense],
        "DEFAULT_PERMISSION_CLASSES": [nonsense],
        "DEFAULT_THROTTLE_CLASSES": [nonsense],
        "DEFAULT_PARSER_CLASSES": [nonsense],
        "DEFAULT_RENDERER_CLASSES": [nonsense],
        "DEFAULT_CONTENT_NEGOTIATION_CLASS": nonsense,
        "DEFAULT_VERSIONING_CLASS": nonsense,
        "DEFAULT_METADATA_CLASS": nonsense,
        "DEFAULT_PAGINATION_CLASS": nonsense,
        "EXCEPTION_HANDLER": nonsense,
        "UNAUTHENTICATED_USER": nonsense,
        "FORMAT_SUFFIX_KWARG": "job_id",
        "URL_FORMAT_OVERRIDE": "wait",
        "NON_FIELD_ERRORS_KEY": "x",
    }

    job = api.pushed()
    assert len(api.fetch()) == 1
    assert api.see(f"jobs/{job}/result", wait="false").status_code == 200
    assert refusal(api.see("admin/jobs", format="xml"))["details"]["field"] == "format"
    assert refusal(api.see("nothing"))["code"] == "not_found"
    assert refusal(api.push(args=1))["code"] == "invalid_request"
    assert api.put("/ojs/v1/jobs").status_code == 405


def test_a_key_is_no_user_of_the_site(rf, db):
    """Later code of the site still finds the user that it found before."""
    _, key = make_key("producer", scopes=["produce"])
    for method, path in (("GET", "/ojs/v1/queues"), ("POST", "/ojs/v1/jobs")):
        request = rf.generic(method, path, headers={"Authorization": f"Bearer {key}"})
        visitor = request.user = AnonymousUser()

        resolve(path).func(request)

        assert request.user is visitor


def test_the_sites_upload_limits_and_slashes_change_nothing(api, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    settings.DATA_UPLOAD_MAX_NUMBER_FIELDS = 0
    settings.APPEND_SLASH = True

    assert api.push(args=["x" * 1000]).status_code == 201
    reply = api.see("queues/")
    assert reply.status_code == 404
    refusal(reply)


def test_a_visitor_who_is_logged_in_has_no_more_rights(client, admin_client, db):
    """The admin's session is not a key: otherwise any page could make a browser enqueue."""
    for visitor in (client, admin_client):
        reply = visitor.post("/ojs/v1/jobs", b'{"type":"a","args":[]}', content_type="text/plain")
        assert reply.status_code == 401
    assert not Job.objects.exists()
