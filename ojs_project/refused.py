"""Browser page for what a user may not do; a line in the log, without a traceback."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers
from django.utils.translation import gettext as _
from django.views import defaults

TEMPLATE = "admin/ojs/forbidden.html"
OUTDATED = "admin/ojs/outdated.html"


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The project's `handler403`."""
    user: Any = getattr(request, "user", None)
    if user is None or not user.is_authenticated:
        return defaults.permission_denied(request, exception)
    return _page(request, TEMPLATE, _("You may not do this"))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    """The project's `CSRF_FAILURE_VIEW`: mostly, someone has logged in again in another tab."""
    response = _page(request, OUTDATED, _("This page is out of date"))
    add_never_cache_headers(response)
    return response


def _page(request: HttpRequest, template: str, title: str) -> HttpResponse:
    context = {**admin.site.each_context(request), "title": title}
    request.current_app = admin.site.name
    return TemplateResponse(request, template, context, status=403).render()


class WithoutTraceback(logging.Filter):
    """Leaves refusals their line: where in Django they were raised helps no one."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], PermissionDenied):
            record.exc_info = record.exc_text = None
        return True
