"""Forms for jobs and cron jobs, in a real browser: what they say while they are filled in."""

from __future__ import annotations

import pytest
from django.urls import reverse

from jobs.models import CronJob, Job, JobSchema
from tests.factories import JobFactory
from tests.once import once_is_enough

pytestmark = [once_is_enough, pytest.mark.browser, pytest.mark.slow]


def test_json_is_checked_as_it_is_typed(log_in):
    page = log_in()
    page.goto(reverse("admin:ojs_jobs_job_add"))
    args = page.locator("#id_args")
    problem = page.locator(".form-row:has(#id_args) .ojs-said-wrong")
    assert problem.inner_text() == ""

    args.fill("[1,")
    page.locator("#id_args[aria-invalid]").wait_for()
    assert problem.inner_text().startswith("This is not valid JSON: ")
    args.fill('{"a": 1}')
    assert problem.inner_text() == "A JSON array is needed here."
    args.fill("[1]")
    assert problem.inner_text() == ""


def test_the_fields_of_a_type_are_shown_once_it_is_typed_and_the_job_is_made(log_in):
    JobFactory(type="email.send")
    schema = {"properties": {"to": {"type": "string"}}, "required": ["to"]}
    JobSchema.objects.create(type="email.send", version="1", version_number=1, schema=schema)
    page = log_in()
    page.goto(reverse("admin:ojs_jobs_job_add"))

    page.fill("#id_type", "email.send")
    page.locator("text=to: string; required").wait_for()
    page.fill("#id_args", '["ann"]')
    page.click("text=Enqueue the job")

    page.locator(".messagelist .success").wait_for()
    assert Job.objects.filter(type="email.send").count() == 2


def test_the_next_runs_follow_what_is_typed(log_in):
    page = log_in()
    page.goto(reverse("admin:ojs_jobs_cronjob_add"))
    shown = page.locator("[data-ojs-preview]")

    page.fill("#id_timezone", "Asia/Tokyo")
    page.fill("#id_expression", "0 9 * * MON")
    shown.locator("text=At 09:00, on Monday").wait_for()
    assert shown.locator("li").count() == 7, "five runs, and two lines about the zone"
    page.fill("#id_expression", "0 25 * * *")
    page.locator("[data-ojs-preview].ojs-said-wrong").wait_for()
    page.fill("#id_expression", "@daily")
    shown.locator("text=At 00:00, every day").wait_for()
    page.fill("#id_name", "daily")
    page.fill("#id_type", "report.make")
    page.click("[name=_save]")

    page.locator(".messagelist .success").wait_for()
    assert CronJob.objects.get().expression == "@daily"


def test_without_script_a_cron_job_is_made_and_shows_its_next_runs(log_in):
    page = log_in(java_script_enabled=False)
    page.goto(reverse("admin:ojs_jobs_cronjob_add"))
    page.fill("#id_name", "daily")
    page.fill("#id_type", "report.make")
    page.fill("#id_expression", "@daily")

    page.click("[name=_continue]")

    runs = page.locator("[data-ojs-preview] li")
    runs.first.wait_for()
    assert runs.count() == 7


def test_a_type_with_a_schema_has_inputs_that_fill_its_arguments(log_in):
    members = {"to": {"type": "string"}, "how": {"enum": ["fast", "slow"]}}
    schema = {"prefixItems": [{"type": "object", "properties": members, "required": ["to"]}]}
    JobSchema.objects.create(type="email.send", version="1", version_number=1, schema=schema)
    page = log_in()
    page.goto(reverse("admin:ojs_jobs_job_add"))

    page.fill("#id_type", "email.send")
    page.get_by_label("to:", exact=True).fill("ann@example.com")
    page.get_by_label("how:", exact=True).select_option("fast")
    page.click("text=Enqueue the job")

    page.locator(".messagelist .success").wait_for()
    assert Job.objects.get().args == [{"to": "ann@example.com", "how": "fast"}]
