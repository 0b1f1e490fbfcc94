"""First page of an operator: the dashboard under the project's name, or the first steps."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import pytest
from django.test import Client

from tests.factories import JobFactory, QueueFactory
from tests.operators import staff

pytestmark = [pytest.mark.django_db, pytest.mark.urls("ojs_project.urls")]


def test_the_dashboard_is_the_start_page_under_the_projects_own_name(admin_client):
    assert admin_client.get("/").url == "/admin/"

    page = admin_client.get("/admin/?range=24h")

    text = page.content.decode()
    assert page.templates[0].name == "admin/ojs/dashboard.html"
    assert "OJS for Django</a>" in text and "Django administration" not in text
    assert '<a href="/ojs/v1/docs">View site</a>' in text
    assert page.context["range"] == "24h"
    assert admin_client.get("/ojs/v1/docs").status_code == 200


def test_who_may_not_look_at_it_starts_at_the_index_and_strangers_log_in():
    page = staff("view_job").get("/admin/")

    assert page.templates[0].name == "admin/ojs/index.html"
    assert "/admin/ojs_jobs/job/" in page.content.decode()
    assert Client().get("/admin/").url == "/admin/login/?next=/admin/"


@pytest.mark.parametrize(
    ("level", "found"), [("DEBUG", "INFO"), ("INFO", "INFO"), ("ERROR", "ERROR")]
)
def test_at_no_level_the_log_has_what_a_page_shows_once_or_headers_with_keys(level, found):
    script = "from ojs_project.settings import LOGGING as log; print(log['loggers'])"
    environment = os.environ | {"DJANGO_LOG_LEVEL": level, "DJANGO_DEBUG": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )

    loggers = ast.literal_eval(ended.stdout)
    for name in ("django.template", "uvicorn.error"):
        assert loggers[name]["level"] == found


def test_a_browser_finds_the_icon_where_it_looks(client):
    assert client.get("/favicon.ico").url.endswith("/ojs/favicon.svg")


@pytest.mark.parametrize("is_open", [True, False])
def test_an_empty_installation_shows_what_to_do_next(admin_client, settings, is_open):
    settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": is_open}

    text = admin_client.get("/admin/", HTTP_HOST="localhost").content.decode()

    assert "curl -X POST http://localhost/ojs/v1/jobs" in text
    assert "requests.post(&quot;http://localhost/ojs/v1/jobs&quot;" in text
    assert (
        "/admin/ojs_jobs/apikey/add/"
        in text.split('aria-labelledby="ojs-first"')[1].split("</section>")[0]
    ) is (not is_open)
    assert "ojs-chart" not in text.split('id="content-main"')[1]


def test_with_the_first_job_there_are_figures_instead(admin_client):
    QueueFactory(name="default")
    JobFactory()

    page = admin_client.get("/admin/")

    assert page.context["first_steps"] is None
    assert "ojs-first" not in page.content.decode()
