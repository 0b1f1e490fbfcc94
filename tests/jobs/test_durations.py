"""Parsing and formatting of ISO 8601 durations (OJS retry §4, §14)."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.spec.durations import LONGEST, format_duration, parse_duration, parse_span

durations = st.timedeltas(min_value=timedelta(0), max_value=LONGEST)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        # The table of §4.1.
        ("PT0.5S", timedelta(milliseconds=500)),
        ("PT1S", timedelta(seconds=1)),
        ("PT5S", timedelta(seconds=5)),
        ("PT30S", timedelta(seconds=30)),
        ("PT1M", timedelta(minutes=1)),
        ("PT5M", timedelta(minutes=5)),
        ("PT15M", timedelta(minutes=15)),
        ("PT1H", timedelta(hours=1)),
        ("PT24H", timedelta(days=1)),
        # Everything else §14 matches.
        ("P1D", timedelta(days=1)),
        ("P2M", timedelta(days=60)),
        ("P1Y", timedelta(days=365)),
        ("P1Y2M3DT4H5M6.75S", timedelta(days=428, hours=4, minutes=5, seconds=6.75)),
        ("PT0S", timedelta(0)),
        ("PT90M", timedelta(hours=1, minutes=30)),
        ("PT007S", timedelta(seconds=7)),
        ("P2W", timedelta(weeks=2)),
        ("PT0.1234569S", timedelta(microseconds=123_456)),
        ("P100Y", LONGEST),
    ],
)
def test_a_duration_is_read(text, duration):
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text",
    [
        *["", "P", "PT", "T1S", "P1", "1", "1S", "1s", "5m", "PT1", "P1S", "P1DT", "P1H"],
        *["PT1H2H", "PT1S1M", "P1D1M", "PT1.5M", "P1.5D", "PT.5S", "PT1.S", "PT1,5S"],
        *["-PT1S", "+PT1S", "PT-1S", "pt1s", "PT1s", " PT1S", "PT1S ", "PT1S\n", "PT1S\0"],
        *["P1W2D", "P1Y2W", "P2WT1S", "P2021-01-01T00:00:00", "PT1e3S"],
        *["PT²S", "\ud800"],
        # Digits, but not those of ISO 8601.
        *[
            text.replace("1", "\N{ARABIC-INDIC DIGIT ONE}")
            for text in ("P1W", "P21Y", "P21M", "P21D", "PT1S", "PT21H", "PT21M", "PT21S", "PT2.1S")
        ],
    ],
)
def test_what_is_not_iso_8601_is_refused(text):
    with pytest.raises(ValueError, match="is not an ISO 8601 duration such as PT30S or P1D"):
        parse_duration(text)


def test_a_period_of_unique_jobs_may_have_weeks_beside_other_units():
    """The pattern of unique jobs §13; that of retry §14 has none."""
    year, others = timedelta(days=365), timedelta(days=30 + 3 * 7 + 4, seconds=5)

    assert parse_duration("P1Y1M3W4DT5S", mixes_weeks=True) == year + others
    assert parse_duration("P2W", mixes_weeks=True) == timedelta(weeks=2)
    for text in ("P2D1W", "PW", "P1WT"):
        with pytest.raises(ValueError, match="not an ISO 8601 duration"):
            parse_duration(text, mixes_weeks=True)


@pytest.mark.parametrize("text", ["P36501D", "P101Y", "PT3153600000.000001S", "P" + "9" * 60 + "D"])
def test_more_than_a_century_is_refused(text):
    with pytest.raises(ValueError, match="longer than the 100 years"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["PT" + "1" * 1_000_000 + "S", "P" + "1Y" * 500_000])
def test_an_endless_duration_is_refused_before_it_is_read(text):
    with pytest.raises(ValueError, match="longer than 64 characters"):
        parse_duration(text)


@pytest.mark.parametrize("value", [None, 5, 1.5, True, b"PT1S", ["PT1S"], timedelta(seconds=1)])
def test_only_a_string_is_a_duration(value):
    with pytest.raises(ValueError, match="must be a string"):
        parse_duration(value)


@given(st.text(alphabet="PTYMWDHS0123456789.,+- s\n", max_size=70))
def test_whatever_is_sent_is_read_within_bounds_or_refused(text):
    try:
        duration = parse_duration(text)
    except ValueError:
        return
    assert timedelta(0) <= duration <= LONGEST


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "PT0S"),
        (timedelta(seconds=1.5), "PT1.5S"),
        (timedelta(microseconds=1), "PT0.000001S"),
        (timedelta(minutes=5), "PT5M"),
        (timedelta(seconds=90), "PT1M30S"),
        (timedelta(hours=24), "P1D"),
        (timedelta(days=180), "P180D"),
        (timedelta(days=1, hours=2, seconds=3), "P1DT2H3S"),
    ],
)
def test_a_duration_is_written_without_its_zeros(duration, text):
    assert format_duration(duration) == text


@given(durations)
def test_a_duration_survives_the_wire(duration):
    assert parse_duration(format_duration(duration)) == duration


def test_a_negative_duration_cannot_be_written():
    with pytest.raises(ValueError, match="must not be negative"):
        format_duration(timedelta(seconds=-1))


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("45s", timedelta(seconds=45)),
        ("30m", timedelta(minutes=30)),
        ("24h", timedelta(days=1)),
        ("90d", timedelta(days=90)),
        ("2w", timedelta(days=14)),
        ("36500d", LONGEST),
    ],
)
def test_a_length_of_time_is_typed_as_a_number_and_a_unit(text, length):
    assert parse_span(text) == length


@pytest.mark.parametrize("text", ["", "90", "d", "1.5h", "-1d", "1 d", "1D", "1h30m", "٣d"])
def test_no_other_text_is_a_typed_length_of_time(text):
    with pytest.raises(ValueError, match="such as 24h or 90d"):
        parse_span(text)


@pytest.mark.parametrize("text", ["36501d", "999999999w"])
def test_a_typed_length_of_time_is_a_century_at_most(text):
    with pytest.raises(ValueError, match="longer than a century"):
        parse_span(text)
