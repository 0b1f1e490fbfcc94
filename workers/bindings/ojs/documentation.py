"""The API's own description: the OpenAPI document, and a page for people."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from jobs.http.renderers import dumps
from workers.openapi import document as openapi

PREFIX = "/ojs/v1/openapi.json"


def _mounted(request: HttpRequest) -> str:
    """Where the site put us: empty, or a prefix of the paths in the document."""
    return request.path.removesuffix(PREFIX).removesuffix("/ojs/v1/docs")


@require_safe
def openapi_json(request: HttpRequest) -> HttpResponse:
    """The OpenAPI document, for tools; the same for everybody."""
    document = openapi.current() | {"servers": [{"url": _mounted(request) or "/"}]}
    response = HttpResponse(dumps(document), content_type="application/json")
    # Tools that run in a browser on another site may read it: it tells nothing of this one.
    response["Access-Control-Allow-Origin"] = "*"
    return response


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    """The same as a page: every endpoint with its parameters, examples and refusals."""
    document = openapi.current()
    base = request.build_absolute_uri(_mounted(request) or "/").rstrip("/")
    context: dict[str, Any] = {
        "info": document["info"],
        "tags": document["tags"],
        "sections": openapi.sections(document, base),
        "forms": openapi.forms(document),
        "json_url": reverse("ojs:openapi", current_app=getattr(request, "current_app", None)),
    }
    return render(request, "ojs/api.html", context)
