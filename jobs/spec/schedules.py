"""Computes when a schedule is due: cron expressions, intervals, time zones (OJS cron §3 to §5).

`cronsim` does the arithmetic, in local time only: it never sees a time zone. This module decides
what a local time means, because the document's rules for clock changes (§5.2) are not those of
any cron: a time that does not exist is skipped, and one that exists twice counts once, the first
time.
"""

from __future__ import annotations

import calendar
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache, lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from .durations import LONGEST

LONGEST_EXPRESSION = 255
HORIZON = timedelta(days=366 * 50)
"""What does not occur in fifty years never does; 29 February on a Monday can take forty."""
MOST_SKIPPED = 100_000
"""Local times tried per computation. A skipped day, as in Samoa in 2011, has 86,400."""

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
EVERY = re.compile(r"@every\s+(?=\S)((?:[0-9]{1,12}(?:\.[0-9]{1,9})?(?:h|ms|m|s))+)", re.IGNORECASE)
PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|s)", re.IGNORECASE)
UNITS = {
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
COUNTED = re.compile(r"([0-9]{1,2})W|L-([0-9]{1,2})(W?)")
"""Days of the month that depend on the month: `15W`, `L-3`, `L-3W`."""
BOTH = "+"
"""Prefix of the day of the week: the day of the month must match as well."""


class InvalidSchedule(ValueError):
    """An expression or a time zone that the document does not allow (§3.5, §5.1)."""


@dataclass(frozen=True)
class Occurrence:
    """The next time a schedule is due."""

    at: datetime
    skipped: int = 0
    """Times before it that a clock change skipped (§5.2)."""
    skipped_at: datetime | None = None
    """The first of them, computed with the offset before the change."""


class Schedule(Protocol):
    def after(self, moment: datetime) -> Occurrence | None:
        """The first occurrence after `moment`; None if there is none in fifty years."""


@dataclass(frozen=True)
class Interval:
    """`@every 1h30m`, counted from the given moment (§4.1)."""

    length: timedelta
    spelling: str

    def after(self, moment: datetime) -> Occurrence:
        return Occurrence(moment + self.length)


class WallClock(CronSim):
    """cronsim, with additions.

    `15W` is the weekday nearest to the 15th, within its month (§3.3); `L-3` the third day before
    the last of the month, `L-3W` the weekday nearest to that. `+MON` as the day of the week
    requires the day of the month to match, too: `0 0 1-7 * +MON` is the first Monday.
    """

    def __init__(self, expression: str, start: datetime) -> None:
        fields = expression.upper().replace("-SUN", "-7").split()
        if len(fields) not in (5, 6):
            raise CronSimError("Wrong number of fields")
        day, weekday = fields[-3], fields[-1].removeprefix(BOTH)
        must_both = weekday != fields[-1]
        others, found = _apart(day)
        fields[-3], fields[-1] = others or "1", weekday
        super().__init__(" ".join(fields), start)
        if not others:
            self.days = set()
        self.day_and = must_both or "*" in (day[:1], weekday[:1])
        self.nearest = frozenset(int(each[1]) for each in found if each[1])
        """Days of the month that stand for their nearest weekday."""
        self.before_last = frozenset(int(each[2]) for each in found if each[2] and not each[3])
        """Days before the last of the month."""
        self.nearest_before_last = frozenset(int(each[2]) for each in found if each[3])

    def match_dom(self, d: date) -> bool:
        if super().match_dom(d):
            return True
        if not (self.nearest or self.before_last or self.nearest_before_last):
            return False
        last = calendar.monthrange(d.year, d.month)[1]
        return (
            last - d.day in self.before_last
            or any(d.day == nearest_weekday(d.year, d.month, day) for day in self.nearest)
            or any(
                d.day == nearest_weekday(d.year, d.month, last - days)
                for days in self.nearest_before_last
            )
        )


def _apart(field: str) -> tuple[str, list[re.Match[str]]]:
    """Split the days of the month into those that cronsim supports and those that it does not.

    Raises:
        CronSimError: no month has such a day.
    """
    others, found = [], []
    for part in field.split(","):
        match = COUNTED.fullmatch(part)
        if match is None:
            others.append(part)
        elif not (1 <= int(match[1]) <= 31 if match[1] else int(match[2]) <= 30):
            raise CronSimError("Bad day-of-month")
        else:
            found.append(match)
    return ",".join(others), found


def nearest_weekday(year: int, month: int, day: int) -> int:
    """The working day nearest to `day`, never in another month; 0 if the month has no such day."""
    last = calendar.monthrange(year, month)[1]
    if not 1 <= day <= last:
        return 0
    weekday = calendar.weekday(year, month, day)
    if weekday == calendar.SATURDAY:
        return day - 1 if day > 1 else day + 2
    if weekday == calendar.SUNDAY:
        return day + 1 if day < last else day - 2
    return day


@dataclass(frozen=True)
class Calendar:
    """A cron expression of five or six fields, in a time zone."""

    expression: str
    zone: ZoneInfo

    def after(self, moment: datetime) -> Occurrence | None:
        start = moment.astimezone(self.zone).replace(tzinfo=None)
        skipped, skipped_at = 0, None
        clock = WallClock(self.expression, start)
        for _ in range(MOST_SKIPPED):
            wall = next(clock, None)
            if wall is None or wall - start > HORIZON:
                return None
            # fold=0: of a time that exists twice, the first (§5.2).
            at = wall.replace(tzinfo=self.zone, fold=0).astimezone(UTC)
            if at.astimezone(self.zone).replace(tzinfo=None) != wall:
                skipped, skipped_at = skipped + 1, skipped_at or at
            elif at > moment:
                return Occurrence(at, skipped, skipped_at)
        return None


@cache
def zone_names() -> frozenset[str]:
    """Geographical names of the IANA database, without abbreviations (§5.1)."""
    return frozenset(
        name
        for name in available_timezones() - {"Factory", "localtime"}
        if "/" in name or name == "UTC" or name != name.upper()
    )


def read_zone(name: str) -> ZoneInfo:
    """
    Raises:
        InvalidSchedule: not the IANA name of a time zone, such as an offset or abbreviation (§5.1).
    """
    if name not in zone_names():
        raise InvalidSchedule(
            f"{name[:64]!r} is not an IANA time zone such as Europe/Berlin or UTC; offsets and "
            "abbreviations do not say when clocks change."
        )
    return ZoneInfo(name)


@lru_cache(maxsize=1024)
def read_schedule(expression: str, timezone: str = "UTC") -> Schedule:
    """Read a cron expression, an alias such as @daily, or @every and a duration (§3, §4).

    Raises:
        InvalidSchedule: it is none of these, or it never occurs.
    """
    zone = read_zone(timezone)
    text = expression.strip()
    if not text:
        raise InvalidSchedule("The expression is empty.")
    if len(text) > LONGEST_EXPRESSION:
        raise InvalidSchedule(f"An expression may have at most {LONGEST_EXPRESSION} characters.")
    if text.lower().startswith("@every"):
        return _interval(text)
    text = ALIASES.get(text.lower(), text)
    if text.startswith("@"):
        raise InvalidSchedule(f"There is no {text!r}; there are {', '.join(ALIASES)}, @every.")
    if len(text.split()) not in (5, 6):
        raise InvalidSchedule(f"{text!r} has {len(text.split())} fields; 5 or 6 are allowed.")
    calendar = Calendar(" ".join(text.upper().split()).replace("-SUN", "-7"), zone)
    _check(calendar, text)
    return calendar


def is_readable(expression: str, timezone: str) -> bool:
    """Whether this process can read a schedule; an older time zone database has fewer zones."""
    try:
        read_schedule(expression, timezone)
    except InvalidSchedule:
        return False
    return True


def _check(calendar: Calendar, text: str) -> None:
    if not text.isascii():
        raise InvalidSchedule(f"{text!r} is not a cron expression.")
    try:
        # A fixed start, so that validity does not depend on the date.
        found = calendar.after(datetime(2026, 1, 1, tzinfo=UTC))
    except CronSimError as problem:
        raise InvalidSchedule(f"{text!r} is not a cron expression: {problem}.") from None
    except (ValueError, TypeError, AssertionError):
        raise InvalidSchedule(f"{text!r} is not a cron expression.") from None
    if found is None:
        raise InvalidSchedule(f"{text!r} never occurs.")


def _interval(text: str) -> Interval:
    found = EVERY.fullmatch(text)
    if found is None:
        raise InvalidSchedule(f"{text!r} is not an interval such as '@every 1h30m'.")
    try:
        length = sum(
            (float(amount) * UNITS[unit.lower()] for amount, unit in PART.findall(found[1])),
            timedelta(0),
        )
    except OverflowError:
        length = timedelta.max
    if not timedelta(milliseconds=1) <= length <= LONGEST:
        raise InvalidSchedule(f"{text!r} must be between a millisecond and a century.")
    return Interval(length, found[1].lower())


SHORTEST = timedelta(seconds=1)
"""Of a new interval: a schedule is looked at once a second at most (OJS cron §7.3, CRON-24)."""


def new_schedule(expression: str, timezone: str = "UTC") -> Schedule:
    """Read the schedule of a registration; one that is stored already may be more frequent.

    Raises:
        InvalidSchedule: it is none, never comes round, or comes more than once a second.
    """
    schedule = read_schedule(expression, timezone)
    if isinstance(schedule, Interval) and schedule.length < SHORTEST:
        raise InvalidSchedule(f"{expression.strip()!r} must be a second at least.")
    return schedule


def upcoming(schedule: Schedule, after: datetime, count: int = 5) -> list[datetime]:
    """The next `count` times, so that a person can check the schedule."""
    times: list[datetime] = []
    for _ in range(count):
        found = schedule.after(times[-1] if times else after)
        if found is None:
            break
        times.append(found.at)
    return times
