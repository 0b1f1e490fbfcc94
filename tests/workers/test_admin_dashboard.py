"""Dashboard: problems, current figures, history, and the number of queries."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.core.checks import run_checks
from django.urls import reverse
from django.utils import timezone

from jobs import engine
from jobs.access.audit import Actor
from jobs.engine import maintenance
from jobs.models import CronJob, CronRun, Job, Rollup, Source
from jobs.record import breakdowns, rollup
from tests.factories import (
    JobErrorFactory,
    JobFactory,
    QueueFactory,
    WorkerFactory,
    ago,
)
from tests.operators import answer, choose, forms, staff
from workers.chores import reaper
from workers.fleet import samples as fleet_sample
from workers.models import FleetSample

pytestmark = pytest.mark.django_db

DASHBOARD = "/admin/ojs_workers/dashboard/"


@pytest.fixture(autouse=True)
def running_reaper(db):
    reaper.sign_of_life("here:1")


def wrong(page):
    """The texts of the attention list."""
    return [item.text for item in page.context["attention"]]


def one_by_one(page):
    """The same with folded items."""
    lines = page.context["attention"]
    return [each.text for line in lines for each in line.items or [line]]


def idle(page):
    return [text for text in one_by_one(page) if "cron job" in text]


def card(page, name):
    return next(each for each in page.context["cards"] if each.label == name)


def test_it_is_on_the_index_for_users_who_may_view_it():
    url = reverse("admin:ojs_workers_dashboard_changelist")
    allowed, other = staff("view_dashboard", username="a"), staff("view_job", username="b")

    assert url == DASHBOARD
    assert f'href="{url}"' in allowed.get("/admin/").content.decode()  # in the sidebar
    assert f'href="{url}"' not in other.get("/admin/").content.decode()
    assert allowed.get(url).status_code == 200
    assert other.get(url).status_code == 403


def test_nothing_is_wrong_with_nothing(admin_client):
    assert wrong(admin_client.get(DASHBOARD)) == []


def test_whatever_is_wrong_comes_first(admin_client):
    WorkerFactory(dead=True, queues=["mail"])
    WorkerFactory(silent=True, queues=["mail"])
    WorkerFactory(queues=["mail"])
    QueueFactory(name="mail")
    QueueFactory(name="web", paused_at=ago(7290), paused_by="ops", pause_reason="Disk full")
    QueueFactory(name="lost")
    JobFactory(queue="mail", created_at=ago(7290))
    JobFactory(queue="lost")
    JobFactory(dead=True)
    JobFactory(dead=True, finished_at=ago(4000))

    assert wrong(admin_client.get(DASHBOARD)) == [
        "1 worker is dead.",
        "1 worker is silent.",
        "A job has been waiting in “mail” for 2 h 1 min.",
        "Jobs wait in “lost”, and no live worker serves it.",
        "The queue “web” has been paused by ops for 2 h 1 min: Disk full",
        "1 job went to the dead letter in the last hour.",
    ]


def test_maintenance_is_shown_with_who_why_and_until_when(admin_client):
    maintenance.begin(
        actor=Actor("ops", Source.ADMIN),
        reason="New disks.",
        until=timezone.now() + timedelta(hours=2),
    )

    (text,) = wrong(admin_client.get(DASHBOARD))

    assert text.startswith("Maintenance: no jobs are handed out. New disks. (Begun by ops, ends in")


def cron_job(name, **changes):
    template = {"type": "report.make", "args": []}
    engine.upsert_cron(engine.NewCronJob(name, "0 9 * * *", template))
    CronJob.objects.filter(pk=name).update(**changes)
    return name


def test_schedules_that_did_not_run_are_shown_with_the_reason(admin_client):
    cron_job("on-time")
    cron_job("off", enabled=False, next_run_at=None)
    cron_job("late", next_run_at=ago(125))
    cron_job("lost", next_run_at=None)
    CronRun.objects.create(
        cron_name=cron_job("full"),
        scheduled_for=ago(60),
        decided_at=ago(60),
        outcome="refused",
        reason="Queue “mail” is full.",
    )
    slow = cron_job("slow")
    for _ in range(2):
        engine.run_cron_now(slow)
    CronRun.objects.filter(cron_name=slow).update(decided_at=ago(30))

    page = admin_client.get(DASHBOARD)

    # A slow machine needs a moment for the page.
    assert [
        re.sub(r"\d+ (?:min|s)(?: \d+ s)? ago", "some time ago", line) for line in idle(page)
    ] == [
        "The cron job “full” was refused some time ago: Queue “mail” is full.",
        "The cron job “late” should have run some time ago.",
        "The cron job “lost” is enabled and has no next run.",
        "The cron job “slow” was skipped some time ago: its earlier run has not finished.",
    ]
    assert reverse("admin:ojs_jobs_cronjob_change", args=["late"]) in page.content.decode()


def test_a_schedule_that_ran_again_no_longer_calls(admin_client):
    slow = cron_job("slow")
    for _ in range(2):
        engine.run_cron_now(slow)
    Job.objects.update(state="completed", finished_at=timezone.now())
    assert len(idle(admin_client.get(DASHBOARD))) == 1
    engine.run_cron_now(slow)

    assert idle(admin_client.get(DASHBOARD)) == []


def test_many_schedules_that_did_not_run_are_not_all_named(admin_client):
    for number in range(8):
        cron_job(f"late-{number}", next_run_at=ago(100))

    page = admin_client.get(DASHBOARD)

    assert wrong(page) == ["8 cron jobs did not run."]
    assert one_by_one(page)[-1] == "3 more cron jobs did not run."
    assert len(one_by_one(page)) == 6


def test_one_cause_is_one_line_and_the_worst_comes_first(admin_client):
    """A queue without workers is not also reported as one with a long wait."""
    for number in range(12):
        QueueFactory(name=f"lost-{number}")
        JobFactory(queue=f"lost-{number}", created_at=ago(7290))
    for number in range(3):
        QueueFactory(name=f"off-{number}", paused_at=ago(60))

    page = admin_client.get(DASHBOARD)

    assert wrong(page) == [
        "Jobs wait in 12 queues that no live worker serves.",
        "3 queues are paused.",
    ]
    assert len(one_by_one(page)) == 15
    text = page.content.decode()
    assert '<details id="attention-unserved_queues"><summary>' in text


def test_nothing_leads_where_the_reader_may_not_look():
    WorkerFactory(dead=True)
    QueueFactory(name="web", paused_at=ago(60))
    JobFactory(dead=True)

    page = staff("view_dashboard").get(DASHBOARD).content.decode()

    content = page.split('id="content-main"')[1]
    assert "1 worker is dead." in content and "The queue “web” has been paused" in content
    assert set(re.findall(r'href="(/admin/[^"?]*)', content)) == {f"{DASHBOARD}breakdown/"}


def test_a_worker_that_died_long_ago_no_longer_calls(admin_client):
    WorkerFactory(dead=True, died_at=ago(90_000))

    assert wrong(admin_client.get(DASHBOARD)) == []


def test_a_reaper_that_does_not_run_is_shown(admin_client):
    reaper.Reaper.objects.update(seen_at=ago(100))

    (text,) = wrong(admin_client.get(DASHBOARD))

    assert text == "The reaper has not run for 1 min 40 s."


def test_cards_say_how_it_is(admin_client):
    worker = WorkerFactory(concurrency=5, queues=["mail"])
    QueueFactory(name="mail")
    JobFactory(active=True, queue="mail", reserved_by=worker.pk)
    JobFactory(queue="mail", created_at=ago(80))
    for _ in range(3):
        done = JobFactory(completed=True, queue="mail", finished_at=ago(300))
    JobFactory(completed=True, queue="mail", finished_at=ago(7300))  # it has run for hours
    JobErrorFactory(job=done, occurred_at=ago(310))
    rollup.roll_up()

    page = admin_client.get(DASHBOARD)

    assert card(page, "Queue depth").value == "1"
    assert card(page, "Oldest wait").value.startswith("1 min ")
    assert card(page, "Busy").value == "1 / 5"
    assert card(page, "Error rate").value == "25.0%"
    assert card(page, "Throughput").value == "3 an hour"
    (row,) = page.context["queues"]
    assert (list(row.cells), row.workers) == (["1", "1", "0", "0"], 1)


@pytest.mark.parametrize("key", ["1h", "24h", "7d"])
def test_every_chart_has_a_drawing_and_a_table(admin_client, key):
    now = rollup.floor(timezone.now(), rollup.MINUTE)
    for back in range(1, 50):
        moment = now - back * rollup.MINUTE
        Rollup.objects.create(
            resolution=60, start=moment, completed=60, waits={"10": 60}, available=4
        )
        FleetSample.objects.create(resolution=60, start=moment, running=3, silent=1)
    hour = rollup.floor(ago(7200), rollup.HOUR)
    Rollup.objects.create(resolution=3600, start=hour, completed=3600, runs={"10": 60}, available=4)
    FleetSample.objects.create(resolution=3600, start=hour, running=3)

    text = admin_client.get(DASHBOARD, {"range": key}).content.decode()

    assert text.count('<svg class="ojs-chart"') == 4
    assert text.count("<details") == 4
    assert len(re.findall(r'role="img" aria-labelledby="(\w+)-title"', text)) == 4
    assert "<style" not in text and " style=" not in text


def test_the_fleet_is_sampled_by_state(admin_client):
    WorkerFactory.create_batch(2, concurrency=5)
    WorkerFactory(state="quiet")
    WorkerFactory(silent=True)
    WorkerFactory(dead=True)

    fleet_sample.sample()
    fleet_sample.sample()

    minute, hour = FleetSample.objects.order_by("resolution")
    for sample in (minute, hour):
        found = (sample.running, sample.quiet, sample.terminate, sample.silent, sample.capacity)
        assert found[:4] == (2, 1, 0, 1)


def test_a_queue_is_paused_from_here():
    ops = staff("view_dashboard", "view_queue", "pause_queue")
    queue = QueueFactory(name="mail")

    page = ops.get(DASHBOARD)
    assert any(form.fields.get("action") == "pause" for form in forms(page))
    confirmation = choose(ops, "ojs_jobs_queue", "pause", queue)
    answer(ops, confirmation, reason="Deploy")

    assert wrong(ops.get(DASHBOARD))[0].startswith("The queue “mail” has been paused by ops")


def test_a_user_who_may_only_view_is_offered_no_pause():
    looker = staff("view_dashboard", "view_queue")
    QueueFactory(name="mail")

    page = looker.get(DASHBOARD)

    assert not any(form.fields.get("action") == "pause" for form in forms(page))


def yesterday(minutes, **figures):
    """Roll-ups of the same minutes a day before, and of a few more for a slow machine."""
    now = rollup.floor(timezone.now(), rollup.MINUTE) - timedelta(days=1)
    hour = rollup.floor(now, rollup.HOUR) - 3 * rollup.HOUR
    Rollup.objects.create(resolution=3600, start=hour)
    for back in range(-9, minutes + 1):
        start = now - back * rollup.MINUTE
        Rollup.objects.create(resolution=60, start=start, **figures)
        FleetSample.objects.create(resolution=60, start=start, running=2, capacity=20)


def test_cards_and_charts_compare_with_yesterday(admin_client):
    QueueFactory(name="mail")
    JobFactory(queue="mail", created_at=ago(80))
    JobFactory(queue="mail", created_at=ago(20))
    for _ in range(30):
        job = JobFactory(completed=True, queue="mail", finished_at=ago(300))
    for _ in range(10):
        JobErrorFactory(job=job, occurred_at=ago(310))
    rollup.roll_up()
    yesterday(60, completed=1, available=4, active=3, oldest_wait=timedelta(seconds=20))

    page = admin_client.get(DASHBOARD, {"compare": "day"})

    def shown(name):
        change = card(page, name).change
        return change.amount, change.then, change.verdict

    assert shown("Throughput") == ("−50%", "60 an hour", "worse")
    assert shown("Queue depth") == ("−50%", "4", "better")
    assert shown("Error rate") == ("+25.0 points", "0.0%", "worse")
    assert shown("Busy") == ("-100%".replace("-", "−"), "3 / 20", "")
    assert shown("Oldest wait")[1:] == ("20 s", "worse")
    charts = {chart.key: chart for chart in page.context["charts"]}
    earlier = {line.label: line for line in charts["throughput"].lines if line.is_earlier}
    assert set(earlier["completed (yesterday)"].values) == {60.0}
    assert [line.label for line in charts["fleet"].lines][:2] == ["running", "running (yesterday)"]
    text = page.content.decode()
    assert "ojs-line-earlier" in text and "completed (yesterday)</th>" in text
    # The choice is kept in every link of the page.
    for link in ("?compare=day&amp;range=24h", "?compare=day&amp;kiosk=", "breakdown/?compare=day"):
        assert link in text


@pytest.mark.parametrize("key", ["day", "week"])
def test_what_the_record_does_not_reach_is_not_compared_with_zero(admin_client, key):
    JobFactory(completed=True, finished_at=ago(300))
    rollup.roll_up()

    page = admin_client.get(DASHBOARD, {"compare": key})

    words = "yesterday" if key == "day" else "last week"
    reason = f"The record does not reach back to {words}."
    assert page.context["compare_note"] == reason
    assert card(page, "Throughput").change.words == reason
    assert not any(each.change.amount for each in page.context["cards"])
    assert all(chart.missing == reason for chart in page.context["charts"])
    assert not any(line.is_earlier for chart in page.context["charts"] for line in chart.lines)


def failing(page):
    return [(row.type, row.count, row.error) for row in page.context["failing"].get("rows", ())]


def test_it_names_the_types_that_fail_with_their_newest_error(admin_client):
    for seconds, error in ((30, "Timeout"), (90, "Refused"), (120, "Refused")):
        JobErrorFactory(job=JobFactory(type="mail"), type=error, occurred_at=ago(seconds))
    JobErrorFactory(job=JobFactory(type="report"), type="it's", occurred_at=ago(5))
    JobErrorFactory(job=JobFactory(type="calm"), type="Timeout", occurred_at=ago(2 * 3600))

    rollup.roll_up()
    page = admin_client.get(DASHBOARD)

    assert failing(page) == [("mail", "3", "Timeout"), ("report", "1", "it's")]
    for row in page.context["failing"]["rows"]:
        (job,) = admin_client.get(row.jobs_url).context["cl"].result_list
        assert job.type == row.type
        assert admin_client.get(row.url).context["name"] == row.type


def test_of_very_many_failures_the_newest_are_told_apart(admin_client, monkeypatch):
    QueueFactory(name="default")
    monkeypatch.setattr(breakdowns, "TOLD_APART", 2)
    for number in range(3):
        JobErrorFactory(job=JobFactory(type=f"mail.{number}"), occurred_at=ago(60 + number))

    rollup.roll_up()
    page = admin_client.get(DASHBOARD)

    assert [name for name, *_ in failing(page)] == ["mail.0", "mail.1"]
    assert "Of the latest 2 failed attempts." in page.content.decode()


def test_who_may_not_view_jobs_sees_no_errors_of_types(admin_client):
    QueueFactory(name="default")
    JobErrorFactory(job=JobFactory(type="mail"), type="Timeout", occurred_at=ago(60))

    rollup.roll_up()
    page = staff("view_dashboard").get(DASHBOARD)

    assert failing(page) == [("mail", "1", "")]
    assert "Timeout" not in page.content.decode()
    assert "Timeout" in admin_client.get(DASHBOARD).content.decode()


@pytest.mark.parametrize("count", [1, 40])
def test_it_takes_the_same_queries_for_a_small_site_and_a_big_one(
    admin_client, django_assert_max_num_queries, count
):
    for number in range(count):
        QueueFactory(name=f"queue-{number}")
        JobFactory(queue=f"queue-{number}")
        WorkerFactory(queues=[f"queue-{number}"])

    with django_assert_max_num_queries(15):
        admin_client.get(DASHBOARD, {"compare": "week"})


@pytest.mark.parametrize(
    "query", ["?range=nonsense", "?refresh=-1", "?refresh=7", "?x__y=1", "?compare=x"]
)
def test_an_odd_address_shows_the_usual_page(admin_client, query):
    page = admin_client.get(DASHBOARD + query)

    assert (page.status_code, page.context["range"], page.context["refresh"]) == (200, "1h", 0)


def test_a_long_gone_moment_is_in_no_chart(admin_client):
    Rollup.objects.create(resolution=60, start=ago(3 * 3600), completed=60)

    page = admin_client.get(DASHBOARD)

    assert all(chart.is_empty for chart in page.context["charts"])


def test_a_wall_display_has_figures_and_nothing_to_press():
    ops = staff("view_dashboard", "view_queue", "pause_queue")
    QueueFactory(name="mail")

    page = ops.get(DASHBOARD + "?kiosk")

    text = page.content.decode()
    assert page.context["refresh"] == 5
    assert 'id="header"' not in text and "nav-sidebar" not in text.split("<body")[1]
    assert not any(form.fields.get("action") == "pause" for form in forms(page))


def test_it_links_to_the_other_cells_and_says_which_it_is(admin_client, settings):
    assert "Cells" not in admin_client.get(DASHBOARD).content.decode()
    cells = {"a": "http://testserver/admin/", "b": "https://b.example.com/admin/"}
    settings.OJS = settings.OJS | {"CELLS": cells}

    page = admin_client.get(DASHBOARD).content.decode()

    assert '<a href="http://testserver/admin/" aria-current="true">a</a>' in page
    assert '<a href="https://b.example.com/admin/">b</a>' in page


def test_a_cell_without_a_url_is_refused(settings):
    settings.OJS = settings.OJS | {"CELLS": {"a": "b.example.com"}}

    assert [found.id for found in run_checks() if found.id == "ojs.E032"] == ["ojs.E032"]


def test_a_timed_pause_says_for_how_long_still(admin_client):
    QueueFactory(name="web", paused_at=ago(7290), paused_until=ago(-7290), pause_reason="Disk full")

    (text,) = wrong(admin_client.get(DASHBOARD))

    assert text == (
        "The queue “web” has been paused for 2 h 1 min, "
        "and will be for another 2 h 1 min: Disk full"
    )
