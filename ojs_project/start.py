"""The start page of the stand-alone project: the dashboard, for users who may view it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.templatetags.static import static
from django.urls import reverse_lazy

from workers.models import Dashboard

NAME = "OJS for Django"


def dress(site: admin.AdminSite) -> None:
    """Give the admin the project's name, and the API's page as “View site”."""
    site.site_header = site.site_title = NAME
    site.site_url = reverse_lazy("ojs:docs")  # type: ignore[assignment]
    # Django's own index page, with our notices above it.
    site.index_template = "admin/ojs/index.html"


def start(request: HttpRequest) -> HttpResponse:
    """The dashboard; Django's index for users who may not view it."""
    site = admin.site
    pages: Any = site._registry[Dashboard]

    def view(request: HttpRequest) -> HttpResponse:
        if not pages.has_view_permission(request):
            return site.index(request)
        answer: HttpResponse = pages.changelist_view(request, {"is_start": True})
        return answer

    answered: HttpResponse = site.admin_view(view)(request)
    return answered


def favicon(request: HttpRequest) -> HttpResponse:
    """At the path that browsers request on their own."""
    return redirect(static("ojs/favicon.svg"))
