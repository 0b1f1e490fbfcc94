"""Cron expressions as the Cronos library reads them, in the words of every other schedule.

Flare's document names Cronos for the grammar. What only Cronos knows is written differently
here; what it shares with cron passes through untouched.
"""

from __future__ import annotations

import re

MACROS = {"@every_second": "* * * * * *", "@every_minute": "* * * * *"}
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
# Of each field, counted from the last: its lowest and highest number, and its names.
FIELDS: tuple[tuple[int, int, list[str]], ...] = (
    (0, 6, DAYS),
    (1, 12, ["", *MONTHS]),
    (1, 31, []),
    (0, 23, []),
    (0, 59, []),
    (0, 59, []),
)
DAY_FIELDS = (0, 2)
RANGE = re.compile(r"(\w+)-(\w+)(?:/([0-9]{1,2}))?")


def translated(expression: str) -> str:
    """Return the expression in cron's words; one that is none of Cronos' is returned as it came.

    `?` for any day, `22-6` for a range over midnight (or New Year, or the weekend), and the macros
    @every_second and @every_minute.
    """
    found = MACROS.get(expression.strip().lower())
    if found is not None:
        return found
    fields = expression.split()
    if not 5 <= len(fields) <= 6:
        return expression
    for place, field in enumerate(reversed(fields)):
        if field == "?" and place in DAY_FIELDS:
            field = "*"
        parts = [_forwards(part, *FIELDS[place]) for part in field.split(",")]
        fields[-1 - place] = ",".join(parts)
    return " ".join(fields)


def _forwards(part: str, lowest: int, highest: int, names: list[str]) -> str:
    """A range that ends before it begins goes round: `22-1` is `22,23,0,1`."""
    found = RANGE.fullmatch(part)
    if found is None:
        return part
    first, last = (_number(word, names) for word in found.group(1, 2))
    if first is None or last is None or not lowest <= last < first <= highest:
        return part
    round_trip = [*range(first, highest + 1), *range(lowest, last + 1)]
    step = int(found[3] or 1)
    return ",".join(str(number) for number in round_trip[::step]) if step else part


def _number(word: str, names: list[str]) -> int | None:
    if word.upper() in names:
        return names.index(word.upper())
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 3 else None
