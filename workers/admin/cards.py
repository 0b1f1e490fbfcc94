"""The figures at the top of the dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.admin import display
from jobs.record.dashboard import grouped
from jobs.record.history import Points

from .comparison import NO_RECORD, Change, change, seconds_of
from .drawings import pace_of
from .figures import Figures

LABELS = {
    "1h": gettext_lazy("1 hour"),
    "24h": gettext_lazy("24 hours"),
    "7d": gettext_lazy("7 days"),
}


@dataclass(frozen=True)
class Card:
    label: str
    value: str
    note: str
    change: Change | None = None
    """Against the earlier time, if one compares with it."""


def cards(figures: Figures, points: Points, fleet: Points) -> list[Card]:
    """Work over the range, and what waits and runs now."""
    return [
        _throughput(points),
        _depth(figures, points),
        _oldest(figures, points),
        _errors(points),
        _busy(figures, points, fleet),
    ]


def _throughput(points: Points) -> Card:
    completed, span = points.total("completed"), str(LABELS[points.range.key])
    a_second, (size, words, _title) = pace_of(points)

    def show(rate: float) -> str:
        return str(words % {"rate": display.decimal(rate * size, ".3g")})

    found = None
    if points.earlier is not None:
        earlier = points.earlier
        then = pace_of(earlier)[0] if earlier.is_recorded else None
        missing = NO_RECORD[earlier.comparison.key]
        found = change(earlier.comparison, a_second, then, show, more_is="better", missing=missing)
    note = _("%(count)s completed in %(span)s") % {"count": grouped(completed), "span": span}
    return Card(_("Throughput"), show(a_second), note, found)


def _depth(figures: Figures, points: Points) -> Card:
    found = None
    if points.earlier is not None:
        then = points.earlier.sample("available")
        found = change(points.earlier.comparison, figures.available, then, whole, more_is="worse")
    return Card(_("Queue depth"), figures.depth, _("available jobs now"), found)


def _oldest(figures: Figures, points: Points) -> Card:
    found = None
    if points.earlier is not None:
        found = change(
            points.earlier.comparison,
            seconds_of(figures.oldest_wait or timedelta(0)),
            seconds_of(points.earlier.sample("oldest_wait")),
            _span,
            more_is="worse",
        )
    return Card(_("Oldest wait"), figures.oldest, _("of an available job now"), found)


def _errors(points: Points) -> Card:
    failed, attempts = points.total("failed"), _attempts(points)
    rate, found = error_rate(points), None
    if points.earlier is not None:
        earlier = points.earlier
        found = change(
            earlier.comparison,
            rate,
            error_rate(earlier),
            share,
            more_is="worse",
            in_points=True,
            missing=_("No attempts then.")
            if earlier.is_recorded
            else NO_RECORD[earlier.comparison.key],
        )
    note = _("%(failed)s of %(all)s attempts in %(span)s") % {
        "failed": grouped(failed),
        "all": grouped(attempts),
        "span": str(LABELS[points.range.key]),
    }
    value = display.NOTHING if rate is None else share(rate)
    return Card(_("Error rate"), value, note, found)


def _busy(figures: Figures, points: Points, fleet: Points) -> Card:
    """Neither more nor less of it is good by itself."""
    found = None
    if points.earlier is not None and fleet.earlier is not None:
        capacity = fleet.earlier.sample("capacity")
        found = change(
            points.earlier.comparison,
            figures.busy,
            points.earlier.sample("active"),
            lambda busy: (
                f"{grouped(round(busy))} / {whole(capacity)}"
                if capacity is not None
                else whole(busy)
            ),
        )
    value = f"{grouped(figures.busy)} / {grouped(figures.capacity)}"
    note = _("active jobs, of what running workers can take")
    return Card(_("Busy"), value, note, found)


def _attempts(points: Points) -> int:
    return points.total("completed") + points.total("failed")


def error_rate(points: Points) -> float | None:
    """The part of the attempts that failed; None if there were none."""
    attempts = _attempts(points)
    return points.total("failed") / attempts if attempts else None


def whole(number: Any) -> str:
    return grouped(round(number))


def share(part: float) -> str:
    return display.decimal(part, ".1%")


def _span(seconds: float) -> str:
    return display.span(timedelta(seconds=seconds))
