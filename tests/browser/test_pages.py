"""Dashboard, jobs and dead letter as an operator uses them, in a real browser."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.access.audit import of_shell
from jobs.models import Job, Rollup
from jobs.record import rollup
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, WorkerFactory, ago, many_jobs
from tests.once import once_is_enough
from workers.chores import reaper
from workers.fleet import marks
from workers.models import FleetSample, Mark

pytestmark = [once_is_enough, pytest.mark.browser, pytest.mark.slow]

DASHBOARD = "/admin/ojs_workers/dashboard/"


def a_busy_hour():
    """Rows that give every part of the dashboard something to show."""
    reaper.sign_of_life("here:1")
    now = rollup.floor(timezone.now(), rollup.MINUTE)
    Rollup.objects.bulk_create(
        Rollup(
            resolution=60,
            start=now - timedelta(minutes=back),
            completed=600 + 37 * (back % 11),
            failed=20 * (back % 5),
            waits={"10": 90, "16": 8, "20": 2},
            runs={"14": 90, "18": 9},
            available=max(0, 900 - 30 * back),
            active=40 + back % 7,
            delayed=120,
        )
        for back in range(1, 60)
    )
    FleetSample.objects.bulk_create(
        FleetSample(
            resolution=60,
            start=now - timedelta(minutes=back),
            running=10 - (4 if 20 < back < 30 else 0),
            quiet=4 if 20 < back < 30 else 0,
            silent=1 if back < 4 else 0,
        )
        for back in range(1, 60)
    )
    QueueFactory(name="mail")
    QueueFactory(name="web", paused_at=ago(600), paused_by="ops", pause_reason="Disk full")
    WorkerFactory(queues=["mail"], concurrency=5)
    WorkerFactory(silent=True, queues=["mail"])
    JobFactory(queue="mail", created_at=ago(4000), args=[{"to": "ann", "password": "x"}])
    JobFactory(queue="web")
    dead = JobFactory(dead=True, queue="mail")
    JobErrorFactory(job=dead, type="smtp_down", backtrace=["line 1", "line 2"])
    return dead


def test_the_dashboard_shows_what_is_wrong_and_renews_itself(log_in):
    a_busy_hour()
    page = log_in()
    page.goto(DASHBOARD)
    attention = page.locator("[data-live=attention]")
    assert "A job has been waiting in “mail”" in attention.inner_text()
    assert page.locator("svg.ojs-chart").count() == 4
    page.locator("#throughput-table summary").click()
    assert page.locator("#throughput-table tbody tr").count() > 10

    Job.objects.filter(queue="mail").delete()
    page.select_option("#ojs-interval", "2")
    attention.locator("text=waiting in “mail”").wait_for(state="detached")

    assert "refresh=2" in page.url
    assert page.locator("#throughput-table[open]").count() == 1


def test_nothing_moves_with_reduced_motion(log_in):
    a_busy_hour()
    page = log_in(reduced_motion="reduce")
    page.goto(DASHBOARD)

    moving = """
        () => [...document.querySelectorAll("*")].map(each => getComputedStyle(each)).filter(
            style => style.transitionDuration !== "0s" || style.animationName !== "none"
        ).length
    """
    assert page.evaluate(moving) == 0


def test_without_script_the_dashboard_reloads_itself(log_in):
    a_busy_hour()
    page = log_in(java_script_enabled=False)
    page.goto(DASHBOARD + "?refresh=2")
    assert "A job has been waiting in “mail”" in page.inner_text("[data-live=attention]")

    Job.objects.filter(queue="mail").delete()

    page.locator("text=waiting in “mail”").wait_for(state="detached")


SHOW = """
(hidden) => {
    Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}
