"""The short way of the protocols through the project."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponseBase
from django.urls import ResolverMatch, URLResolver, get_resolver, get_urlconf
from django.utils import translation

PROTOCOLS = ("/ojs/", "/flare/")


MOST = 1_000
_matches: dict[tuple[URLResolver, str], ResolverMatch] = {}


def resolve(path: str) -> ResolverMatch:
    """Find the view of a path; where the path is all there is to it, only once.

    Django tries one pattern after the other, more than twenty for an enqueue.
    """
    resolver = get_resolver(get_urlconf())
    known = _matches.get((resolver, path))
    if known is not None:
        return known
    match = resolver.resolve(path)
    # One with a job's id hardly comes again, and names that nothing answers to are without end.
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
    """Lead workers and producers straight to their view; everybody else on through the rest.

    They send a key, not a cookie, and read JSON: sessions, messages, CSRF tokens and frames concern
    people with a browser. What stands before it in `MIDDLEWARE` concerns everybody.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        if not request.path_info.startswith(PROTOCOLS):
            try:
                return self.get_response(request)
            finally:
                # The language of a person would outlive the request in this thread, and a worker
                # be answered in it.
                translation.deactivate()
        return call(resolve(request.path_info), request)
