"""History through the Admin API (admin API §10.2)."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

import pytest
from django.utils import timezone

from jobs.http.authentication import make_key
from jobs.models import Job, QueueRollup, Rollup
from jobs.record import parts, rollup
from jobs.spec.identifiers import UUID7_PATTERN, first_uuid7, uuid7
from tests.factories import JobErrorFactory, JobFactory, ago, job_of
from tests.ojs_client import OJSClient, refusal

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return OJSClient(make_key("charts", scopes=["ojs:admin:read"])[1])


def catch_up():
    while rollup.step():
        pass


def ran(moment, *, wait=1.0, run=0.5, **fields):
    """A job that finished at `moment`."""
    started = moment - timedelta(seconds=run)
    return job_of(
        started - timedelta(seconds=wait),
        completed=True,
        started_at=started,
        finished_at=moment,
        **fields,
    )


def history(client, **parameters):
    reply = client.see("admin/stats/history", **parameters)
    assert reply.status_code == 200, reply.content
    return reply.json()["data"]


def sums(data):
    return [sum(point[name] for point in data) for name in ("processed", "failed", "enqueued")]


@pytest.fixture
def an_hour():
    """The middle of a minute half an hour ago: everything then is within one five minutes."""
    return rollup.floor(ago(1800), 5 * rollup.MINUTE) + timedelta(seconds=90)


def test_the_last_hour_is_reported_by_five_minutes(operator, an_hour):
    for _ in range(3):
        ran(an_hour, wait=2, run=0.1)
    ran(an_hour + timedelta(minutes=10), wait=0.01)
    JobErrorFactory(job=JobFactory(), occurred_at=an_hour)
    catch_up()

    data = history(operator)

    assert sums(data) == [5, 1, 4]
    (point,) = (point for point in data if point["processed"] == 4)
    start = datetime.fromisoformat(point["timestamp"])
    assert start == rollup.floor(an_hour, 5 * rollup.MINUTE)
    assert (point["completed"], point["failed"], point["enqueued"]) == (3, 1, 3)
    assert 1600 < point["latency_p50_ms"] < 2500 and point["latency_p99_ms"] < 2500
    assert 80 < point["run_p50_ms"] < 125
    moments = [datetime.fromisoformat(point["timestamp"]) for point in data]
    steps = {later - earlier for earlier, later in pairwise(moments)}
    assert steps == {5 * rollup.MINUTE}, "a point each, where nothing happened too"


def test_one_queue_has_a_history_of_its_own_and_nothing_where_it_did_nothing(operator, an_hour):
    ran(an_hour, queue="mail")
    ran(an_hour, queue="billing")
    JobErrorFactory(job=JobFactory(queue="billing"), occurred_at=an_hour)
    catch_up()

    mail, billing = history(operator, queue="mail"), history(operator, queue="billing")
    nobody = history(operator, queue="nobody")

    assert (sums(mail), sums(billing)) == ([1, 0, 1], [2, 1, 1])
    assert [point["timestamp"] for point in nobody] == [point["timestamp"] for point in mail]
    assert sums(nobody) == [0, 0, 0] and nobody[0]["latency_p50_ms"] is None


@pytest.mark.parametrize("period", ["1m", "5m", "1h", "1d"])
@pytest.mark.parametrize("queue", [{}, {"queue": "default"}], ids=["all", "one"])
def test_the_sum_is_the_same_however_wide_the_points(operator, an_hour, period, queue):
    width = {"1m": 60, "5m": 300, "1h": 3600, "1d": 86_400}[period]
    for minutes in (0, 7, 14):
        ran(an_hour + timedelta(minutes=minutes))
    ran(ago(3 * 3600))
    catch_up()

    data = history(
        operator,
        period=period,
        since="2020-01-01T00:00:00Z" if period == "1d" else ago(5 * 3600).isoformat(),
        **queue,
    )

    assert sums(data) == [4, 0, 4]
    moments = [datetime.fromisoformat(point["timestamp"]) for point in data]
    assert all(moment.timestamp() % width == 0 for moment in moments)


def test_a_range_begins_and_ends_where_requested(operator, an_hour):
    ran(an_hour)
    ran(an_hour + timedelta(minutes=10))
    catch_up()
    middle = (an_hour + timedelta(minutes=5)).isoformat()

    assert sums(history(operator, period="1m", until=middle))[0] == 1
    assert sums(history(operator, period="1m", since=middle))[0] == 1
    assert history(operator, since=timezone.now().isoformat()) in ([], history(operator)[-1:])


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"period": "2m"}, "period"),
        ({"since": "yesterday"}, "since"),
        ({"until": "soon"}, "until"),
        ({"period": "1m", "since": "2020-01-01T00:00:00Z"}, "since"),
        ({"until": "0001-01-01T00:30:00Z"}, "until"),
    ],
    ids=str,
)
def test_what_history_cannot_tell_is_refused_by_name(operator, parameters, field):
    reply = operator.see("admin/stats/history", **parameters)

    assert (reply.status_code, refusal(reply)["details"]["field"]) == (400, field)


def test_history_is_two_queries_for_all_queues_and_for_one(
    operator, an_hour, django_assert_num_queries
):
    ran(an_hour)
    catch_up()
    history(operator)

    with django_assert_num_queries(1):
        history(operator)
    with django_assert_num_queries(2):
        history(operator, queue="default")


def test_counting_again_counts_nothing_twice_and_forgets_what_is_gone(operator):
    job = ran(ago(90))
    catch_up()
    catch_up()
    assert sums(history(operator, queue="default", period="1m"))[0] == 1
    assert QueueRollup.objects.filter(resolution=3600).count() in (1, 2)

    Job.objects.filter(pk=job.pk).delete()
    catch_up()

    assert sums(history(operator, queue="default", period="1m"))[0] == 0


def test_of_very_many_queues_the_busiest_are_kept_apart(monkeypatch, an_hour):
    monkeypatch.setattr(parts, "MOST", 2)
    for queue, count in (("a", 1), ("b", 3), ("c", 2)):
        for _ in range(count):
            ran(an_hour, queue=queue)
    catch_up()

    kept = QueueRollup.objects.filter(resolution=60).values_list("queue", "completed")
    assert dict(kept) == {"b": 3, "c": 2}
    assert sum(Rollup.objects.filter(resolution=60).values_list("completed", flat=True)) == 6


def test_ids_lie_between_the_first_of_their_moment_and_that_of_the_next():
    before = round(timezone.now().timestamp() * 1000) - 1
    made_now = uuid7()
    after = round(timezone.now().timestamp() * 1000) + 2

    assert first_uuid7(before) < made_now < first_uuid7(after)
    assert UUID7_PATTERN.fullmatch(str(first_uuid7(before)))
