"""Documentation of the API: the OpenAPI document, and pages to read."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.gzip import gzip_page
from django.views.decorators.http import require_safe

from jobs.http.base import dress
from jobs.http.renderers import dumps
from jobs.http.request import request_id_of
from workers.openapi import document as openapi

View = Callable[[HttpRequest], HttpResponse]


def dressed(view: View) -> View:
    """Put the headers on that every response has (OJS HTTP §6.5)."""

    @wraps(view)
    def answer(request: HttpRequest) -> HttpResponse:
        response = view(request)
        dress(response.headers, response.status_code, request_id_of(request.META))
        return response

    return answer


PREFIX = "/ojs/v1/openapi.json"


def _mounted(request: HttpRequest) -> str:
    """Prefix under which the site includes the URLs; empty if there is none."""
    return request.path.removesuffix(PREFIX).removesuffix("/ojs/v1/docs")


@dressed
@require_safe
@gzip_page
def openapi_json(request: HttpRequest) -> HttpResponse:
    """The OpenAPI document, for tools; the same for every caller."""
    document = openapi.current() | {"servers": [{"url": _mounted(request) or "/"}]}
    response = HttpResponse(dumps(document), content_type="application/json")
    # Tools in a browser on another site may read it: it contains nothing about this site.
    response["Access-Control-Allow-Origin"] = "*"
    return response


FORMS = "forms"
"""Value of `tag` for the page of all schemas."""


@dressed
@require_safe
@gzip_page
def docs(request: HttpRequest) -> HttpResponse:
    """The same as pages, one for each tag: endpoints with their parameters, examples and refusals.

    `?q=` finds endpoints of all tags by words of their path, summary and description.
    """
    document = openapi.current()
    base = request.build_absolute_uri(_mounted(request) or "/").rstrip("/")
    sections = openapi.sections(document, base)
    tag, words = request.GET.get("tag", ""), request.GET.get("q", "").split()
    if words:
        shown = openapi.found(sections, words)
    elif tag == FORMS:
        shown = {}
    else:
        tag = tag if tag in sections else next(iter(sections))
        shown = {tag: sections[tag]}
    context: dict[str, Any] = {
        "info": document["info"],
        "sections": sections,
        "shown": shown,
        "query": " ".join(words),
        "tag": tag,
        "forms": openapi.forms(document) if tag == FORMS and not words else {},
        "json_url": reverse("ojs:openapi", current_app=getattr(request, "current_app", None)),
    }
    # Everything on it is English: what describes the API is not translated.
    response = render(request, "ojs/api.html", context)
    response["Content-Language"] = "en"
    return response