"""


def test_a_hidden_dashboard_pauses_and_refreshes_at_once_when_shown(log_in):
    a_busy_hour()
    page = log_in()
    page.clock.install()
    page.goto(DASHBOARD)
    page.select_option("#ojs-interval", "5")
    page.evaluate(SHOW, True)
    looks = []
    page.on("request", lambda request: looks.append(request.url))

    page.clock.run_for(60_000)
    assert looks == []

    with page.expect_request(f"**{DASHBOARD}*"):
        page.evaluate(SHOW, False)
    with page.expect_request(f"**{DASHBOARD}*"):
        page.clock.run_for(6_000)


def test_without_script_the_dashboard_is_reloaded_by_its_button(log_in):
    a_busy_hour()
    page = log_in(java_script_enabled=False)
    page.goto(DASHBOARD)
    page.select_option("#ojs-interval", "60")
    page.click("text=24 hours")
    page.wait_for_url("**range=24h*")
    page.click("text=Reload")

    page.wait_for_url("**range=24h*")
    assert page.locator("svg.ojs-chart").count() == 4


def test_a_chart_is_compared_with_yesterday_and_says_what_was_done(log_in):
    a_busy_hour()
    minutes = list(Rollup.objects.filter(resolution=60))
    day = timedelta(days=1)
    Rollup.objects.create(resolution=3600, start=rollup.floor(ago(90_000), rollup.HOUR))
    for minute in minutes:
        minute.pk, minute.start = None, minute.start - day
        minute.completed //= 2
    Rollup.objects.bulk_create(minutes)
    marks.add(of_shell(), "deployment", "shop/4.2")
    Mark.objects.update(at=ago(1800))
    page = log_in()
    page.goto(DASHBOARD)

    page.get_by_role("link", name="yesterday").click()
    page.wait_for_url("**compare=day*")

    throughput = page.locator("figure", has_text="Throughput")
    assert throughput.locator(".ojs-line-earlier").count() == 3  # two lines and the legend's
    throughput.locator(".ojs-mark").first.hover()
    readout = throughput.locator(".ojs-readout")
    readout.filter(has_text="completed (yesterday): ").wait_for()
    readout.filter(has_text="Deployed: shop/4.2").wait_for()
    # The keyboard goes on from there.
    throughput.locator("svg.ojs-chart").focus()
    page.keyboard.press("ArrowLeft")
    readout.filter(has_not_text="Deployed: shop/4.2").wait_for()
    page.keyboard.press("ArrowRight")
    readout.filter(has_text="Deployed: shop/4.2").wait_for()
    assert "Deployed: shop/4.2" in page.locator(".ojs-marks").text_content()


def test_a_queue_is_paused_from_the_dashboard(log_in):
    a_busy_hour()
    page = log_in()
    page.goto(DASHBOARD)
    page.locator("tr", has_text="mail").get_by_role("button", name="Pause").click()
    page.fill("[name=reason]", "Deploy 42")
    page.click("text=Pause these queues")

    page.wait_for_url(f"**{DASHBOARD}")
    # Two are paused now, so they are folded into one line.
    assert "“mail” has been paused by admin" in page.locator("[data-live=attention]").text_content()


def test_more_than_a_thousand_jobs_are_cancelled_after_their_number_was_typed(log_in):
    many_jobs(1001)
    page = log_in()
    page.goto("/admin/ojs_jobs/job/")
    page.check("#action-toggle")
    page.click("text=Select all 1001 jobs")
    page.select_option("select[name=action]", "cancel")
    page.click("button[name=index]")
    page.fill("[name=typed]", "1000")
    page.click("text=Cancel these jobs")
    assert "This is not the number" in page.locator("#content").inner_text()
    page.fill("[name=typed]", "1001")
    page.click("text=Cancel these jobs")

    assert page.locator(".messagelist .success").inner_text() == "1001 jobs were cancelled."


def test_a_chart_says_the_values_at_the_pointer_and_at_the_keys(log_in):
    reaper.sign_of_life("here:1")
    now = rollup.floor(timezone.now(), rollup.MINUTE)
    Rollup.objects.bulk_create(
        Rollup(resolution=60, start=now - back * rollup.MINUTE, completed=back * 60, available=back)
        for back in range(1, 61)
    )

    page = log_in()
    page.goto("/admin/ojs_workers/dashboard/")
    chart = page.locator("figure", has_text="Queue depth")
    chart.scroll_into_view_if_needed()
    box = chart.locator("svg.ojs-chart").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 20)

    readout = chart.locator(".ojs-readout")
    assert "available: " in readout.inner_text()
    chart.locator("svg.ojs-chart").focus()
    page.mouse.move(5, 5)
    for _ in range(2):
        page.keyboard.press("ArrowRight")
    newest, older = (
        chart.locator("tbody tr").nth(row).locator("td").first.text_content() for row in (0, 1)
    )
    assert f"available: {newest}" in readout.inner_text()
    page.keyboard.press("ArrowLeft")
    assert older != newest and f"available: {older}" in readout.inner_text()


def test_a_phone_shows_the_states_of_jobs(log_in):
    JobFactory(queue="notifications", type="email.send")

    page = log_in(viewport={"width": 390, "height": 800})
    page.goto("/admin/ojs_jobs/job/")

    box = page.locator("#result_list td.field-shown_state").bounding_box()
    assert box["x"] + box["width"] <= 390
