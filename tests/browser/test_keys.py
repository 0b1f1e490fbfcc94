"""The admin by keyboard alone, in a real browser."""

from __future__ import annotations

import pytest
from django.urls import reverse

from tests.factories import JobFactory, QueueFactory
from tests.once import once_is_enough

pytestmark = [once_is_enough, pytest.mark.browser, pytest.mark.slow]

FOCUSED = "document.activeElement.closest('tr')?.rowIndex ?? document.activeElement.id"


def test_rows_and_the_search_box_are_reached_by_a_key(log_in):
    for _ in range(3):
        JobFactory()
    page = log_in()
    page.goto(reverse("admin:ojs_jobs_job_changelist"))

    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate(FOCUSED) == 2
    page.keyboard.press("k")
    assert page.evaluate(FOCUSED) == 1
    page.keyboard.press("x")
    assert page.locator("#result_list tr.selected").count() == 1
    page.keyboard.press("/")
    assert page.evaluate(FOCUSED) == "searchbar"
    page.keyboard.type("j?g/x")
    assert page.input_value("#searchbar") == "j?g/x", "there, keys are letters"


def test_the_keys_are_listed_and_closed(log_in):
    page = log_in()
    page.goto(reverse("admin:ojs_jobs_queue_changelist"))

    page.keyboard.press("?")
    assert page.locator("#ojs-help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#ojs-help").is_visible()


def test_the_palette_leads_to_what_was_typed(log_in):
    QueueFactory(name="mail")
    page = log_in()
    page.goto(reverse("admin:ojs_workers_dashboard_changelist"))

    page.keyboard.press("g")
    page.keyboard.type("mai")
    page.locator("#ojs-palette-list [aria-selected=true][data-url*='/queue/mail/']").wait_for()
    page.keyboard.press("Enter")

    page.wait_for_url("**/queue/mail/change/")


def test_a_search_is_saved_found_again_and_forgotten(log_in):
    JobFactory(queue="mail")
    page = log_in()
    page.on("dialog", lambda dialog: dialog.accept("Mail that waits"))
    page.goto(reverse("admin:ojs_jobs_job_changelist") + "?queue=mail")

    page.click("text=Save this search")
    page.goto(reverse("admin:ojs_jobs_job_changelist"))
    page.click(".ojs-saved a")
    page.wait_for_url("**/?queue=mail")
    page.keyboard.press("g")
    page.locator("#ojs-palette[open]").wait_for()
    page.keyboard.type("that waits")
    page.locator("#ojs-palette-list li:has-text('Mail that waits')").wait_for()
    page.keyboard.press("Escape")
    page.click("[aria-label='Forget: Mail that waits']")

    assert page.locator(".ojs-saved a").count() == 0
