"""Roll-ups: the data of the charts."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import Sum
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.models import QueueRollup, QueueSample, Rollup, RollupMark, TypeRollup
from jobs.record import parts, rollup
from jobs.record.history import COMPARISONS, RANGES, Points
from jobs.spec.identifiers import first_uuid7
from tests.database import connection
from tests.factories import JobErrorFactory, JobFactory, ago, job_of

pytestmark = pytest.mark.django_db


def catch_up():
    while rollup.step():
        pass


def settled(seconds_ago, *, wait=1.0, run=0.1, **traits):
    """A completed job that finished that long ago."""
    finished = traits.pop("finished_at", None) or ago(seconds_ago)
    started = finished - timedelta(seconds=run)
    return job_of(
        started - timedelta(seconds=wait),
        completed=True,
        finished_at=finished,
        started_at=started,
        **traits,
    )


def total(name, resolution=60):
    return sum(Rollup.objects.filter(resolution=resolution).values_list(name, flat=True))


def test_completed_failed_and_discarded_are_counted_in_their_minutes():
    job = settled(180)
    settled(180, finished_at=job.finished_at)
    settled(3600 * 5)
    dead = JobFactory(dead=True, finished_at=ago(240))
    JobErrorFactory(job=dead, occurred_at=ago(240))
    JobErrorFactory(job=dead, occurred_at=ago(300))

    catch_up()

    assert [total(name) for name in ("completed", "failed", "discarded")] == [3, 2, 1]
    assert [total(name, 3600) for name in ("completed", "failed", "discarded")] == [3, 2, 1]
    minute = Rollup.objects.get(resolution=60, start=rollup.floor(job.finished_at, rollup.MINUTE))
    assert minute.completed == 2


def test_counting_again_counts_nothing_twice():
    settled(90)
    catch_up()

    catch_up()
    catch_up()

    assert (total("completed"), total("completed", 3600)) == (1, 1)


def test_a_finish_that_commits_late_is_counted_by_the_next_round():
    catch_up()
    settled(61)

    catch_up()

    assert (total("completed"), total("completed", 3600)) == (1, 1)


def test_each_job_is_in_one_piece_of_the_count():
    catch_up()
    end = RollupMark.objects.get().until
    pieces = [end - n * (rollup.MINUTE + rollup.LATE) / parts.PIECES for n in range(1, 9)]
    for moment in pieces:
        own_id = first_uuid7(round(moment.timestamp() * 1000))
        settled(0, finished_at=moment, wait=0, run=0, id=own_id)
        dead = JobFactory(dead=True, finished_at=moment, created_at=ago(86_400))
        JobErrorFactory(job=dead, occurred_at=moment)
    RollupMark.objects.update(until=end - rollup.MINUTE)

    catch_up()

    names = ("enqueued", "completed", "failed", "discarded")
    assert [total(name) for name in names] == [len(pieces)] * 4


def test_minutes_that_another_process_has_counted_meanwhile_are_left_as_they_are(monkeypatch):
    settled(90)
    count = parts.count

    def count_while_another_does(*minutes):
        counted = count(*minutes)
        monkeypatch.undo()
        settled(90)
        catch_up()
        return counted

    monkeypatch.setattr(parts, "count", count_while_another_does)
    assert not rollup.step()

    assert total("completed") == 2


def test_after_downtime_the_rounds_catch_up_step_by_step():
    catch_up()
    RollupMark.objects.update(until=rollup.floor(ago(5 * 3600), rollup.MINUTE))
    Rollup.objects.all().delete()
    settled(4 * 3600)

    assert rollup.step()
    assert RollupMark.objects.get().until < ago(3.5 * 3600)
    catch_up()

    assert total("completed") == 1
    assert RollupMark.objects.get().until > ago(120)


def test_the_minute_that_is_not_over_is_left_to_the_next_round():
    settled(0)

    catch_up()

    assert total("completed") == 0


@pytest.mark.parametrize(
    ("name", "share", "seconds"),
    [("waits", 0.5, 2), ("waits", 0.95, 60), ("runs", 0.5, 0.1), ("runs", 0.95, 8)],
)
def test_percentiles_are_right_to_a_fifth(name, share, seconds):
    minute = rollup.floor(ago(200), rollup.MINUTE)
    for _ in range(9):
        settled(0, finished_at=minute, wait=2, run=0.1)
    settled(0, finished_at=minute, wait=60, run=8)
    catch_up()

    points = Points(RANGES["1h"])
    (found,) = [value for value in points.percentile(name, share) if value is not None]

    assert seconds / 1.2 <= found <= seconds * 1.2


def test_a_job_that_waited_no_time_at_all_is_in_the_first_bucket():
    settled(200, wait=0, run=0)
    catch_up()

    (histogram,) = Rollup.objects.filter(resolution=60, completed=1).values_list("waits", flat=True)

    assert histogram == {"0": 1}


@pytest.mark.postgres
@pytest.mark.parametrize("power", [3, 6, 7, 13, 14, 24])
def test_a_bucket_begins_with_a_power_of_two(power):
    """Of milliseconds. SQLite, which reads a time of day as a fraction, may be a little below."""
    settled(200, wait=2**power / 1000)
    catch_up()

    (histogram,) = Rollup.objects.filter(resolution=60, completed=1).values_list("waits", flat=True)

    assert histogram == {str(2 * power): 1}


def test_a_sample_tells_how_deep_each_queue_is_and_since_when():
    oldest = JobFactory(queue="mail", created_at=ago(100))
    JobFactory(queue="mail")
    JobFactory(queue="mail", scheduled=True)
    JobFactory(queue="web", active=True)
    QueueSample.objects.create(queue="gone", sampled_at=ago(60), available=7)

    rollup.sample()

    mail, web = QueueSample.objects.order_by("queue")
    assert (mail.available, mail.scheduled, mail.waiting_since) == (2, 1, oldest.enqueued_at)
    assert (web.available, web.active) == (0, 1)
    now = Rollup.objects.get()
    assert (now.available, now.active, now.delayed) == (2, 1, 1)


@pytest.mark.postgres
def test_available_jobs_are_counted_by_an_index_alone():
    """Among a hundred million finished ones, reading the table takes 15 s, and the index 3 s."""
    JobFactory.create_batch(3)
    with CaptureQueriesContext(connection) as queries:
        rollup.sample()
    (counting,) = (each["sql"] for each in queries if "\"state\" = 'available'" in each["sql"])

    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        cursor.execute(f"EXPLAIN {counting}")
        plan = "\n".join(line for (line,) in cursor.fetchall())

    assert "Index Only Scan using ojs_job_fetchable" in plan


def test_a_sample_and_a_count_of_one_minute_do_not_overwrite_each_other():
    start = rollup.floor(timezone.now(), rollup.MINUTE) - rollup.MINUTE
    Rollup.objects.create(resolution=60, start=start, available=5, active=1, delayed=0)
    JobFactory(completed=True, finished_at=start)

    catch_up()

    minute = Rollup.objects.get(resolution=60, start=start)
    assert (minute.available, minute.completed) == (5, 1)
    hour = Rollup.objects.get(resolution=3600, start=rollup.floor(start, rollup.HOUR))
    assert (hour.available, hour.completed) == (5, 1)


def test_what_no_chart_shows_any_more_is_forgotten():
    """Minutes are kept for eight days, to compare one with that of a week before."""
    Rollup.objects.create(resolution=60, start=ago(9 * 86_400))
    minute = Rollup.objects.create(resolution=60, start=ago(7 * 86_400))
    hour = Rollup.objects.create(resolution=3600, start=ago(9 * 86_400))
    Rollup.objects.create(resolution=3600, start=ago(40 * 86_400))

    rollup.prune(Rollup)

    assert set(Rollup.objects.all()) == {minute, hour}


def test_minutes_of_types_and_queues_are_kept_for_two_days():
    TypeRollup.objects.create(type="a", resolution=60, start=ago(3 * 86_400))
    kept = TypeRollup.objects.create(type="a", resolution=3600, start=ago(3 * 86_400))

    rollup.prune(TypeRollup)

    assert list(TypeRollup.objects.all()) == [kept]


@pytest.mark.parametrize("resolution", [60, 3600])
@pytest.mark.parametrize("key", RANGES)
@pytest.mark.parametrize("back", ["day", "week"])
def test_the_earlier_points_are_those_of_the_same_time_of_day(key, back, resolution):
    """Whether the minutes are still kept, or the hours stand in for them."""
    comparison = COMPARISONS[back]
    chosen = RANGES[key]
    end = rollup.floor(timezone.now(), rollup.HOUR) - comparison.back
    hours = range(-1, int(chosen.length / rollup.HOUR) + 2)
    for hour in hours:
        start = end - hour * rollup.HOUR
        Rollup.objects.create(resolution=3600, start=start, completed=3600, available=5)
        if resolution == 60 and hour < 26:
            Rollup.objects.bulk_create(
                Rollup(
                    resolution=60, start=start + n * rollup.MINUTE, completed=60, available=n % 6
                )
                for n in range(60)
            )
    RollupMark.objects.create(name="jobs", until=rollup.floor(timezone.now(), rollup.MINUTE))

    points = Points(chosen, comparison=comparison)

    earlier = points.earlier
    assert earlier.is_recorded
    assert len(earlier.moments) == len(points.moments)
    assert {m + comparison.back for m in earlier.moments} == set(points.moments)
    assert {round(rate, 6) for rate in earlier.rate("completed") if rate is not None} == {1.0}
    assert max(value for value in earlier.highest("available") if value is not None) == 5
    span = earlier.until - earlier.since
    assert earlier.total("completed") == round(span.total_seconds())
    assert (earlier.sample("available") is not None) is (resolution == 60)


def test_a_minute_that_was_sampled_and_not_yet_counted_is_a_gap_and_no_zero():
    JobFactory(completed=True, finished_at=ago(150))
    rollup.roll_up()
    RollupMark.objects.update(until=rollup.floor(ago(120), rollup.MINUTE))
    Rollup.objects.filter(start__gte=rollup.floor(ago(120), rollup.MINUTE)).delete()
    last = rollup.floor(ago(60), rollup.MINUTE)
    Rollup.objects.create(resolution=60, start=last, available=4, active=0, delayed=0)

    points = Points(RANGES["1h"])

    assert points.rate("completed")[-1] is None
    assert points.highest("available")[-1] == 4


def test_an_hour_that_was_counted_in_part_counts_for_that_part():
    hour = rollup.floor(timezone.now(), rollup.HOUR) - rollup.HOUR
    part = 20 * 60
    RollupMark.objects.create(name="jobs", until=hour + timedelta(seconds=part))
    Rollup.objects.create(resolution=3600, start=hour, completed=2 * part)

    rates = [rate for rate in Points(RANGES["7d"]).rate("completed") if rate is not None]

    assert rates == [2.0]


def test_totals_contain_what_happened_since_the_last_round():
    JobFactory(completed=True, finished_at=ago(400))
    rollup.roll_up()
    for _ in range(3):
        JobErrorFactory(job=JobFactory(completed=True, finished_at=ago(0)), occurred_at=ago(0))

    points = Points(RANGES["1h"])

    assert (points.total("completed"), points.total("failed")) == (4, 3)


def test_the_hour_in_which_a_server_began_is_not_one_before_the_range():
    """An hour's figures may be those of its last minutes."""
    hour = rollup.floor(timezone.now(), rollup.HOUR) - rollup.HOUR
    Rollup.objects.create(resolution=3600, start=hour, completed=1)
    RollupMark.objects.create(name="jobs", until=hour + rollup.HOUR)

    assert rollup.unfinished(hour + timedelta(minutes=5)).is_new
    assert not rollup.unfinished(hour + rollup.HOUR).is_new


