"""Protocol requests take the short way through the project; nothing that concerns them is lost."""

from __future__ import annotations

import pytest
from django.test import Client


@pytest.fixture
def visited(settings):
    """What stands behind the short way notes whom it sees."""
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


def test_an_address_that_is_none_is_told_so_in_the_protocols_own_form(db):
    answer = Client().get("/ojs/v1/nothing")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


def test_plain_http_is_still_sent_to_https(settings, db):
    settings.SECURE_SSL_REDIRECT = True

    assert Client().get("/ojs/manifest").status_code == 301
