"""Protocol requests bypass what is made for browsers, without losing what concerns them."""

from __future__ import annotations

import logging
import secrets

import pytest
from django.test import Client

from ojs_project.middleware import OUR_POLICY


@pytest.fixture
def visited(settings):
    """The middleware after ours records which requests it sees."""
    seen: list[str] = []

    def middleware(get_response):
        def note(request):
            seen.append(request.path)
            return get_response(request)

        return note

    globals()["note"] = middleware
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.note"]
    return seen


def test_workers_and_producers_pass_by_what_is_made_for_browsers(visited, api):
    client = Client(enforce_csrf_checks=True)

    answer = client.post(
        "/ojs/v1/jobs", {"type": "email.send", "args": []}, content_type="application/json"
    )

    assert answer.status_code == 201
    assert visited == []
    assert answer.cookies == {}
    assert int(answer["Content-Length"]) == len(answer.content)
    assert answer["X-Content-Type-Options"] == "nosniff"


def test_operators_do_not(visited, admin_client):
    answer = admin_client.get("/admin/")

    assert visited == ["/admin/"]
    assert answer["X-Frame-Options"] == "DENY"


def test_an_unknown_address_is_refused_in_the_protocols_own_form(db):
    answer = Client().get("/ojs/v1/nothing")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", ["/flare/v1", "/flare/v1/jobs", "/flare/v1/workers/poll"])
def test_so_is_an_address_of_flare_where_that_is_off(db, settings, path):
    settings.OJS = settings.OJS | {"FLARE": {"ENABLED": False}}

    answer = Client(enforce_csrf_checks=True).post(path, {}, content_type="application/json")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_plain_http_is_still_sent_to_https(settings, db):
    settings.SECURE_SSL_REDIRECT = True

    assert Client().get("/ojs/manifest").status_code == 301


PATHS = ["/", "/health", "/admin/login/", "/static/admin/css/base.css", "/nothing", "/ojs/v1/docs"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("debug", [True, False])
def test_a_host_that_is_not_ours_is_refused_on_every_path(db, settings, path, debug):
    settings.ALLOWED_HOSTS = ["jobs.example.com"]
    settings.DEBUG = debug
    # Code of Django's that would access the host and cause a traceback.
    settings.SECURE_SSL_REDIRECT = True

    refused = Client().get(path, HTTP_HOST="evil.example")

    assert refused.status_code == 400
    assert b"does not answer to the host 'evil.example'" in refused.content
    assert b"Traceback" not in refused.content


def test_a_wrong_host_is_logged_once(db, settings, caplog):
    settings.ALLOWED_HOSTS = ["jobs.example.com"]
    first, second = (f"{secrets.token_hex(4)}.example" for _ in range(2))
    with caplog.at_level(logging.INFO):
        for host in (first, first, second, first):
            Client().get("/ojs/manifest", HTTP_HOST=host)
            Client().get("/admin/", HTTP_HOST=host)

    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert [first in caplog.text, second in caplog.text] == [True, True]
    assert all(record.exc_info is None for record in caplog.records)


@pytest.mark.parametrize("path", [*PATHS, "/ojs/manifest", "/ojs/v1/openapi.json"])
def test_every_response_carries_the_policy(db, path):
    assert Client().get(path)["Content-Security-Policy"] == OUR_POLICY


def test_a_view_may_have_a_policy_of_its_own(rf):
    from django.http import HttpResponse

    from ojs_project.middleware import PolicyMiddleware

    own = HttpResponse(headers={"Content-Security-Policy": "default-src 'none'"})

    answer = PolicyMiddleware(lambda request: own)(rf.get("/"))

    assert answer["Content-Security-Policy"] == "default-src 'none'"


def test_djangos_own_pages_about_an_error_work_in_debug(db, settings):
    settings.DEBUG = True

    page = Client().get("/nothing")

    assert page.status_code == 404
    assert "Content-Security-Policy" not in page


def test_pages_are_compressed_and_streams_are_sent_as_they_come(admin_client):
    page = admin_client.get("/admin/ojs_jobs/job/", HTTP_ACCEPT_ENCODING="gzip")
    export = admin_client.get("/admin/ojs_jobs/job/csv/", HTTP_ACCEPT_ENCODING="gzip")

    assert page.headers["Content-Encoding"] == "gzip"
    assert len(page.content) < 50_000
    assert export.streaming and "Content-Encoding" not in export.headers