@pytest.mark.parametrize("is_new", [True, False])
def test_the_pace_of_a_new_server_is_that_of_its_short_life(is_new):
    JobFactory(completed=True, finished_at=ago(130))
    if not is_new:
        JobFactory(completed=True, finished_at=ago(7300))
    rollup.roll_up()

    elapsed = Points(RANGES["1h"]).elapsed

    assert (elapsed == RANGES["1h"].length) is not is_new
    assert elapsed >= timedelta(seconds=130)


def test_a_queue_that_is_no_longer_one_of_the_busiest_is_in_no_hour_either(monkeypatch):
    monkeypatch.setattr(parts, "MOST", 1)
    minute = rollup.floor(ago(60), rollup.MINUTE)
    settled(60, queue="quiet", finished_at=minute)
    catch_up()
    # These commit late.
    for _ in range(2):
        settled(60, queue="busy", finished_at=minute)

    catch_up()

    hours = QueueRollup.objects.filter(resolution=3600, completed__gt=0)
    assert [(hour.queue, hour.completed) for hour in hours] == [("busy", 2)]


def test_types_are_counted_like_queues():
    then = ago(200)
    for queue, kind in (("x", "a"), ("y", "a"), ("x", "b")):
        settled(200, finished_at=then, type=kind, queue=queue, wait=2.0, run=4.0)
    JobErrorFactory(job=JobFactory(type="b", dead=True, finished_at=then), occurred_at=then)
    rollup.roll_up()

    def sums(model, column):
        rows = model.objects.filter(resolution=3600).values_list(column)
        return {
            name: (completed, failed)
            for name, completed, failed in rows.annotate(Sum("completed"), Sum("failed"))
        }

    assert sums(TypeRollup, "type") == {"a": (2, 0), "b": (1, 1)}
    assert sums(QueueRollup, "queue") == {"x": (2, 0), "y": (1, 0), "default": (0, 1)}
    assert TypeRollup.objects.filter(type="a", resolution=60).first().runs == {"23": 2}


def test_all_jobs_are_what_the_queues_and_what_the_types_add_up_to():
    then = ago(200)
    for queue, kind in (("x", "a"), ("y", "a"), ("x", "b")):
        settled(200, finished_at=then, type=kind, queue=queue, wait=2.0, run=4.0)
    dead = job_of(ago(250), type="c", queue="z", dead=True, finished_at=then)
    JobErrorFactory(job=dead, occurred_at=then)
    rollup.roll_up()

    names = ("enqueued", "completed", "failed", "discarded")
    assert [total(name) for name in names] == [4, 3, 1, 1]
    for model in (QueueRollup, TypeRollup):
        sums = model.objects.filter(resolution=60).aggregate(*map(Sum, names))
        assert [sums[f"{name}__sum"] for name in names] == [4, 3, 1, 1]
    (minute,) = Rollup.objects.filter(resolution=60, completed__gt=0)
    assert (minute.waits, minute.runs) == ({"21": 3}, {"23": 3})
