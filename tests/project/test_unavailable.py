"""While the database is unavailable, a browser gets a page that says so and needs no database."""

from __future__ import annotations

import logging

import pytest
from django.db import IntegrityError, OperationalError
from django.test import Client

from ojs_project import unavailable
from ojs_project.middleware import OUR_POLICY
from tests.database import connection

SECRET = "password=hunter2 host=10.0.0.7"


@pytest.fixture(autouse=True)
def begin_anew():
    unavailable._known.clear()


def failing(kind: type[Exception]):
    def fail(execute, sql, parameters, many, context):
        raise kind(SECRET)

    return connection.execute_wrapper(fail)


@pytest.fixture
def browser(admin_client):
    admin_client.raise_request_exception = False
    return admin_client


@pytest.mark.parametrize("path", ["/admin/", "/admin/ojs_jobs/job/", "/admin/logout/"])
def test_a_page_says_what_is_the_matter_and_loads_itself_again(browser, path):
    with failing(OperationalError):
        page = browser.get(path) if "logout" not in path else browser.post(path)

    assert page.status_code == 503
    assert int(page["Retry-After"]) >= 1
    assert page["Content-Security-Policy"] == OUR_POLICY
    assert "no-store" in page["Cache-Control"]
    text = page.content.decode()
    assert "The database is unreachable." in text
    assert ('http-equiv="refresh"' in text) is ("logout" not in path)
    # Nothing that the policy forbids, and nothing about the site.
    assert "<style" not in text and "style=" not in text and "onclick" not in text
    assert SECRET not in text


def test_what_was_sent_is_not_sent_again_by_itself(browser):
    with failing(OperationalError):
        page = browser.post("/admin/ojs_jobs/queue/?q=mail", {"action": "pause"})

    text = page.content.decode()
    assert 'http-equiv="refresh"' not in text
    assert "may have been carried out or not" in text
    assert 'href="/admin/ojs_jobs/queue/?q=mail"' in text


def test_it_is_logged_once_and_without_a_traceback_until_pages_are_answered_again(browser, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(2):
        with failing(OperationalError):
            for _ in range(3):
                browser.get("/admin/")
                # This page needs no database, and does not reveal its state.
                assert Client().get("/admin/login/").status_code == 200
        assert browser.get("/admin/").status_code == 200

    lines = [(line.levelname, line.getMessage()) for line in caplog.records]
    assert [level for level, text in lines if "Pages are answered" in text] == ["ERROR", "INFO"] * 2
    assert [text for _, text in lines if "Service Unavailable" in text] == []
    assert not any(line.exc_info for line in caplog.records)


@pytest.mark.parametrize("debug", [False, True])
def test_a_database_that_fails_outside_of_a_view_is_answered_alike(db, settings, debug):
    """For example in a site's middleware, or when Django saves a session."""
    settings.DEBUG = debug
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.ask_first"]
    page = Client(raise_request_exception=False).get("/admin/login/")

    assert page.status_code == (500 if debug else 503)
    if not debug:
        assert "The database is unreachable." in page.content.decode()


def ask_first(get_response):
    def ask(request):
        raise OperationalError(SECRET)

    return ask


def test_another_error_stays_one(browser):
    """A statement that the database rejects is a bug, and would be rejected again."""
    with failing(IntegrityError):
        page = browser.get("/admin/")

    assert page.status_code == 500
