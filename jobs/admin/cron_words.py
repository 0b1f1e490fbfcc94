"""A schedule in words, in the reader's language: "At 09:00, Monday to Friday".

Derived from the times that the expression matches, not from how it is written: `*/15` and
`0,15,30,45` read the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, time
from itertools import pairwise, product
from typing import Any

from django.utils.dates import MONTHS, WEEKDAYS
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext_lazy

from ..spec.schedules import Calendar, Interval, Schedule, WallClock
from . import display

MOST_TIMES = 6
"""Times of day that are listed individually."""
SIXTY, HOURS = range(60), range(24)
DAYS, MONTH_NUMBERS, WEEKDAY_NUMBERS = range(1, 32), range(1, 13), range(7)
NTH = {
    1: pgettext_lazy("of the month", "first"),
    2: pgettext_lazy("of the month", "second"),
    3: pgettext_lazy("of the month", "third"),
    4: pgettext_lazy("of the month", "fourth"),
    5: pgettext_lazy("of the month", "fifth"),
    WallClock.LAST: pgettext_lazy("of the month", "last"),
}


def in_words(schedule: Schedule) -> str:
    """Describe when it is due."""
    if isinstance(schedule, Interval):
        return capfirst(_("every %(span)s") % {"span": display.span(schedule.length)})
    assert isinstance(schedule, Calendar)
    clock = WallClock(schedule.expression, datetime(2000, 1, 1))
    return capfirst(", ".join([*_times(clock), *_days(clock), *_months(clock)]))


def _times(clock: WallClock) -> Iterator[str]:
    if _are_few(clock):
        times = product(sorted(clock.hours), sorted(clock.minutes), sorted(clock.seconds))
        shape = "%H:%M" if clock.seconds == {0} else "%H:%M:%S"
        yield _("at %(times)s") % {"times": _listed(f"{time(*each):{shape}}" for each in times)}
        return
    if clock.seconds != {0}:
        yield _seconds(clock.seconds)
    if len(clock.minutes) < len(SIXTY) or _step(sorted(clock.seconds)) is None:
        yield _minutes(clock.minutes)
    if len(clock.hours) < len(HOURS):
        yield _hours(clock.hours)
    elif len(clock.minutes) * len(clock.seconds) <= MOST_TIMES:
        yield _("every hour")


def _are_few(clock: WallClock) -> bool:
    return len(clock.seconds) * len(clock.minutes) * len(clock.hours) <= MOST_TIMES


def _seconds(seconds: Collection[int]) -> str:
    numbers, step = _numbers(seconds, SIXTY)
    if step is None:
        text = ngettext("at second %(numbers)s", "at seconds %(numbers)s", len(seconds))
        return text % {"numbers": numbers}
    text = ngettext("every second", "every %(count)s seconds", step) % {"count": step}
    return f"{text} ({numbers})" if numbers else text


def _minutes(minutes: Collection[int]) -> str:
    numbers, step = _numbers(minutes, SIXTY)
    if step is None:
        text = ngettext("at minute %(numbers)s", "at minutes %(numbers)s", len(minutes))
        return text % {"numbers": numbers}
    text = ngettext("every minute", "every %(count)s minutes", step) % {"count": step}
    return f"{text} ({numbers})" if numbers else text


def _hours(hours: Collection[int]) -> str:
    step = _step(sorted(hours))
    span = {"first": f"{min(hours):02}:00", "last": f"{max(hours):02}:59"}
    if step == 1 or len(hours) == 1:
        return _("from %(first)s to %(last)s") % span
    if step is None:
        return _("in the hours %(numbers)s") % {"numbers": _listed(map(str, sorted(hours)))}
    text = ngettext("every hour", "every %(count)s hours", step) % {"count": step}
    if not min(hours) and max(hours) + step > max(HOURS):
        return text
    return " ".join([text, _("from %(first)s to %(last)s") % span])


def _numbers(values: Collection[int], whole: range) -> tuple[str, int | None]:
    """Return the numbers in words and their step; no words where they cover the whole range."""
    numbers, step = sorted(values), _step(sorted(values))
    if step is None:
        return _listed(map(str, numbers)), None
    if numbers[0] == whole[0] and numbers[-1] + step > whole[-1]:
        return "", step
    return f"{numbers[0]}–{numbers[-1]}", step


def _step(numbers: list[int]) -> int | None:
    """Return the distance between three or more numbers, if it is always the same."""
    steps = {after - before for before, after in pairwise(numbers)}
    return steps.pop() if len(steps) == 1 and len(numbers) > 2 else None


def _days(clock: WallClock) -> Iterator[str]:
    """Yield the day of the month, the day of the week, or the combination of both."""
    of_month, of_week = ", ".join(_of_month(clock)), ", ".join(_of_week(clock))
    if of_month and of_week:
        both = _("%(day)s and %(weekday)s") if clock.day_and else _("%(day)s or %(weekday)s")
        yield both % {"day": of_month, "weekday": of_week}
    elif of_month or of_week:
        yield of_month or of_week
    elif _are_few(clock) and len(clock.months) == len(MONTH_NUMBERS):
        yield _("every day")


def _of_month(clock: WallClock) -> Iterator[str]:
    days = {day for day in clock.days if day in DAYS}
    if len(days) == len(DAYS):
        return
    if days:
        numbers, step = _numbers(days, DAYS)
        if step is not None:
            numbers = f"{min(days)}–{max(days)}"
        if step is not None and step > 1:
            text = _("every %(count)s days of the month (%(numbers)s)")
            yield text % {"count": step, "numbers": numbers}
        else:
            text = ngettext(
                "on day %(numbers)s of the month", "on days %(numbers)s of the month", len(days)
            )
            yield text % {"numbers": numbers}
    for day in sorted(clock.nearest):
        yield _("on the working day nearest to day %(day)s of the month") % {"day": day}
    for count in sorted(clock.nearest_before_last):
        text = ngettext(
            "on the working day nearest to the day before the last day of the month",
            "on the working day nearest to %(count)s days before the last day of the month",
            count,
        )
        yield text % {"count": count}
    for count in sorted(clock.before_last):
        text = ngettext(
            "on the day before the last day of the month",
            "%(count)s days before the last day of the month",
            count,
        )
        yield text % {"count": count}
    if clock.LAST in clock.days:
        yield _("on the last day of the month")
    if clock.LAST_WEEKDAY in clock.days:
        yield _("on the last working day of the month")


def _of_week(clock: WallClock) -> Iterator[str]:
    every: Any = clock.weekdays
    # Cron counts from Sunday, which has two numbers; calendars from Monday.
    days = sorted({(day - 1) % 7 for day in every if isinstance(day, int)})
    if len(days) == len(WEEKDAY_NUMBERS):
        return
    if _step(days) == 1:
        names = {"first": WEEKDAYS[days[0]], "last": WEEKDAYS[days[-1]]}
        yield _("%(first)s to %(last)s") % names
    elif days:
        yield _("on %(days)s") % {"days": _listed(str(WEEKDAYS[day]) for day in days)}
    for day, nth in sorted(each for each in every if not isinstance(each, int)):
        about = {"nth": NTH[nth], "day": WEEKDAYS[(day - 1) % 7]}
        yield _("on the %(nth)s %(day)s of the month") % about


def _months(clock: WallClock) -> Iterator[str]:
    months = sorted(clock.months)
    if len(months) == len(MONTH_NUMBERS):
        return
    if _step(months) == 1:
        yield _("%(first)s to %(last)s") % {"first": MONTHS[months[0]], "last": MONTHS[months[-1]]}
    else:
        yield _("in %(months)s") % {"months": _listed(str(MONTHS[month]) for month in months)}


def _listed(texts: Iterable[str]) -> str:
    *before, last = texts
    if not before:
        return str(last)
    return _("%(first)s and %(last)s") % {"first": ", ".join(before), "last": last}
