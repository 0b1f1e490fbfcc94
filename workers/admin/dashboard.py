"""Dashboard: problems, current figures and history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, path, reverse
from django.utils.translation import gettext as _

from jobs.admin import display
from jobs.admin.base import PagesModelAdmin, from_standby
from jobs.admin.charts import Chart
from jobs.admin.live import live
from jobs.conf import ojs_settings
from jobs.models import Queue
from jobs.record.history import RANGES, Points
from jobs.store import clock

from ..models import Dashboard, FleetSample
from . import breakdowns, comparison
from .attention import attention
from .cards import LABELS, cards
from .drawings import depth, latency, states, throughput
from .failing import failing
from .figures import Figures
from .finding import find_view
from .marked import Marked, marked

REFRESH = (0, 2, 5, 15, 60)
"""Seconds between two refreshes; 0 means never."""
KIOSK_REFRESH = 5
SHOWN_QUEUES = 50


@admin.register(Dashboard)
class DashboardAdmin(PagesModelAdmin):
    """One page. It has a model of its own for its entry on the index and its permission."""

    class Media:
        css: ClassVar[dict[str, Any]] = {"all": ["ojs/admin.css", "ojs/dashboard.css"]}
        js = ("ojs/dashboard.js", "ojs/charts.js", "ojs/admin.js", "ojs/live.js", "ojs/keys.js")

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    has_change_permission = has_delete_permission = has_add_permission

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("ojs_jobs.view_dashboard")

    # Users without any other permission on the fleet still find it on the index.
    has_module_permission = has_view_permission

    def get_urls(self) -> Any:
        view = self.admin_site.admin_view(from_standby(self.changelist_view))
        by_name = self.admin_site.admin_view(from_standby(self.breakdown_view))
        return [
            path("", view, name="ojs_workers_dashboard_changelist"),
            path(
                "find/",
                self.admin_site.admin_view(self.find_view),
                name="ojs_workers_dashboard_find",
            ),
            path("live/", self.admin_site.admin_view(live), name="ojs_workers_dashboard_live"),
            path("breakdown/", by_name, name="ojs_workers_dashboard_breakdown"),
        ]

    def find_view(self, request: HttpRequest) -> HttpResponse:
        """What the command palette finds."""
        return find_view(self.admin_site, request)

    def breakdown_view(self, request: HttpRequest) -> HttpResponse:
        """How types and queues compare: count, wait, run and errors over the range."""
        return breakdowns.page(self, request)

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        chosen = RANGES.get(request.GET.get("range", ""), RANGES["1h"])
        # A wall display: no controls, refreshed automatically.
        is_kiosk = "kiosk" in request.GET
        refresh = request.GET.get("refresh", str(KIOSK_REFRESH) if is_kiosk else "")
        compared = comparison.chosen(request)
        figures = Figures(self.admin_site, request)
        points = Points(chosen, comparison=compared)
        fleet = Points(chosen, FleetSample, compared)
        found = marked(self.admin_site, request, points.since)
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
            "cards": cards(figures, points, fleet),
            "failing": failing(figures, points),
            "charts": charts(points, fleet, found),
            "marks": found,
            **comparison.context(compared, comparison.note_on(points)),
            "queues": figures.queues[:SHOWN_QUEUES],
            "more_queues": max(0, len(figures.queues) - SHOWN_QUEUES),
            "may_pause": not is_kiosk and self._may_pause(request),
            "is_kiosk": is_kiosk,
            "cells": cells(request),
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


def cells(request: HttpRequest) -> list[tuple[str, str, bool]]:
    """Name, URL and whether it is this one of each deployment in `OJS["CELLS"]`."""
    here = request.build_absolute_uri()
    return [(name, url, here.startswith(url)) for name, url in ojs_settings.CELLS.items()]


def charts(points: Points, fleet: Points, marks: Marked) -> list[Chart]:
    drawn = [comparison.compared(draw, points) for draw in (throughput, latency, depth)]
    drawn.append(comparison.compared(states, fleet))
    return [replace(chart, marks=marks.of_chart) for chart in drawn]
