"""ISO 8601 durations: text on the wire, timedelta inside (OJS retry §4).

A year counts as 365 days and a month as 30: a duration here is a fixed length of time, never a
calendar step. Refuses signs, fractions of anything but seconds, and everything beyond LONGEST, so
that adding a duration to the current time never leaves the range of dates.
"""

from __future__ import annotations

import re
from datetime import timedelta

LONGEST = timedelta(days=100 * 365)
"""No duration of a job is longer than a century."""

# Longer than any sensible spelling of LONGEST, so that no client can make the server parse a
# number of a million digits only to refuse it.
MAX_LENGTH = 64

# The pattern of §14, and weeks. [0-9] where the specification says \d: in Python \d also matches
# Arabic-Indic and other digits.
PATTERN = re.compile(
    r"P(?=[0-9T])(?:(?P<years>[0-9]+)Y)?(?:(?P<months>[0-9]+)M)?(?:(?P<weeks>[0-9]+)W)?"
    r"(?:(?P<days>[0-9]+)D)?"
    r"(?:T(?=[0-9])(?:(?P<hours>[0-9]+)H)?(?:(?P<minutes>[0-9]+)M)?"
    r"(?:(?P<seconds>[0-9]+)(?:\.(?P<fraction>[0-9]+))?S)?)?"
)

SECOND = 1_000_000
DAY = 86_400 * SECOND
MICROSECONDS = {
    "weeks": 7 * DAY,
    "years": 365 * DAY,
    "months": 30 * DAY,
    "days": DAY,
    "hours": 3_600 * SECOND,
    "minutes": 60 * SECOND,
    "seconds": SECOND,
}


def parse_duration(text: str, *, mixes_weeks: bool = False) -> timedelta:
    """Read an ISO 8601 duration such as PT30S or P1D (OJS retry §4.2, §14).

    Fractions of a second beyond the microsecond are truncated.

    Args:
        mixes_weeks: allow P1W2D, as OJS unique jobs §13 does. In ISO 8601 weeks stand alone.

    Raises:
        ValueError: not a duration, or longer than LONGEST; the message says which.
    """
    if not isinstance(text, str):
        raise ValueError("A duration must be a string such as PT30S or P1D.")
    if len(text) > MAX_LENGTH:
        raise ValueError(f"A duration must not be longer than {MAX_LENGTH} characters.")
    match = PATTERN.fullmatch(text)
    if match is None or (match["weeks"] and not mixes_weeks and text[1:-1] != match["weeks"]):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT30S or P1D.")
    parts = match.groupdict(default="0")
    microseconds = int(parts.pop("fraction")[:6].ljust(6, "0"))
    microseconds += sum(int(number) * MICROSECONDS[unit] for unit, number in parts.items())
    # Compared as plain integers, because the value may be too large for a timedelta.
    if microseconds > LONGEST // timedelta.resolution:
        raise ValueError(f"{text!r} is longer than the 100 years a duration may last.")
    return timedelta(microseconds=microseconds)


SPAN = re.compile(r"(?P<number>[0-9]{1,9})(?P<unit>[smhdw])")
MANY_DIGITS = re.compile(r"[0-9]{10,}[smhdw]")
SPANS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_span(text: str) -> timedelta:
    """Read a length of time as typed on a command line: 45s, 30m, 24h, 90d, 2w.

    Raises:
        ValueError: invalid, or longer than LONGEST; the message says which.
    """
    if MANY_DIGITS.fullmatch(text):
        raise ValueError(f"{text!r} has more than nine digits.")
    match = SPAN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a number and one of s, m, h, d, w, such as 24h or 90d.")
    microseconds = int(match["number"]) * MICROSECONDS[SPANS[match["unit"]]]
    if microseconds > LONGEST // timedelta(microseconds=1):
        raise ValueError(f"{text!r} is longer than a century.")
    return timedelta(microseconds=microseconds)


def format_duration(duration: timedelta) -> str:
    """Write `duration` in days, hours, minutes and seconds, leaving out what is zero (§4.1).

    Never weeks, months or years: the result matches the pattern of §14 and means the
    same length of time to every reader.

    Raises:
        ValueError: `duration` is negative, which ISO 8601 cannot express.
    """
    if duration < timedelta(0):
        raise ValueError("A duration must not be negative.")
    minutes, seconds = divmod(duration.seconds, 60)
    hours, minutes = divmod(minutes, 60)
    fraction = f".{duration.microseconds:06}".rstrip("0") if duration.microseconds else ""
    date = f"{duration.days}D" if duration.days else ""
    time = f"{hours}H" if hours else ""
    time += f"{minutes}M" if minutes else ""
    time += f"{seconds}{fraction}S" if seconds or fraction else ""
    if not date and not time:
        return "PT0S"
    return f"P{date}T{time}" if time else f"P{date}"
