"""Middleware before every view: the edge of the site, and a direct path for the protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.middleware.gzip import GZipMiddleware
from django.urls import ResolverMatch, URLResolver, get_resolver, get_urlconf
from django.utils import translation

from jobs.conf import path_prefixes
from jobs.errors import InvalidRequest
from jobs.http.base import failed, refused
from jobs.http.hosts import check_host

PROTOCOLS = path_prefixes()
POLICY = "Content-Security-Policy"
OUR_POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "object-src 'none'"
)
"""Scripts, styles and pictures come from this site's own files; nothing is inline."""
DEBUG_PAGES = (400, 403, 404, 500)
"""Statuses that Django explains in DEBUG, on pages with inline styles and scripts."""

Handler = Callable[[HttpRequest], HttpResponseBase]


class PolicyMiddleware:
    """Send a content security policy with every response.

    Django has a middleware for it from version 6 on. One policy for all pages, without nonces or
    exceptions, is a mere header, and `bypass` sends it without a middleware.
    """

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return with_policy(self.get_response(request))


def with_policy(response: HttpResponseBase) -> HttpResponseBase:
    if not (settings.DEBUG and response.status_code in DEBUG_PAGES):
        response.headers.setdefault(POLICY, OUR_POLICY)
    return response


class HostMiddleware:
    """Answer 400 to requests for a host not in `ALLOWED_HOSTS`, on every path.

    Django checks the host only when it is used, and writes a traceback each time.
    """

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        try:
            check_host(request.META)
        except InvalidRequest as refusal:
            return _refused(request, refusal)
        return self.get_response(request)


def _refused(request: HttpRequest, refusal: InvalidRequest) -> HttpResponse:
    if request.path_info.startswith(PROTOCOLS):
        response = refused(request.META, refusal)
    else:
        text = f"{refusal.message}\n{refusal.hint}\n"
        response = HttpResponse(text, status=400, content_type="text/plain; charset=utf-8")
    response["X-Content-Type-Options"] = "nosniff"
    # The check has logged what is worth logging: once for each host, not for each request.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


MOST = 1_000
_matches: dict[tuple[URLResolver, str], ResolverMatch] = {}


def resolve(path: str) -> ResolverMatch:
    """Find the view of a path; cache it if the path has no parameters.

    Django tries one pattern after the other, more than twenty for an enqueue.
    """
    resolver = get_resolver(get_urlconf())
    known = _matches.get((resolver, path))
    if known is not None:
        return known
    match = resolver.resolve(path)
    # A path with a job's id rarely recurs, and paths that match nothing are unlimited.
    if match.url_name and not (match.args or match.kwargs) and len(_matches) < MOST:
        _matches[resolver, path] = match
    return match


def call(match: ResolverMatch, request: HttpRequest) -> HttpResponseBase:
    """Call the view that was found for a path."""
    request.resolver_match = match
    response: HttpResponseBase = match.func(request, *match.args, **match.kwargs)
    if not getattr(response, "is_rendered", True):
        response.render()  # type: ignore[attr-defined]
    if not response.streaming and not response.has_header("Content-Length"):
        response["Content-Length"] = str(len(response.content))  # type: ignore[attr-defined]
    return response


class ProtocolMiddleware:
    """Send requests of workers and producers directly to their view, all others through the rest.

    They send a key, not a cookie, and read JSON: sessions, messages, CSRF tokens and frames concern
    people with a browser. Middleware before this one in `MIDDLEWARE` applies to all requests.
    """

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith(PROTOCOLS):
            try:
                return self.get_response(request)
            finally:
                # A person's language would outlive the request in this thread, and a worker would
                # be answered in it.
                translation.deactivate()
        try:
            return call(resolve(request.path_info), request)
        except Http404:
            raise
        except Exception as problem:
            return failed(request.META, request.path, problem)


class CompressionMiddleware(GZipMiddleware):
    """Compress the pages of the admin; pass streams on without buffering them.

    Secrets in pages (CSRF tokens) are masked anew each time, so the length reveals nothing.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> Any:
        if response.streaming:
            return response
        return super().process_response(request, response)
