"""The charts of the dashboard and of its pages about one type or queue."""

from __future__ import annotations

from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from jobs.admin.charts import Chart, Line, seconds
from jobs.record.history import Earlier, Points

PACES = (
    (1, gettext_lazy("%(rate)s a second"), gettext_lazy("Throughput, jobs a second")),
    (60, gettext_lazy("%(rate)s a minute"), gettext_lazy("Throughput, jobs a minute")),
    (3600, gettext_lazy("%(rate)s an hour"), gettext_lazy("Throughput, jobs an hour")),
)
"""Seconds, and what a rate in them is called on a card and above a chart."""


def pace_of(points: Points) -> tuple[float, Any]:
    """How many a second were completed, and the unit that needs no leading zeros."""
    a_second = points.total("completed") / points.elapsed.total_seconds()
    unit = next((unit for unit in PACES if a_second * unit[0] >= 1), None)
    return a_second, unit or PACES[-1 if a_second else 1]


def throughput(points: Points) -> Chart:
    # The earlier line has the unit of the present one.
    of = points.of if isinstance(points, Earlier) else points
    _a_second, (size, _words, title) = pace_of(of)

    def rates(name: str) -> list[float | None]:
        return [None if rate is None else rate * size for rate in points.rate(name)]

    lines = [
        Line(_("completed"), "main", rates("completed")),
        Line(_("failed attempts"), "bad", rates("failed")),
    ]
    return Chart("throughput", title, points.moments, lines)


def latency(points: Points) -> Chart:
    lines = [
        Line(_("wait p50"), "main", points.percentile("waits", 0.5)),
        Line(_("wait p95"), "main-dashed", points.percentile("waits", 0.95)),
        Line(_("run p50"), "other", points.percentile("runs", 0.5)),
        Line(_("run p95"), "other-dashed", points.percentile("runs", 0.95)),
    ]
    return Chart("latency", _("Latency of completed jobs"), points.moments, lines, seconds)


def depth(points: Points) -> Chart:
    lines = [
        Line(_("available"), "main", points.highest("available")),
        Line(pgettext("state", "active"), "other", points.highest("active")),
        Line(_("scheduled or retryable"), "quiet-dashed", points.highest("delayed")),
    ]
    return Chart("depth", _("Queue depth, jobs"), points.moments, lines)


def states(fleet: Points) -> Chart:
    lines = [
        Line(_("running"), "main", fleet.highest("running")),
        Line(_("quiet"), "quiet", fleet.highest("quiet")),
        Line(_("terminating"), "other-dashed", fleet.highest("terminate")),
        Line(_("silent"), "bad", fleet.highest("silent")),
    ]
    return Chart("fleet", _("Fleet by state, workers"), fleet.moments, lines)
