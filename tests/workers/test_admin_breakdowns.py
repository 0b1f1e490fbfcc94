"""Comparison of types and queues: count, durations, failures."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.models import TypeRollup
from jobs.record import parts, rollup
from jobs.record.breakdowns import breakdowns, compared
from jobs.record.history import COMPARISONS, RANGES
from tests.factories import JobErrorFactory, JobFactory, ago
from tests.operators import staff

pytestmark = pytest.mark.django_db

DAY = 86_400
URL = "/admin/ojs_workers/dashboard/breakdown/"


@pytest.fixture(autouse=True)
def in_one_piece(monkeypatch):
    """Each step counts its hour at once: a test that goes back a week takes a tenth of the time."""
    monkeypatch.setattr(parts, "PIECES", 1)


def ran(kind, *, times=1, run=1.0, wait=1.0, failures=0, back=300, queue="default"):
    for _ in range(times):
        end = ago(back)
        start = end - timedelta(seconds=run)
        enqueued = start - timedelta(seconds=wait)
        job = JobFactory(
            completed=True,
            type=kind,
            queue=queue,
            created_at=enqueued,
            enqueued_at=enqueued,
            started_at=start,
            finished_at=end,
        )
    for attempt in range(failures):
        JobErrorFactory(job=job, attempt=attempt + 1, type="smtp_down", occurred_at=ago(back))


def counted():
    while rollup.step():
        pass


@pytest.mark.parametrize("key", RANGES)
@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("count", ["often", "slow", "bad"]),
        ("wait", ["bad", "often", "slow"]),
        ("run", ["slow", "often", "bad"]),
        ("errors", ["bad", "often", "slow"]),
    ],
)
def test_the_slowest_and_the_worst_come_first(key, by, names):
    ran("often", times=5, wait=2, run=2)
    ran("slow", times=3, wait=0.1, run=500)
    ran("bad", times=1, wait=100, run=0.1, failures=1)
    counted()

    found = breakdowns("type", RANGES[key], by)

    assert [each.name for each in found] == names
    often = next(each for each in found if each.name == "often")
    assert (often.completed, often.failed, often.error_rate) == (5, 0, 0.0)
    assert all(1.5 < each.total_seconds() < 2.9 for each in [*often.wait(), *often.run()])


@pytest.mark.parametrize("comparison", [None, COMPARISONS["day"]], ids=["alone", "compared"])
def test_of_days_that_are_over_no_hours_are_read(comparison):
    for back in (300, 3 * DAY, 3 * DAY + 7200, 5 * DAY):
        ran("a", back=back, wait=2, run=500, failures=1)
    counted()

    def figures():
        ranked, earlier = compared("type", RANGES["7d"], comparison=comparison)
        return [
            [(each.completed, each.failed, each.wait(), each.run()) for each in part]
            for part in (ranked, earlier.values())
        ]

    by_days = figures()
    assert by_days[0][0][:2] == (4, 4)
    hours = TypeRollup.objects.filter(resolution=3600)
    days = TypeRollup.objects.filter(resolution=86_400)
    dates = {moment.date() for moment in hours.values_list("start", flat=True)}
    over = {date for date in dates if date < timezone.now().date()}
    assert {moment.date() for moment in days.values_list("start", flat=True)} == over
    hours.filter(start__lt=ago(2 * DAY)).delete()
    assert figures() == by_days


def test_hours_are_read_of_days_that_an_older_version_counted():
    for back in (300, 3 * DAY, 5 * DAY):
        ran("a", back=back)
    counted()
    TypeRollup.objects.filter(resolution=86_400, start__lt=ago(4 * DAY)).delete()

    (found,) = breakdowns("type", RANGES["7d"])

    assert found.completed == 3


def test_the_table_shows_types_and_queues_and_leads_to_each(admin_client):
    ran("a/b c", queue="mail", failures=1)
    counted()

    types = admin_client.get(URL)
    queues = admin_client.get(URL, {"by": "queue"})

    (row,) = types.context["rows"]
    assert (row["name"], row["count"], row["errors"], row["is_bad"]) == (
        "a/b c",
        "2",
        "50.0%",
        True,
    )
    assert "name=a%2Fb+c" in types.content.decode()
    assert [row["name"] for row in queues.context["rows"]] == ["mail"]


def test_the_page_of_a_type_has_its_charts_its_errors_and_its_lists(admin_client):
    ran("a", failures=2)
    ran("b", failures=1)
    counted()

    page = admin_client.get(URL, {"name": "a", "range": "1h"})

    text = page.content.decode()
    assert text.count('<svg class="ojs-chart"') == 2
    assert len(page.context["errors"]) == 2
    assert "/admin/ojs_jobs/deadjob/?type=a" in text and "/admin/ojs_jobs/job/?type=a" in text


def test_the_errors_of_a_type_that_seldom_fails_are_found_among_many_others(
    admin_client, monkeypatch
):
    ran("a", failures=2, back=1800)
    ran("b", failures=9, back=900)
    counted()
    ran("b", failures=9, back=0)
    ran("a", failures=1, back=0)
    monkeypatch.setattr("jobs.record.breakdowns.LOOKED_THROUGH", 3)

    page = admin_client.get(URL, {"name": "a", "range": "1h"})

    times = [error.occurred_at for error in page.context["errors"]]
    assert len(times) == 3 and times == sorted(times, reverse=True)


def test_who_may_not_look_at_jobs_sees_no_errors_of_them():
    ran("a", failures=1)
    counted()
    looker = staff("view_dashboard")

    page = looker.get(URL, {"name": "a"})

    assert page.context["errors"] == [] and page.context["lists"] == []
    assert staff("view_job", username="other").get(URL).status_code == 403


@pytest.mark.parametrize(
    ("key", "before"),
    # Of a day, whole hours are read: of the last one, the part that the day has.
    [("1h", 300), ("24h", 3 * 3600)],
)
def test_types_are_compared_with_what_they_did_before(admin_client, key, before):
    ran("mail", times=4, run=8, back=300)
    ran("new", back=300)
    ran("mail", times=2, run=2, failures=2, back=86_400 + before)
    ran("old", back=3 * 86_400)  # the record reaches back further
    counted()

    page = admin_client.get(URL, {"compare": "day", "range": key})

    mail, new = page.context["rows"]
    changes = mail["changes"]
    assert (mail["name"], changes["count"].amount, changes["count"].then) == ("mail", "±0", "4")
    assert changes["run"].verdict == "worse" and changes["run"].amount.startswith("+")
    assert (changes["errors"].amount, changes["errors"].verdict) == ("−50.0 points", "better")
    assert new["changes"]["count"].amount == ""
    assert str(new["changes"]["count"].words).startswith("Nothing happened")
    assert f"compare=day&amp;range={key}&amp;by=type&amp;name=mail" in page.content.decode()

    one = admin_client.get(URL, {"compare": "day", "range": key, "name": "mail"})
    throughput = one.context["charts"][0]
    assert any(value for line in throughput.lines if line.is_earlier for value in line.values)


def test_an_hour_a_week_ago_is_a_part_of_the_hours_that_are_kept():
    """Minutes of single types are kept for two days."""
    now = rollup.floor(timezone.now(), rollup.HOUR) - timedelta(days=7)
    for hour in (now - rollup.HOUR, now):
        TypeRollup.objects.create(type="a", resolution=3600, start=hour, completed=100)

    _, earlier = compared("type", RANGES["1h"], comparison=COMPARISONS["week"])

    assert 98 <= earlier["a"].completed <= 102


def test_a_table_says_that_the_record_does_not_reach_so_far_back(admin_client):
    ran("mail")
    counted()

    page = admin_client.get(URL, {"compare": "week"})

    assert page.context["compare_note"] == "The record does not reach back to last week."
    assert page.context["rows"][0]["changes"] == {}


@pytest.mark.parametrize(
    "query",
    ["", "?name=a", "?by=queue&range=7d&order=errors", "?by=x&order=y", "?name=a&compare=day"],
)
def test_it_takes_few_queries_however_many_there_are(
    admin_client, django_assert_max_num_queries, query
):
    for number in range(60):
        ran(f"type-{number}")
    counted()
    assert TypeRollup.objects.count() >= 60

    with django_assert_max_num_queries(8):
        assert admin_client.get(URL + query).status_code == 200
