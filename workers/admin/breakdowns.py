"""Compares job types, and queues, with a page for each: part of the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.admin import display
from jobs.admin.charts import seconds
from jobs.models import DeadJob, Job
from jobs.record.breakdowns import MODELS, ORDERS, SHARES, Breakdown, compared, newest_errors
from jobs.record.dashboard import grouped
from jobs.record.history import RANGES, Comparison, Points
from jobs.record.rollup import began
from jobs.store import clock

from . import comparison
from .cards import LABELS, share, whole
from .comparison import Change
from .drawings import latency, throughput
from .marked import marked

KINDS = {"type": gettext_lazy("By job type"), "queue": gettext_lazy("By queue")}
HEADINGS = {
    "count": gettext_lazy("Attempts"),
    "wait": gettext_lazy("Wait p50 / p95 / p99"),
    "run": gettext_lazy("Run p50 / p95 / p99"),
    "errors": gettext_lazy("Error rate"),
}
SHOWN = 200
ERRORS = 20
"""Newest errors on the page of a type or queue."""


def page(model_admin: Any, request: HttpRequest) -> HttpResponse:
    """The table of all, or with `?name=` the page of one."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    chosen = RANGES.get(request.GET.get("range", ""), RANGES["24h"])
    kind = request.GET.get("by", "")
    kind = kind if kind in MODELS else "type"
    order = request.GET.get("order", "")
    order = order if order in ORDERS else "count"
    name = request.GET.get("name", "")
    against = comparison.chosen(request)
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": name or KINDS[kind],
        "name": name,
        "kind": kind,
        "range": chosen.key,
        "ranges": LABELS.items(),
        "order": order,
        "kinds": KINDS.items(),
        "orders": HEADINGS.items(),
        **comparison.context(against),
    }
    site = model_admin.admin_site
    if name:
        context |= _of_one(site, request, kind, name, chosen, against)
    else:
        rows, earlier = compared(kind, chosen, order, against)
        if against is not None:
            until = clock.now() - against.back
            note = comparison.note(against, began(), until - chosen.length, until)
            context["compare_note"] = note
            if note == comparison.NO_RECORD[against.key]:
                against = None  # nothing is not zero
        context |= {
            "rows": [_row(each, earlier.get(each.name), against) for each in rows[:SHOWN]],
            "more": max(0, len(rows) - SHOWN),
        }
    request.current_app = site.name
    return TemplateResponse(request, "admin/ojs/breakdown.html", context)


def _row(now: Breakdown, then: Breakdown | None, against: Comparison | None) -> dict[str, Any]:
    rate = now.error_rate
    return {
        "name": now.name,
        "count": grouped(_attempts(now)),
        "wait": _three(now.wait()),
        "run": _three(now.run()),
        "errors": display.NOTHING if rate is None else share(rate),
        "is_bad": rate is not None and rate > 0.05,
        "changes": _changes(now, then or Breakdown(now.name), against) if against else {},
    }


def _changes(now: Breakdown, then: Breakdown, against: Comparison) -> dict[str, Change]:
    """How each column differs; of the durations, the p95."""
    nothing = comparison.NO_JOBS[against.key]

    def slow(one: Sequence[timedelta | None]) -> float | None:
        return comparison.seconds_of(one[SHARES.index(0.95)])

    def show(value: float) -> str:
        return f"p95 {seconds(value)}"

    def times(name: str) -> Change:
        pair = slow(getattr(now, name)()), slow(getattr(then, name)())
        return comparison.change(against, *pair, show, more_is="worse", missing=nothing)

    return {
        "count": comparison.change(
            against, _attempts(now), _attempts(then) or None, whole, missing=nothing
        ),
        "wait": times("wait"),
        "run": times("run"),
        "errors": comparison.change(
            against,
            now.error_rate,
            then.error_rate,
            share,
            more_is="worse",
            in_points=True,
            missing=nothing,
        ),
    }


def _attempts(breakdown: Breakdown) -> int:
    return round(breakdown.completed + breakdown.failed)


def _three(times: Sequence[timedelta | None]) -> str:
    if None in times:
        return display.NOTHING
    return " / ".join(seconds(each.total_seconds()) for each in times if each is not None)


def _of_one(
    site: Any,
    request: HttpRequest,
    kind: str,
    name: str,
    chosen: Any,
    against: Comparison | None,
) -> dict[str, Any]:
    points = Points(chosen, MODELS[kind], against, **{kind: name})
    marks = marked(site, request, points.since, name if kind == "queue" else "")
    charts = [comparison.compared(draw, points) for draw in (throughput, latency)]
    query = urlencode({kind: name})
    lists = (
        (_("Jobs"), display.page_url(site, request, Job, "changelist")),
        (_("Dead letter"), display.page_url(site, request, DeadJob, "changelist")),
    )
    may_see_jobs = bool(lists[0][1])
    return {
        "charts": [replace(chart, marks=marks.of_chart) for chart in charts],
        "marks": marks,
        "compare_note": comparison.note_on(points),
        "errors": newest_errors(points, ERRORS, **{kind: name}) if may_see_jobs else [],
        "lists": [(label, f"{url}?{query}") for label, url in lists if url],
    }
