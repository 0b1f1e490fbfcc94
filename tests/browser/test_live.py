"""Open pages of the admin follow changes, on a server with an event loop."""

from __future__ import annotations

import re

import pytest
from django.conf import settings

import jobs
from jobs import engine
from jobs.models import Job
from tests import processes
from tests.factories import JobFactory, WorkerFactory
from workers import protocol

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

JOBS, WORKERS = "/admin/ojs_jobs/job/", "/admin/ojs_workers/worker/"
STATUS = ".ojs-live"


@pytest.fixture
def follow(log_in, database_url, tmp_path):
    """Open a page of a real server: `follow("/admin/…")`."""
    # With the same key, the session of the tests is valid there.
    environment = processes.environment(database_url, ALLOW_ANONYMOUS=1) | {
        "DJANGO_SECRET_KEY": settings.SECRET_KEY
    }
    with processes.server(tmp_path, environment) as api:
        opened = []

        def open_page(path: str):
            page = log_in()
            opened.append(page)
            page.goto(f"{api.url.replace('127.0.0.1', 'localhost')}{path}")
            page.wait_for_selector(STATUS)
            assert "Live" in page.inner_text(STATUS)
            return page

        yield open_page
        for page in opened:
            # It would try to reach the server after that has ended.
            page.close()


def test_a_job_that_is_completed_changes_on_its_open_page(follow):
    job = JobFactory(active=True, reserved_by="w")
    page = follow(f"{JOBS}{job.pk}/change/")
    assert page.locator("#content-main").get_by_text("active", exact=True).count()

    protocol.ack([protocol.Completion(job.pk, "w", result={"sent": 3})])

    page.locator("#content-main").get_by_text("completed", exact=True).first.wait_for()


def test_rows_of_a_list_change_and_new_ones_come(follow):
    job = JobFactory(active=True, reserved_by="w")
    page = follow(JOBS)
    rows = page.locator("#result_list tbody tr")
    assert rows.count() == 1

    protocol.ack([protocol.Completion(job.pk, "w")])
    rows.get_by_text("completed").first.wait_for()
    jobs.enqueue("email.send")

    rows.nth(1).wait_for()


def test_a_list_rests_while_something_is_selected(follow):
    job = JobFactory(active=True, reserved_by="w")
    page = follow(JOBS)
    page.check("input.action-select")

    protocol.ack([protocol.Completion(job.pk, "w")])

    page.locator(STATUS).get_by_text("Paused").wait_for()
    assert page.locator("#result_list tbody").get_by_text("active").count()
    page.uncheck("input.action-select")
    page.locator("#result_list tbody").get_by_text("completed").first.wait_for()


def focused(page) -> str:
    """The text of the row that has the focus, or what has it if that is in none."""
    return page.evaluate(
        """() => {
            const focused = document.activeElement, row = focused.closest("#result_list tbody tr");
            return row?.querySelector(".field-type").textContent ?? focused.outerHTML;
        }"""
    )


def test_new_rows_leave_the_keyboard_at_its_row(follow):
    for number in range(100):
        JobFactory(type=f"old.{number:02}")
    page = follow(JOBS)
    page.locator("#result_list tbody tr").nth(3).locator("input").focus()
    assert focused(page) == "old.96"

    jobs.enqueue("email.send")
    rows = page.locator("#result_list tbody tr")
    rows.first.get_by_text("email.send").wait_for()
    page.keyboard.press("Space")

    assert rows.count() == 100
    ticked = page.locator("#result_list tbody tr:has(input:checked) .field-type").all_inner_texts()
    assert ticked == ["old.96"]
    page.keyboard.press("Space")
    page.keyboard.press("j")
    jobs.enqueue("email.digest")
    rows.first.get_by_text("email.digest").wait_for()
    page.keyboard.press("j")
    assert focused(page) == "old.94"


def test_a_short_list_grows_without_closing_what_is_open(follow):
    JobFactory(type="first")
    page = follow(JOBS)
    page.get_by_text("Narrow down", exact=True).click()
    page.locator("#result_list tbody a").first.focus()

    jobs.enqueue("email.send")
    page.locator("#result_list tbody").get_by_text("email.send").wait_for()

    assert page.locator(".ojs-fold").get_attribute("open") is not None
    assert focused(page) == "first"
    assert page.locator("#changelist").get_by_text("2 jobs").count()
    # The box of a row that came later counts, and is ticked with all others.
    page.check("#action-toggle")
    assert page.locator("#result_list tbody input:checked").count() == 2
    page.locator(".action-counter", has_text="2 of 2").wait_for()


def test_heartbeats_leave_the_focus_on_the_list_of_workers(follow):
    for name in ("first", "second"):
        protocol.register(name, protocol.Description(queues=["default"]))
    page = follow(WORKERS)
    page.keyboard.press("j")
    page.keyboard.press("j")
    before = page.evaluate("document.activeElement.href")

    protocol.register("third", protocol.Description(queues=["default"]))
    page.get_by_text("third").first.wait_for()

    assert page.evaluate("document.activeElement.href") == before


def test_the_page_of_a_job_keeps_what_is_open_and_waits_for_the_focus(follow):
    job = JobFactory(active=True, reserved_by="w")
    page = follow(f"{JOBS}{job.pk}/change/")
    page.locator("summary", has_text="Limits").click()
    page.locator("button", has_text="Cancel").focus()

    engine.report_progress(job.pk, value=0.5)
    page.locator("progress").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Cancel"

    protocol.ack([protocol.Completion(job.pk, "w")])
    page.locator(STATUS).get_by_text("what has the focus").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Cancel"

    page.locator("summary", has_text="Limits").focus()
    page.locator("#content-main").get_by_text("completed", exact=True).first.wait_for()
    assert (
        page.locator("details", has=page.locator("summary", has_text="Limits")).get_attribute(
            "open"
        )
        is not None
    )
    assert page.evaluate("document.activeElement.textContent.trim()") == "Limits"


def test_a_worker_that_arrives_is_seen_on_the_open_list(follow):
    WorkerFactory(worker_id="first")
    page = follow(WORKERS)

    protocol.register("second", protocol.Description(queues=["default"]))

    page.get_by_text("second").first.wait_for()


def test_the_page_of_a_server_without_a_loop_says_nothing(log_in):
    job = JobFactory()
    page = log_in()

    page.goto(f"{JOBS}{job.pk}/change/")
    with page.expect_response(re.compile("/live/")):
        page.reload()

    assert page.locator(STATUS).is_hidden()
    engine.cancel(job.pk)
    assert Job.objects.get().state == "cancelled"


def test_a_page_whose_session_has_ended_says_that_it_is_not_live(follow):
    JobFactory(active=True, reserved_by="w")
    page = follow(JOBS)

    page.context.clear_cookies()
    jobs.enqueue("email.send")

    page.locator(STATUS).get_by_text("you are logged out").wait_for()


def test_the_page_of_a_dead_job_that_was_retried_says_that_it_is_gone(follow):
    job = JobFactory(dead=True)
    page = follow(f"/admin/ojs_jobs/deadjob/{job.pk}/change/")

    engine.retry([job.pk])

    page.locator(STATUS).get_by_text("this page is gone").wait_for()
