"""Browser page while the database is unavailable: says so, and reloads itself.

It needs no database. Clients of a protocol are answered in its own form (`jobs.http`).
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template import loader
from django.utils.cache import add_never_cache_headers
from django.utils.translation import gettext
from django.views import defaults

from jobs.errors import DatabaseUnavailable
from jobs.store.trouble import explain

logger = logging.getLogger("ojs_project")

TEMPLATE = "admin/ojs/unavailable.html"
AGAIN = 5
"""Seconds until the page reloads."""

_known: set[str] = set()
"""What has been logged since a page could last be answered."""


class UnavailableMiddleware:
    """Answers for views that found the database unavailable."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        response = self.get_response(request)
        # A user was looked up for it, in the database.
        known = getattr(request, "_cached_user", None)
        if _known and response.status_code < 500 and known is not None and known.is_authenticated:
            _known.clear()
            logger.info("Pages are answered again.")
        return response

    def process_exception(self, request: HttpRequest, problem: Exception) -> HttpResponse | None:
        return answer(request, problem)


def server_error(request: HttpRequest) -> HttpResponse:
    """The project's `handler500`: database errors in other middleware end up here."""
    problem = sys.exc_info()[1]
    answered = answer(request, problem) if problem is not None else None
    return answered or defaults.server_error(request)


def answer(request: HttpRequest, problem: BaseException) -> HttpResponse | None:
    """Return the page, if the problem is that the database is unavailable."""
    trouble = explain(problem)
    if not isinstance(trouble, DatabaseUnavailable):
        return None
    _complain(trouble.message, problem)
    is_safe = request.method in ("GET", "HEAD")
    text = loader.render_to_string(
        TEMPLATE,
        {
            # For a person: as `jobs.store.trouble` marks it.
            "reason": gettext(trouble.message),
            "again": AGAIN,
            # A submitted form is not submitted again by itself.
            "reload": is_safe,
            "here": request.get_full_path(),
        },
    )
    response = HttpResponse(text, status=503)
    response["Retry-After"] = str(AGAIN)
    add_never_cache_headers(response)
    # No further log line and traceback for each request.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _complain(reason: str, problem: BaseException) -> None:
    if reason not in _known:
        _known.add(reason)
        detail = " ".join(str(problem).split())
        logger.error("Pages are answered 503 for now: %s %s", reason, detail)
