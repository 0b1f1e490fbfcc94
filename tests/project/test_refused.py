"""Refused pages of the admin: a page that explains it, and one line in the log."""

from __future__ import annotations

import logging
import re
import sys

import pytest
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.test import Client

from ojs_project.refused import WithoutTraceback
from tests.factories import JobFactory, WorkerFactory
from tests.operators import answer, choose, messages, operator, staff
from workers.models import Worker

pytestmark = pytest.mark.django_db


@pytest.mark.urls("ojs_project.urls")
def test_a_page_that_a_user_may_not_open_says_so_in_the_admin():
    page = staff("view_job").get("/admin/ojs_workers/worker/")

    assert page.status_code == 403
    text = page.content.decode()
    assert "“ops” has no permission" in text
    assert 'id="site-name"' in text and "/admin/ojs_jobs/job/" in text


def test_a_refusal_is_logged_without_a_traceback():
    try:
        raise PermissionDenied
    except PermissionDenied:
        refused = logging.LogRecord("a", 30, "b", 1, "Forbidden", (), sys.exc_info())
    try:
        raise ValueError
    except ValueError:
        broken = logging.LogRecord("a", 40, "b", 1, "Error", (), sys.exc_info())

    assert WithoutTraceback().filter(refused) and WithoutTraceback().filter(broken)
    assert refused.exc_info is None
    assert broken.exc_info is not None


@pytest.mark.parametrize(
    ("make", "url", "danger"),
    [
        (WorkerFactory, "/admin/ojs_workers/worker/{}/change/", ["Drain", "Terminate"]),
        (lambda: JobFactory(dead=True), "/admin/ojs_jobs/deadjob/{}/change/", ["Discard"]),
        (JobFactory, "/admin/ojs_jobs/job/{}/change/", ["Cancel"]),
    ],
)
def test_what_cannot_be_undone_looks_like_it_and_comes_last(make, url, danger):
    row = make()
    key = str(row.pk).replace("_", "_5F")

    text = operator().get(url.format(key)).content.decode()

    buttons = re.findall(r'class="ojs-tool( ojs-danger)?">([^<]+)<', text)
    assert [label for is_danger, label in buttons if is_danger] == danger
    assert [label for _, label in buttons][-len(danger) :] == danger
    assert Worker.objects.count() <= 1


def test_a_form_of_an_earlier_login_is_refused_in_a_page_that_says_what_to_do(settings):
    settings.CSRF_FAILURE_VIEW = "ojs_project.refused.csrf_failure"
    User.objects.create_superuser("ops")
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.get())

    page = client.post("/admin/ojs_workers/worker/", {"action": "quiet"})

    assert page.status_code == 403
    assert "Nothing was done. You have logged in again" in page.content.decode()
    assert 'id="site-name"' in page.content.decode()


def test_a_form_that_is_sent_after_the_session_ended_says_that_nothing_was_done():
    ops = operator()
    worker = WorkerFactory()
    page = choose(ops, "ojs_workers_worker", "quiet", worker)
    ops.logout()

    login = answer(ops, page)

    assert login.request["PATH_INFO"] == "/admin/login/"
    assert messages(login) == [
        "You are no longer logged in. Nothing was done: log in, and do it again."
    ]
    assert Worker.objects.get().directive == ""
