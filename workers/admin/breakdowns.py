"""Compares job types, and queues, with a page for each: part of the dashboard."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.admin import display
from jobs.admin.charts import Chart, Line, seconds
from jobs.models import DeadJob, Job, JobError
from jobs.record.breakdowns import MODELS, ORDERS, Breakdown, breakdowns
from jobs.record.dashboard import grouped
from jobs.record.history import RANGES, Points
from jobs.store import clock

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


def page(model_admin: Any, request: HttpRequest, labels: Any) -> HttpResponse:
    """The table of all, or with `?name=` the page of one."""
    if not model_admin.has_view_permission(request):
        raise PermissionDenied
    chosen = RANGES.get(request.GET.get("range", ""), RANGES["24h"])
    kind = request.GET.get("by", "")
    kind = kind if kind in MODELS else "type"
    order = request.GET.get("order", "")
    order = order if order in ORDERS else "count"
    name = request.GET.get("name", "")
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "media": model_admin.media,
        "title": name or KINDS[kind],
        "name": name,
        "kind": kind,
        "range": chosen.key,
        "ranges": labels.items(),
        "order": order,
        "kinds": KINDS.items(),
        "orders": HEADINGS.items(),
    }
    site = model_admin.admin_site
    if name:
        context |= _of_one(site, request, kind, name, chosen)
    else:
        rows = breakdowns(kind, chosen, order)
        context |= {
            "rows": [_row(each) for each in rows[:SHOWN]],
            "more": max(0, len(rows) - SHOWN),
        }
    request.current_app = site.name
    return TemplateResponse(request, "admin/ojs/breakdown.html", context)


def _row(breakdown: Breakdown) -> dict[str, Any]:
    rate = breakdown.error_rate
    return {
        "name": breakdown.name,
        "count": grouped(breakdown.completed + breakdown.failed),
        "wait": _three(breakdown.wait()),
        "run": _three(breakdown.run()),
        "errors": display.NOTHING if rate is None else display.decimal(rate, ".1%"),
        "is_bad": rate is not None and rate > 0.05,
    }


def _three(times: list[timedelta | None]) -> str:
    if None in times:
        return display.NOTHING
    return " / ".join(seconds(each.total_seconds()) for each in times if each is not None)


def _of_one(site: Any, request: HttpRequest, kind: str, name: str, chosen: Any) -> dict[str, Any]:
    points = Points(chosen, MODELS[kind], **{kind: name})
    column = f"job__{kind}"
    errors = JobError.objects.filter(
        occurred_at__gte=clock.now() - chosen.length, **{column: name}
    ).order_by("-occurred_at")
    query = urlencode({kind: name})
    lists = (
        (_("Jobs"), display.page_url(site, request, Job, "changelist")),
        (_("Dead letter"), display.page_url(site, request, DeadJob, "changelist")),
    )
    may_see_jobs = bool(lists[0][1])
    return {
        "charts": [_attempts(points), _times(points)],
        "errors": list(errors.values("job_id", "type", "attempt", "occurred_at")[:ERRORS])
        if may_see_jobs
        else [],
        "lists": [(label, f"{url}?{query}") for label, url in lists if url],
    }


def _attempts(points: Points) -> Chart:
    def a_minute(column: str) -> list[float | None]:
        return [None if rate is None else rate * 60 for rate in points.rate(column)]

    lines = [
        Line(_("completed"), "main", a_minute("completed")),
        Line(_("failed attempts"), "bad", a_minute("failed")),
    ]
    return Chart("attempts", _("Throughput, jobs a minute"), points.moments, lines)


def _times(points: Points) -> Chart:
    lines = [
        Line(_("wait p50"), "main", points.percentile("waits", 0.5)),
        Line(_("wait p95"), "main-dashed", points.percentile("waits", 0.95)),
        Line(_("run p50"), "other", points.percentile("runs", 0.5)),
        Line(_("run p95"), "other-dashed", points.percentile("runs", 0.95)),
    ]
    return Chart("latency", _("Latency of completed jobs"), points.moments, lines, seconds)
