"""Translates cron expressions of the Cronos library to the syntax of every other schedule.

Flare's document specifies Cronos for the grammar. Syntax that only Cronos has is rewritten;
what it shares with cron is passed through unchanged.
"""

from __future__ import annotations

import math
import re

from jobs.spec.schedules import BOTH, InvalidSchedule

MACROS = {"@every_second": "* * * * * *", "@every_minute": "* * * * *"}
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
# Of each field, from the last: its lowest and highest number, and its names.
FIELDS: tuple[tuple[int, int, list[str]], ...] = (
    (0, 6, DAYS),
    (1, 12, ["", *MONTHS]),
    (1, 31, []),
    (0, 23, []),
    (0, 59, []),
    (0, 59, []),
)
WEEKDAY, DAY = -1, -3
RANGE = re.compile(r"(\w+)-(\w+)(?:/([0-9]{1,2}))?")
ANY = re.compile(r"\?(/[0-9]{1,2})?")
LAST_OF_ITS_NAME = re.compile("([A-Z]{3})L", re.IGNORECASE)
JITTER = re.compile(r"H(/[0-9]+)?", re.IGNORECASE)


def translated(expression: str) -> str:
    """Return the expression in the syntax of `jobs.spec.schedules`.

    `?` is `*`; `22-6` wraps around midnight (or New Year, or the weekend); `FRIL` is the last
    Friday; a day of the month *and* a day of the week must both match; and there are the macros
    @every_second and @every_minute. Anything that is not an expression is returned unchanged.

    Raises:
        InvalidSchedule: a field is random (`H`), for which Cronos requires a seed.
    """
    found = MACROS.get(expression.strip().lower())
    if found is not None:
        return found
    fields = expression.split()
    if not 5 <= len(fields) <= 6:
        return expression
    for place, field in enumerate(reversed(fields)):
        if JITTER.fullmatch(field):
            raise InvalidSchedule(
                f"{expression!r} leaves a field to chance ('H'), and there is no seed to choose by."
            )
        parts = [_part(part, *FIELDS[place]) for part in field.split(",")]
        fields[-1 - place] = ",".join(parts)
    if not any(fields[place].startswith("*") for place in (DAY, WEEKDAY)):
        fields[WEEKDAY] = BOTH + fields[WEEKDAY]
    return " ".join(fields)


def _part(part: str, lowest: int, highest: int, names: list[str]) -> str:
    if found := ANY.fullmatch(part):
        return f"*{found[1] or ''}"
    if names is DAYS and (found := LAST_OF_ITS_NAME.fullmatch(part)):
        number = _number(found[1], names)
        return part if number is None else f"{number}L"
    return _forwards(part, lowest, highest, names)


def _forwards(part: str, lowest: int, highest: int, names: list[str]) -> str:
    """A range that ends before it begins wraps around: `22-1` is `22,23,0,1`."""
    found = RANGE.fullmatch(part)
    if found is None:
        return part
    first, last = (_number(word, names) for word in found.group(1, 2))
    # Sunday has two numbers, of which a range may only wrap around to the first.
    furthest = highest + (names is DAYS)
    if first is None or last is None or not lowest <= last < first <= furthest:
        return part
    step = int(found[3] or 1)
    if not step:
        return part
    begin = lowest + step - int(math.fmod(highest - first, step)) - 1
    numbers = [*range(first, highest + 1, step), *range(begin, last + 1, step)]
    return ",".join(map(str, numbers)) or part


def _number(word: str, names: list[str]) -> int | None:
    if word.upper() in names:
        return names.index(word.upper())
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 3 else None
