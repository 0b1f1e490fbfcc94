"""Due times of schedules (OJS cron §3 to §5), compared with a second library."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.spec.schedules import (
    InvalidSchedule,
    nearest_weekday,
    new_schedule,
    read_schedule,
    upcoming,
)

NEW_YORK = "America/New_York"
ZONES = (NEW_YORK, "Europe/Berlin", "Australia/Lord_Howe")
START = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


def utc(*numbers: int) -> datetime:
    return datetime(*numbers, tzinfo=UTC)


def due(expression: str, after: datetime = START, zone: str = "UTC", count: int = 1) -> list:
    return upcoming(read_schedule(expression, zone), after, count)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("*/15 * * * *", utc(2026, 11, 21, 12, 45)),
        ("5,35 * * * *", utc(2026, 11, 21, 12, 35)),
        ("0 9 * * MON-FRI", utc(2026, 11, 23, 9)),
        ("0 9 * jan sun", utc(2027, 1, 3, 9)),
        ("0 9 * * 0", utc(2026, 11, 22, 9)),
        ("0 9 * * 7", utc(2026, 11, 22, 9)),
        ("0 9 * * SAT-SUN", utc(2026, 11, 22, 9)),
        ("30 5 9 * * *", utc(2026, 11, 22, 9, 5, 30)),
        ("0 23 L * *", utc(2026, 11, 30, 23)),
        ("0 0 * * 5L", utc(2026, 11, 27)),
        ("0 0 * * 5#3", utc(2026, 12, 18)),
        ("0 0 15W * *", utc(2026, 12, 15)),
        ("0 0 1W * *", utc(2026, 12, 1)),
        ("0 0 LW * *", utc(2026, 11, 30)),
        ("0 0 L-0 * *", utc(2026, 11, 30)),
        ("0 0 L-3 * *", utc(2026, 11, 27)),
        ("0 0 L-30 * *", utc(2026, 12, 1)),
        ("0 0 L-1W * *", utc(2026, 11, 30)),
        ("0 0 L-8W * *", utc(2026, 11, 23)),
        ("0 0 L-3,5 * *", utc(2026, 11, 27)),
        ("0 0 1-20,15W 12 *", utc(2026, 12, 1)),
        ("0 0 1-7 * +MON", utc(2026, 12, 7)),
        ("0 0 13 * +FRI", utc(2027, 8, 13)),
        ("0 0 13 * FRI", utc(2026, 11, 27)),
        ("0 0 1W * +MON", utc(2027, 2, 1)),
        ("0 0 L-2 * +FRI", utc(2027, 1, 29)),
        ("0 0 29 2 *", utc(2028, 2, 29)),
        ("0 0 31 * *", utc(2026, 12, 31)),
        ("@yearly", utc(2027, 1, 1)),
        ("@annually", utc(2027, 1, 1)),
        ("@monthly", utc(2026, 12, 1)),
        ("@weekly", utc(2026, 11, 22)),
        ("@Daily", utc(2026, 11, 22)),
        ("@midnight", utc(2026, 11, 22)),
        ("@hourly", utc(2026, 11, 21, 13)),
        ("@every 1h30m", utc(2026, 11, 21, 14)),
        ("@every 500ms", START + timedelta(milliseconds=500)),
    ],
)
def test_an_expression_means_what_the_document_says(expression, expected):
    assert due(expression) == [expected]


@pytest.mark.parametrize("expression", ["@every 999ms", "@every 0.5s", "@EVERY 1ms"])
def test_no_new_schedule_comes_more_than_once_a_second(expression):
    """CRON-24. One that is stored already goes on."""
    with pytest.raises(InvalidSchedule, match="a second at least"):
        new_schedule(expression)

    assert read_schedule(expression)
    assert new_schedule("@every 1s") and new_schedule("@every 1.5s")


@pytest.mark.parametrize(
    "expression",
    [
        "",
        " ",
        "not a valid cron",
        "0 0 0 0 0 0 0",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "1- * * * *",
        "-1 * * * *",
        ",1 * * * *",
        "* * * * 5#6",
        "* * * * #",
        "0 0 32W * *",
        "0 0 30 2 *",
        "0 0 30W 2 *",
        "0 0 L-31 * *",
        "0 0 L- * *",
        "0 0 0W * *",
        "0 0 30 2 +MON",
        "0 0 * * +",
        "0 0 * * ++MON",
        "0 0 +1 * MON",
        "+1 0 * * *",
        "60 * * * * *",
        "@often",
        "@every",
        "@every 5",
        "@every 0s",
        "@every -5m",
        "@every 5d",
        "@every 9999999999h",
        "٣ * * * *",
        "* * * * ²L",
        "* * L/2#1 * *",
        ",".join(["1"] * 500) + " * * * *",
    ],
)
def test_what_is_no_schedule_is_refused(expression):
    with pytest.raises(InvalidSchedule):
        read_schedule(expression)


@pytest.mark.parametrize(
    "zone",
    ["", "+05:00", "UTC+5", "EST", "PST", "CET", "EST5EDT", "Mars/Olympus", "../etc/passwd", "utc"],
)
def test_offsets_abbreviations_and_unknown_places_are_no_time_zones(zone):
    with pytest.raises(InvalidSchedule):
        read_schedule("@daily", zone)


@pytest.mark.parametrize("zone", ["UTC", NEW_YORK, "Asia/Kolkata", "Pacific/Auckland", "Japan"])
def test_places_are_time_zones(zone):
    assert due("@daily", zone=zone)


def test_a_time_that_does_not_exist_is_skipped_and_counted():
    schedule = read_schedule("30 2 * * *", NEW_YORK)

    found = schedule.after(utc(2026, 3, 7, 12))

    assert found.at == utc(2026, 3, 9, 6, 30), "not on the 8th, when clocks jump from 2 to 3"
    assert (found.skipped, found.skipped_at) == (1, utc(2026, 3, 8, 7, 30))


def test_a_time_that_exists_twice_counts_once_the_first_time():
    times = due("30 1 * * *", utc(2026, 10, 31, 12), NEW_YORK, count=2)

    assert times == [utc(2026, 11, 1, 5, 30), utc(2026, 11, 2, 6, 30)]


def test_no_wall_clock_time_of_the_repeated_hour_comes_twice():
    times = due("*/30 * * * *", utc(2026, 11, 1, 4, 59), NEW_YORK, count=4)

    assert times == [utc(2026, 11, 1, 5), utc(2026, 11, 1, 5, 30), utc(2026, 11, 1, 7),
                     utc(2026, 11, 1, 7, 30)]  # fmt: skip


def test_asked_within_the_second_of_the_repeated_hours_it_goes_on_after_them():
    assert due("30 1 * * *", utc(2026, 11, 1, 6, 15), NEW_YORK) == [utc(2026, 11, 2, 6, 30)]


def test_a_whole_day_left_out_is_no_trouble():
    schedule = read_schedule("* * * * * *", "Pacific/Apia")

    found = schedule.after(utc(2011, 12, 30, 9, 59, 59))

    assert found.at == utc(2011, 12, 30, 10) and found.skipped == 86_400


@pytest.mark.parametrize(
    "expression",
    ["30 2 */1 3 SUN#2", "* * */30 2 1L", "59 59 23 31 12 *", "0 0 29 2 */7", "* * * * * *"],
)
def test_every_expression_is_answered_or_refused(expression):
    try:
        schedule = read_schedule(expression, NEW_YORK)
    except InvalidSchedule:
        return
    assert schedule.after(START) is not None


def test_a_time_that_never_exists_is_refused():
    with pytest.raises(InvalidSchedule, match="never"):
        read_schedule("30 2 */1 3 SUN#2", NEW_YORK)


@given(st.integers(1900, 2100), st.integers(1, 12), st.integers(1, 28))
def test_the_nearest_weekday_is_a_weekday_of_its_month_two_days_off_at_most(year, month, day):
    found = nearest_weekday(year, month, day)

    assert datetime(year, month, found).weekday() < 5
    assert abs(found - day) <= 2


def field(least: int, most: int) -> st.SearchStrategy[str]:
    numbers = st.integers(least, most)
    # croniter reads 1-1 as the whole range.
    pairs = st.tuples(numbers, numbers).filter(lambda pair: pair[0] < pair[1])
    ranges = pairs.map(lambda pair: f"{pair[0]}-{pair[1]}")
    steps = st.integers(2, max(2, most // 2)).map(lambda step: f"*/{step}")
    lists = st.lists(numbers, min_size=1, max_size=3, unique=True).map(
        lambda items: ",".join(map(str, sorted(items)))
    )
    return st.one_of(st.just("*"), numbers.map(str), ranges, steps, lists)


EXPRESSIONS = st.one_of(
    st.tuples(field(0, 59), field(0, 23), field(1, 28), field(1, 12), st.just("*")),
    st.tuples(field(0, 59), field(0, 23), st.just("*"), field(1, 12), field(0, 6)),
).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(EXPRESSIONS, st.datetimes(datetime(2026, 1, 1), datetime(2036, 1, 1)))
def test_a_second_library_agrees_on_the_wall_clock_over_ten_years(expression, start):
    start = start.replace(microsecond=0)
    other = croniter(expression, start)

    times = due(expression, start.replace(tzinfo=UTC), count=5)

    assert [time.replace(tzinfo=None) for time in times] == [
        other.get_next(datetime) for _ in range(5)
    ]


def clock_changes(zone: str) -> list[datetime]:
    """The moments from 2026 to 2036 at which the zone's offset changes."""
    place = ZoneInfo(zone)
    hours = [utc(2026, 1, 1) + timedelta(minutes=30 * step) for step in range(10 * 366 * 48)]
    offsets = [(hour, hour.astimezone(place).utcoffset()) for hour in hours]
    return [later for (_, before), (later, after) in pairwise(offsets) if before != after]


@pytest.mark.parametrize("zone", ZONES)
def test_around_every_change_of_clocks_each_wall_clock_time_comes_once_if_it_exists(zone):
    place = ZoneInfo(zone)
    changes = clock_changes(zone)
    assert len(changes) == 20
    for change in changes:
        begin = (change - timedelta(hours=4)).astimezone(place).replace(tzinfo=None)
        # The second library, in local time without a zone, with the rules of §5.2 applied.
        other = croniter("*/10 * * * *", begin)
        walls = [other.get_next(datetime) for _ in range(48)]
        exist = [
            wall
            for wall in walls
            if wall.replace(tzinfo=place).astimezone(UTC).astimezone(place).replace(tzinfo=None)
            == wall
        ]

        times = due("*/10 * * * *", change - timedelta(hours=4), zone, count=len(exist))

        assert [time.astimezone(place).replace(tzinfo=None) for time in times] == exist
        assert all(time.astimezone(place).fold == 0 for time in times)
        assert times == sorted(set(times))
