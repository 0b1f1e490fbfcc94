"""Picture of a workflow in a real browser, under a strict content security policy."""

from __future__ import annotations

import pytest

from tests.once import once_is_enough

from .records import etl

pytestmark = [
    once_is_enough,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]


def test_the_picture_is_drawn_and_its_boxes_lead_to_their_jobs(log_in):
    workflow = etl()
    page = log_in(viewport={"width": 1440, "height": 900})

    page.goto(f"/admin/ojs_jobs/workflow/{workflow.pk}/change/")

    assert page.locator(".ojs-node").count() == 6
    drawn = page.locator(".ojs-node-active rect")
    stroke = drawn.evaluate("shape => getComputedStyle(shape).strokeWidth")
    assert stroke == "3px"
    page.locator(".ojs-node-active rect").click()
    page.wait_for_url("**/ojs_jobs/job/**")
    assert page.locator("progress").count() == 1
