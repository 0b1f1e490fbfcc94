"""Parsing and formatting of RFC 3339 timestamps (OJS JSON format §5)."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.spec.timestamps import format_timestamp, parse_timestamp, parse_when

NINE = datetime(2025, 6, 1, 9, tzinfo=UTC)

offsets = st.integers(-23 * 60 - 59, 23 * 60 + 59).map(lambda m: timezone(timedelta(minutes=m)))
moments = st.datetimes(
    min_value=datetime(1, 1, 3), max_value=datetime(9999, 12, 29), timezones=offsets
)

LOOKALIKES = (
    r"[0-9]{4}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]+)?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})"
)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        # The examples of §5.2.
        ("2025-06-01T09:00:00Z", NINE),
        ("2025-06-01T09:00:00.000Z", NINE),
        ("2025-06-01T09:00:00.123456Z", NINE.replace(microsecond=123_456)),
        ("2025-06-01T11:00:00+02:00", NINE),
        # Go sends nanoseconds and its local offset, and RFC 3339 allows lower case.
        ("2025-06-01T04:30:00.123456789-04:30", NINE.replace(microsecond=123_456)),
        ("2025-06-01t09:00:00z", NINE),
        ("2025-06-01T09:00:00.5Z", NINE.replace(microsecond=500_000)),
        ("2025-06-01T09:00:00-00:00", NINE),
        ("2024-02-29T00:00:00Z", datetime(2024, 2, 29, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999999Z", datetime.max.replace(tzinfo=UTC)),
    ],
)
def test_a_timestamp_is_read(text, moment):
    assert parse_timestamp(text) == moment


def test_a_timestamp_keeps_its_offset():
    assert parse_timestamp("2025-06-01T11:00:00-05:30").utcoffset() == timedelta(hours=-5.5)


@pytest.mark.parametrize("text", ["2016-12-31T23:59:60Z", "2017-01-01T05:29:60.75+05:30"])
def test_a_leap_second_is_the_last_instant_before_it_ends(text):
    assert parse_timestamp(text) == datetime(2016, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


@pytest.mark.parametrize("text", ["2025-06-01T09:00:00", "2025-06-01T09:00:00.123"])
def test_a_timestamp_without_a_timezone_is_refused(text):
    with pytest.raises(ValueError, match="has no timezone"):
        parse_timestamp(text)


@pytest.mark.parametrize(
    "text",
    [
        *["", "now", "2025-06-01", "09:00:00Z", "2025-06-01T09:00Z", "2025-06-01T09Z"],
        *["2025-06-01 09:00:00Z", "20250601T090000Z", "2025-W22-7T09:00:00Z", "2025-152T09:00:00Z"],
        *["2025-06-01T09:00:00+0000", "2025-06-01T09:00:00+00", "2025-06-01T09:00:00 Z"],
        *["2025-06-01T09:00:00+02:00:00", "2025-06-01T09:00:00UTC", "2025-06-01T09:00:00−02:00"],
        *["2025-06-01T09:00:00.Z", "2025-06-01T09:00:00,5Z", "2025-06-01T09:00:00Z\n"],
        *["25-06-01T09:00:00Z", "+2025-06-01T09:00:00Z", "2025-6-1T09:00:00Z"],
        *["٢٠٢٥-06-01T09:00:00Z", "1748768400", "2025-06-01T09:00:00Z" * 10_000],
    ],
)
def test_what_is_not_rfc_3339_is_refused(text):
    with pytest.raises(ValueError, match=r"^.{,50} is not an RFC 3339 timestamp such as "):
        parse_timestamp(text)


@pytest.mark.parametrize(
    "text",
    [
        *["2025-02-29T00:00:00Z", "2025-13-01T00:00:00Z", "2025-00-01T00:00:00Z"],
        *["2025-06-31T00:00:00Z", "2025-06-01T24:00:00Z", "2025-06-01T09:60:00Z"],
        *["2025-06-01T09:00:61Z", "0000-01-01T00:00:00Z"],
        *["0001-01-01T00:00:00+00:01", "9999-12-31T23:59:59-00:01"],
    ],
)
def test_a_moment_that_does_not_exist_is_refused(text):
    with pytest.raises(ValueError, match="is not a valid moment"):
        parse_timestamp(text)


@pytest.mark.parametrize("offset", ["+24:00", "-24:00", "+12:60", "+99:99"])
def test_an_offset_of_a_day_or_more_is_refused(offset):
    with pytest.raises(ValueError, match="offset must lie between"):
        parse_timestamp(f"2025-06-01T09:00:00{offset}")


@pytest.mark.parametrize("value", [None, 1748768400, 1.5, True, b"2025-06-01T09:00:00Z", NINE])
def test_only_a_string_is_a_timestamp(value):
    with pytest.raises(ValueError, match="is not an RFC 3339 timestamp"):
        parse_timestamp(value)


@given(st.from_regex(LOOKALIKES, fullmatch=True))
def test_whatever_looks_like_a_timestamp_is_a_moment_in_utc_or_refused(text):
    try:
        moment = parse_timestamp(text)
    except ValueError:
        return
    assert len(format_timestamp(moment)) == len("2026-02-12T10:30:00.000Z")


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2026, 2, 12, 10, 30, tzinfo=UTC), "2026-02-12T10:30:00.000Z"),
        (datetime(2026, 2, 12, 23, 59, 59, 999_999, tzinfo=UTC), "2026-02-12T23:59:59.999Z"),
        (datetime(1, 1, 1, tzinfo=UTC), "0001-01-01T00:00:00.000Z"),
        (datetime(2026, 2, 12, 1, 5, tzinfo=ZoneInfo("Europe/Berlin")), "2026-02-12T00:05:00.000Z"),
        (datetime(2026, 2, 12, 1, tzinfo=timezone(timedelta(hours=2))), "2026-02-11T23:00:00.000Z"),
    ],
)
def test_a_timestamp_is_written_in_utc_with_milliseconds(moment, text):
    assert format_timestamp(moment) == text


@given(moments)
def test_a_timestamp_is_written_as_the_standard_library_would(moment):
    expected = moment.astimezone(UTC).isoformat(timespec="milliseconds")

    assert format_timestamp(moment) == expected.removesuffix("+00:00") + "Z"


@given(moments)
def test_a_timestamp_survives_the_wire_to_the_millisecond(moment):
    lost = moment - parse_timestamp(format_timestamp(moment))

    assert timedelta(0) <= lost < timedelta(milliseconds=1)


@given(moments)
def test_a_timestamp_in_any_offset_is_read_to_the_microsecond(moment):
    again = parse_timestamp(moment.isoformat())

    assert again == moment
    # Offsets that PostgreSQL cannot read are converted to UTC.
    offset = moment.utcoffset()
    assert again.utcoffset() == (offset if abs(offset) < timedelta(hours=16) else timedelta(0))


def test_a_naive_datetime_cannot_be_written():
    with pytest.raises(ValueError, match="naive"):
        format_timestamp(datetime(2026, 2, 12))


def test_a_moment_may_be_given_as_a_duration_from_now():
    assert parse_when("+PT5S", NINE) == NINE + timedelta(seconds=5)


def test_a_moment_may_be_given_as_a_timestamp():
    assert parse_when("2030-01-01T00:00:00Z", NINE) == datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["PT5S", "-PT5S", "+5s", "+", "", "++PT5S", "+-PT5S", None, 5])
def test_a_moment_is_given_in_no_other_way(text):
    with pytest.raises(ValueError, match="is not an"):
        parse_when(text, NINE)
