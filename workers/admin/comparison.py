"""Compares figures and charts with those of a day or a week before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.admin import display
from jobs.admin.charts import Chart
from jobs.record.history import COMPARISONS, Comparison, Points

CHOICES = {
    "": gettext_lazy("nothing"),
    "day": gettext_lazy("yesterday"),
    "week": gettext_lazy("last week"),
}
"""Key in the address → what one compares with."""
AGAINST = {"day": gettext_lazy("against yesterday"), "week": gettext_lazy("against last week")}
NO_RECORD = {
    "day": gettext_lazy("The record does not reach back to yesterday."),
    "week": gettext_lazy("The record does not reach back to last week."),
}
NO_SAMPLE = {
    "day": gettext_lazy("Not recorded yesterday at this time."),
    "week": gettext_lazy("Not recorded last week at this time."),
}
NO_JOBS = {
    "day": gettext_lazy("Nothing happened yesterday."),
    "week": gettext_lazy("Nothing happened last week."),
}
LEAST = 0.005
"""The part of a figure below which a change counts as none."""
MULTIPLE = 9
"""From ten times as much on, a factor is shown instead of a percentage."""


def chosen(request: HttpRequest) -> Comparison | None:
    """What the address asks to compare with."""
    return COMPARISONS.get(request.GET.get("compare", ""))


def context(comparison: Comparison | None, note: Any = "") -> dict[str, Any]:
    """What the links above a page need.

    Args:
        note: see `note()`.
    """
    return {
        "compare": comparison.key if comparison else "",
        "comparisons": CHOICES.items(),
        "compare_note": note,
    }


def note(comparison: Comparison, began: datetime | None, since: datetime, until: datetime) -> Any:
    """What to know about a comparison whose time is not, or not wholly, in the record.

    Args:
        began: when the record begins; None if there is none.
        since, until: the time that is compared with.
    """
    if began is None or began >= until:
        return NO_RECORD[comparison.key]
    if began > since:
        moment = display.absolute(began)
        return _("The record begins at %(moment)s: nothing earlier is compared.") % {
            "moment": moment
        }
    return ""


def note_on(points: Points) -> Any:
    """`note()` for a page with charts."""
    earlier = points.earlier
    if earlier is None:
        return ""
    began = points.unfinished.began
    return note(earlier.comparison, began, earlier.since, earlier.until)


@dataclass(frozen=True)
class Change:
    """How a figure differs from the earlier one, in words that do not judge."""

    words: Any
    then: str = ""
    """The earlier figure."""
    amount: str = ""
    """"+12 %"; empty where there is nothing to compare with."""
    verdict: str = ""
    """`better` or `worse`, where one can say so: for the style, and for screen readers."""

    @property
    def meaning(self) -> str:
        return {"better": _("better"), "worse": _("worse")}.get(self.verdict, "")


def change(
    comparison: Comparison,
    now: float | None,
    then: float | None,
    show: Callable[[float], str],
    *,
    more_is: str = "",
    missing: Any = "",
    in_points: bool = False,
) -> Change:
    """Compare two figures.

    Args:
        show: writes the earlier figure.
        more_is: `better` or `worse`; empty where neither is true.
        missing: what is said if there is no earlier figure.
        in_points: the figures are parts of a whole, and differ by percentage points.
    """
    if then is None:
        return Change(missing or NO_SAMPLE[comparison.key])
    against = AGAINST[comparison.key]
    if now is None:
        return Change(against, show(then))
    difference = now - then
    part = difference if in_points else difference / then if then else None
    if difference == 0 or (part is not None and abs(part) < (0.0005 if in_points else LEAST)):
        return Change(against, show(then), "±0")
    sign = "+" if difference > 0 else "−"
    if in_points:
        points = display.decimal(abs(difference) * 100, ".1f")
        amount = sign + _("%(points)s points") % {"points": points}
    elif part is None:
        amount = sign + show(abs(difference))
    elif part >= MULTIPLE:
        amount = f"×{display.decimal(now / then, '.3g')}"
    else:
        amount = f"{sign}{abs(part):.0%}"
    opposite = {"better": "worse", "worse": "better", "": ""}[more_is]
    return Change(against, show(then), amount, more_is if difference > 0 else opposite)


def compared(draw: Callable[[Points], Chart], points: Points) -> Chart:
    """Draw a chart, with the lines of the earlier time if there is one."""
    chart, earlier = draw(points), points.earlier
    if earlier is None:
        return chart
    key = earlier.comparison.key
    missing = NO_JOBS if earlier.is_recorded else NO_RECORD
    return chart.compared(draw(earlier), CHOICES[key], missing[key])


def seconds_of(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()
