"""Admin as an operator sees it, in a real browser."""

from __future__ import annotations

import pytest
from django.utils import timezone

from jobs import engine
from jobs.models import Event, Job
from jobs.spec.lifecycle import State
from jobs.spec.workflow_plans import plan_of
from tests.factories import JobErrorFactory, JobFactory, WorkerFactory, ago
from tests.ojs_client import OJSClient
from tests.once import once_is_enough
from workers.models import Worker

pytestmark = [once_is_enough, pytest.mark.browser, pytest.mark.slow]


def listed(page):
    """How many rows the list shows."""
    return page.locator("#result_list tbody tr").count()


def tick(page, text):
    page.locator("#result_list tr", has_text=text).locator("input.action-select").check()


def choose(page, action):
    page.select_option("select[name=action]", action)
    page.click("button[name=index]")


@pytest.mark.parametrize("script", [True, False], ids=["script", "no_script"])
def test_an_operator_quiets_a_worker(log_in, settings, script):
    settings.OJS = {"ALLOW_ANONYMOUS": True}
    worker = WorkerFactory(worker_id="web_1/a", labels=["blue"])
    WorkerFactory(worker_id="web_2/b", labels=["green"])
    held = JobFactory(active=True, reserved_by=worker.pk, type="report.render")

    page = log_in(java_script_enabled=script)
    page.goto("/admin/")
    page.get_by_role("link", name="Workers", exact=True).click()
    page.click(".ojs-fold > summary")
    page.click("#changelist-filter >> text=blue")
    page.wait_for_url("**/?label=blue")
    assert listed(page) == 1
    tick(page, "web_1/a")
    choose(page, "quiet")

    confirmation = page.locator("#content")
    assert "web_1/a" in confirmation.inner_text()
    assert f"report.render {held.pk}" in confirmation.inner_text()
    page.fill("[name=reason]", "Deploy 42")
    page.click("text=Quiet these workers")

    message = page.locator(".messagelist .success").inner_text()
    assert message == "1 worker will be told “quiet” at its next heartbeat."
    beat = {"worker_id": worker.pk, "state": "running"}
    assert OJSClient().send("workers/heartbeat", beat).json()["state"] == "quiet"
    page.click("#convergence >> text=web_1/a")
    page.get_by_role("link", name="History").click()
    page.wait_for_url("**/history/**")
    assert "Directed to “quiet”. Reason: Deploy 42" in page.locator("#content").inner_text()


def test_an_operator_thinks_better_of_it(log_in):
    WorkerFactory(worker_id="web_1/a")

    page = log_in()
    page.goto("/admin/ojs_workers/worker/web_5F1_2Fa/change/")
    page.click("button:has-text('Terminate')")
    page.click("text=No, take me back")

    page.wait_for_url("**/web_5F1_2Fa/change/")
    assert Worker.objects.get().directive == ""


def test_an_operator_retries_the_dead_letter(log_in):
    jobs = [JobFactory(dead=True) for _ in range(3)]
    for job in jobs:
        JobErrorFactory(job=job, type="smtp_down")

    page = log_in()
    page.goto("/admin/")
    page.get_by_role("link", name="Dead letter", exact=True).click()
    page.wait_for_url("**/deadjob/")
    assert page.locator("#result_list >> text=smtp_down").count() == 3
    for job in jobs[:2]:
        tick(page, str(job.pk)[-12:])
    choose(page, "retry")
    page.fill("[name=reason]", "The mail server is back")
    page.click("text=Retry these jobs")

    message = page.locator(".messagelist .success").inner_text()
    assert message == "2 jobs are available again, with fresh attempts."
    assert listed(page) == 1
    assert Job.objects.filter(state=State.AVAILABLE).count() == 2


def test_an_operator_makes_a_key_and_sees_it_once(log_in):
    page = log_in()
    page.goto("/admin/ojs_jobs/apikey/add/")
    page.fill("#id_name", "ci")
    page.check("text=Produce")
    page.click("[name=_save]")

    key = page.locator("#key").inner_text()
    assert OJSClient(key).push().status_code == 201
    page.click("text=I have copied it")
    assert key not in page.content()


