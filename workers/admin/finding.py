"""What the command palette finds: pages, queues, types of jobs, workers, and a job by its id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import Q
from django.http import HttpRequest, JsonResponse
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from jobs.admin import display
from jobs.models import Job, Queue, TypeRollup
from jobs.record import parts
from jobs.spec.identifiers import typed_uuid

from ..models import Dashboard, Worker

MOST = 8
"""Most finds of a kind."""
LONGEST = 255

Find = tuple[str, str, str]
"""Kind, name and address."""


def find_view(site: Any, request: HttpRequest) -> JsonResponse:
    """`{"found": [{"kind": …, "name": …, "url": …}, …]}`, of what this user may look at."""
    text = request.GET.get("q", "").strip()[:LONGEST]
    found = [*_by_name(site, request, text), *_pages(site, request, text)]
    names = ("kind", "name", "url")
    return JsonResponse({"found": [dict(zip(names, each, strict=True)) for each in found]})


def _pages(site: Any, request: HttpRequest, text: str) -> Iterator[Find]:
    """Lists of models, and forms to add to them, whose name contains the text."""
    found: list[Find] = []
    for app in site.get_app_list(request):
        for model in app["models"]:
            name = str(model["name"])
            if model.get("admin_url"):
                found.append((_("page"), name, model["admin_url"]))
            if model.get("add_url"):
                singular = model["model"]._meta.verbose_name
                label = _("Add %(name)s") % {"name": singular}
                found.append((_("page"), label, model["add_url"]))
    matching = [each for each in found if text.casefold() in each[1].casefold()]
    yield from matching[: MOST if text else None]


def _by_name(site: Any, request: HttpRequest, text: str) -> Iterator[Find]:
    job_id = typed_uuid(text)
    if job_id is not None:
        url = display.page_url(site, request, Job, "change", job_id)
        if url and Job.objects.filter(pk=job_id).exists():
            yield _("job"), str(job_id), url
    if not text:
        return
    if display.page_url(site, request, Queue, "changelist"):
        queues = Queue.objects.filter(name__icontains=text).order_by("name")
        for name in queues.values_list("name", flat=True)[:MOST]:
            yield _("queue"), name, display.page_url(site, request, Queue, "change", name)
    yield from _types(site, request, text)
    if display.page_url(site, request, Worker, "changelist"):
        workers = Worker.objects.filter(
            Q(worker_id__icontains=text) | Q(hostname__icontains=text)
        ).order_by("-last_heartbeat_at", "pk")
        for name in workers.values_list("pk", flat=True)[:MOST]:
            yield _("worker"), name, display.page_url(site, request, Worker, "change", name)


def _types(site: Any, request: HttpRequest, text: str) -> Iterator[Find]:
    """Types with figures; for a user without the dashboard, the list of their jobs."""
    try:
        page = reverse("admin:ojs_workers_dashboard_breakdown", current_app=site.name)
    except NoReverseMatch:
        page = ""
    jobs = display.page_url(site, request, Job, "changelist")
    dashboard = site._registry.get(Dashboard)
    if dashboard is None or not dashboard.has_view_permission(request):
        page = ""
    if not page and not jobs:
        return
    known = (name for name in parts.names(TypeRollup) if text.casefold() in name.casefold())
    for _place, name in zip(range(MOST), known, strict=False):
        query = urlencode({"by": "type", "name": name} if page else {"type": name})
        yield _("type"), name, f"{page or jobs}?{query}"
