"""The dashboard: problems, current figures and history."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from jobs.admin import display
from jobs.admin.charts import Chart, Line, seconds
from jobs.admin.live import live
from jobs.conf import ojs_settings
from jobs.models import Queue
from jobs.record.dashboard import grouped
from jobs.record.history import RANGES, Points
from jobs.store import clock

from ..models import Dashboard, FleetSample
from . import breakdowns
from .attention import attention
from .figures import Figures
from .notices import reaper_seen

REFRESH = (0, 2, 5, 15, 60)
"""Seconds between two refreshes; 0 means never."""
KIOSK_REFRESH = 5
SHOWN_QUEUES = 50
LABELS = {
    "1h": gettext_lazy("1 hour"),
    "24h": gettext_lazy("24 hours"),
    "7d": gettext_lazy("7 days"),
}


@admin.register(Dashboard)
class DashboardAdmin(admin.ModelAdmin):
    """One page. It has a model of its own for its entry on the index and its permission."""

    class Media:
        css: ClassVar[dict[str, Any]] = {"all": ["ojs/admin.css", "ojs/dashboard.css"]}
        js = ("ojs/dashboard.js", "ojs/charts.js", "ojs/admin.js", "ojs/live.js")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("ojs_jobs.view_dashboard")

    # Users without any other permission on the fleet still find it on the index.
    has_module_permission = has_view_permission

    def get_urls(self) -> Any:
        view = self.admin_site.admin_view(self.changelist_view)
        by_name = self.admin_site.admin_view(self.breakdown_view)
        return [
            path("", view, name="ojs_workers_dashboard_changelist"),
            path("live/", self.admin_site.admin_view(live), name="ojs_workers_dashboard_live"),
            path("breakdown/", by_name, name="ojs_workers_dashboard_breakdown"),
        ]

    def breakdown_view(self, request: HttpRequest) -> HttpResponse:
        """How types and queues compare: count, wait, run and errors over the range."""
        return breakdowns.page(self, request, LABELS)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        chosen = RANGES.get(request.GET.get("range", ""), RANGES["1h"])
        # A wall display: no controls, refreshed automatically.
        is_kiosk = "kiosk" in request.GET
        refresh = request.GET.get("refresh", str(KIOSK_REFRESH) if is_kiosk else "")
        figures = Figures(self.admin_site, request, reaper_seen(request))
        points = Points(chosen)
        is_empty = not figures.queues and not points.total("completed")
        context = {
            **self.admin_site.each_context(request),
            "opts": self.opts,
            "media": self.media,
            "title": _("Dashboard"),
            "range": chosen.key,
            "ranges": LABELS.items(),
            "refresh": int(refresh) if refresh.isdecimal() and int(refresh) in REFRESH else 0,
            "refreshes": REFRESH,
            "now": display.absolute(clock.now()),
            "attention": attention(figures),
            "cards": cards(figures, points),
            "charts": charts(points, Points(chosen, FleetSample)),
            "queues": figures.queues[:SHOWN_QUEUES],
            "more_queues": max(0, len(figures.queues) - SHOWN_QUEUES),
            "may_pause": not is_kiosk and self._may_pause(request),
            "is_kiosk": is_kiosk,
            # Django's word for a page without its header and sidebar.
            "is_popup": is_kiosk,
            "first_steps": first_steps(request) if is_empty else None,
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "admin/ojs/dashboard.html", context)

    def _may_pause(self, request: HttpRequest) -> bool:
        queues = self.admin_site._registry.get(Queue)
        return queues is not None and "pause" in queues.get_actions(request)


def first_steps(request: HttpRequest) -> dict[str, Any] | None:
    """What to do next on an empty installation: lines to copy, with this server's own address."""
    key = "" if ojs_settings.ALLOW_ANONYMOUS else "ojs_…"
    try:
        url = request.build_absolute_uri(reverse("ojs:jobs"))
    except NoReverseMatch:  # the site has these pages, and no API
        return None
    job = '{"type": "hello.world", "args": ["Ada"]}'
    header = f" -H 'Authorization: Bearer {key}'" if key else ""
    headers = f', headers={{"Authorization": "Bearer {key}"}}' if key else ""
    return {
        "needs_key": bool(key),
        "curl": f"curl -X POST {url}{header} -H 'Content-Type: application/json' -d '{job}'",
        "python": f'import requests; requests.post("{url}", json={job}{headers}).json()',
        "worker": "python manage.py runjobworker",
    }


def cards(figures: Figures, points: Points) -> list[tuple[str, str, str]]:
    """Label, value and note of each card."""
    completed, failed = points.total("completed"), points.total("failed")
    attempts = completed + failed
    span = str(LABELS[points.range.key])
    a_second, (size, words, _title) = pace_of(points)
    return [
        (
            _("Throughput"),
            words % {"rate": display.decimal(a_second * size, ".3g")},
            _("%(count)s completed in %(span)s") % {"count": grouped(completed), "span": span},
        ),
        (_("Queue depth"), figures.depth, _("available jobs now")),
        (_("Oldest wait"), figures.oldest, _("of an available job now")),
        (
            _("Error rate"),
            display.decimal(failed / attempts, ".1%") if attempts else display.NOTHING,
            _("%(failed)s of %(all)s attempts in %(span)s")
            % {"failed": grouped(failed), "all": grouped(attempts), "span": span},
        ),
        (
            _("Busy"),
            f"{grouped(figures.busy)} / {grouped(figures.capacity)}",
            _("jobs in hand, of what running workers can take"),
        ),
    ]


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


def charts(points: Points, fleet: Points) -> list[Chart]:
    return [throughput(points), latency(points), depth(points), states(fleet)]


def throughput(points: Points) -> Chart:
    _a_second, (size, _words, title) = pace_of(points)

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