@pytest.mark.parametrize(
    ("url", "columns"),
    [
        ("/admin/ojs_workers/worker/", ["who", "label_list", "queue_list"]),
        ("/admin/ojs_jobs/job/", ["short_id", "worker", "short_args"]),
        ("/admin/ojs_jobs/deadjob/", ["short_id", "last_error"]),
        ("/admin/ojs_jobs/event/", ["about", "worker"]),
    ],
)
def test_the_decisive_columns_are_in_the_window_and_ids_in_one_line(log_in, url, columns):
    long = "0192f3c8-7d00-7abc-9def-0123456789ab"
    WorkerFactory(worker_id=long, labels=["blue", "eu-central"], queues=["mail", "default"])
    JobFactory(active=True, reserved_by=long, args=["x" * 200])
    JobErrorFactory(job=JobFactory(dead=True, finished_by=long), message="It broke. " * 20)
    job = JobFactory()
    event = {"type": "job.started", "subject": str(job.pk), "worker_id": long}
    Event.objects.create(time=ago(1), queue="default", job_type="t", **event)

    page = log_in(viewport={"width": 1280, "height": 900})
    page.goto(url)

    for column in columns:
        box = page.locator(f"#result_list tbody .field-{column}").first.bounding_box()
        assert box["x"] + box["width"] <= 1280, column
    for box in page.locator("#result_list .ojs-id").all():
        assert box.bounding_box()["height"] < 24
        assert box.get_attribute("title")


@pytest.mark.parametrize("width", [390, 800, 1200])
def test_buttons_cover_no_part_of_a_long_title(log_in, width):
    job = JobFactory(type="billing.invoices.render_quarterly_statement")

    page = log_in(viewport={"width": width, "height": 900})
    page.goto(f"/admin/ojs_jobs/job/{job.pk}/change/")

    title = page.locator("#content h2").first.bounding_box()
    buttons = page.locator(".object-tools").locator("a, button").all()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert len(buttons) >= 3
    for button in buttons:
        box = button.bounding_box()
        is_beside = box["x"] >= title["x"] + title["width"]
        assert is_beside or box["y"] >= title["y"] + title["height"]


def test_a_narrow_window_has_room_for_every_button(log_in):
    worker = WorkerFactory(worker_id="web-1")

    page = log_in(viewport={"width": 390, "height": 900})
    page.goto(f"/admin/ojs_workers/worker/{worker.pk}/change/")

    tools = page.locator(".object-tools").bounding_box()
    buttons = page.locator(".object-tools").locator("a, button").all()
    assert [button.inner_text() for button in buttons][-2:] == ["TERMINATE", "HISTORY"]
    for button in buttons:
        box = button.bounding_box()
        assert box["x"] + box["width"] <= tools["x"] + tools["width"] <= 390
        assert box["y"] + box["height"] <= tools["y"] + tools["height"] + 1


def test_a_long_name_breaks_on_the_page_of_a_workflow(log_in):
    job = {"type": "email.send", "args": []}
    document = {"type": "group", "name": "x" * 250, "jobs": [job]}
    workflow = engine.create_workflow(plan_of(document, timezone.now()))

    page = log_in(viewport={"width": 390, "height": 900})
    page.goto(f"/admin/ojs_jobs/workflow/{workflow.pk}/change/")

    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for part in (".breadcrumbs", ".field-name .readonly"):
        shown = page.locator(part).first
        assert shown.evaluate("each => each.scrollWidth <= each.clientWidth"), part


def test_an_id_that_turns_its_text_turns_nothing_beside_it(log_in):
    JobFactory(active=True, reserved_by="web-\u202e1")
    page = log_in(viewport={"width": 1280, "height": 900})

    page.goto("/admin/ojs_jobs/job/")

    name = page.locator("#result_list .field-worker .ojs-id").bounding_box()
    copy = page.locator("#result_list .field-worker .ojs-copy").bounding_box()
    assert copy["y"] == name["y"]
    assert copy["x"] >= name["x"] + name["width"]


def test_a_list_is_passed_without_a_step_for_each_row(log_in):
    JobFactory.create_batch(101)
    page = log_in(viewport={"width": 1280, "height": 900})
    page.goto("/admin/ojs_jobs/job/")
    page.locator("select[name=action]").focus()

    page.keyboard.press("Shift+Tab")
    page.locator(".ojs-skip:focus").wait_for()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")

    assert page.evaluate("document.activeElement.textContent") == "older ›"


def test_an_id_is_copied_whole(log_in):
    job = JobFactory()

    page = log_in()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/admin/ojs_jobs/job/")
    page.click("#result_list .ojs-copy")

    page.locator(".ojs-copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == str(job.pk)
