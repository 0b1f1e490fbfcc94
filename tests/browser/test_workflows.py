"""The picture of a workflow in a real browser, under a strict content security policy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from django.utils import timezone

from jobs import engine
from jobs.engine import Completion, Failure
from jobs.workflow_plans import plan_of

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


def job(kind):
    return {"type": kind, "args": []}


def etl():
    parts = [job("transform.csv"), job("transform.parquet"), job("transform.json")]
    mail = {
        "type": "batch",
        "jobs": [job("mail.send"), job("mail.send")],
        "callbacks": {"on_success": job("mail.report"), "on_failure": job("mail.alert")},
    }
    steps = [job("data.extract"), {"type": "group", "jobs": parts}, mail, job("data.load")]
    plan = plan_of({"type": "chain", "name": "etl", "steps": steps}, timezone.now())
    workflow = engine.create_workflow(plan)
    (first,) = engine.claim(["default"])
    engine.complete([Completion(first.id)])
    one, two = engine.claim(["default"], count=2)
    engine.complete([Completion(one.id)])
    engine.report_progress(two.id, value=0.6)
    return workflow


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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_does_not_scroll_sideways_on_a_phone(log_in, scheme):
    workflow = etl()
    engine.fail([Failure(job.id, retryable=False) for job in engine.claim(["default"])])
    page = log_in(viewport={"width": 390, "height": 844}, color_scheme=scheme)

    page.goto(f"/admin/ojs_jobs/workflow/{workflow.pk}/change/")

    folder = os.environ.get("OJS_SCREENSHOTS")
    if folder:
        page.locator(".ojs-graph").scroll_into_view_if_needed()
        page.screenshot(path=Path(folder) / f"workflow-{scheme}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
