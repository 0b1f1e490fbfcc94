"""From the server's door to the view of a protocol, past what only browsers need.

Thousands of requests a second come this way, and each layer that one of them does not pass leaves
the processor's caches to the next. Everybody else, and whoever is not the plain case, goes through
Django's handler, where `ojs_project.middleware` leads to the same views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

from django.conf import settings
from django.core.cache import close_caches
from django.core.handlers.base import reset_urlconf
from django.core.handlers.exception import response_for_exception
from django.core.handlers.wsgi import WSGIHandler, WSGIRequest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connections, reset_queries
from django.dispatch import Signal
from django.http import HttpResponse
from django.middleware.security import SecurityMiddleware
from django.utils.log import log_response

from jobs.http.base import OJSViewSet
from jobs.http.hosts import is_served
from jobs.http.request import Request
from jobs.http.response import Response, for_django

from .middleware import MOST, OUR_POLICY, POLICY, PROTOCOLS, call, resolve, with_policy

BEFORE = (
    "ojs_project.middleware.PolicyMiddleware",
    "ojs_project.middleware.HostMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "ojs_project.middleware.ProtocolMiddleware",
)
MOVED = ("SCRIPT_NAME", "SCRIPT_URL", "REDIRECT_URL")
"""Where a server says that the site is below a prefix, or that the path was another one."""
LISTENING = (reset_queries, close_old_connections, close_caches, reset_urlconf)
"""Django's own receivers of a request's start and end."""
STATUS = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class FastPath:
    """A WSGI application around the project's own."""

    def __init__(self, project: Application) -> None:
        self._project = project
        # Whoever puts a middleware before ours has it see every request.
        self._is_open = (
            tuple(settings.MIDDLEWARE[: len(BEFORE)]) == BEFORE
            and settings.FORCE_SCRIPT_NAME is None
        )
        # What comes by plain HTTP is then sent elsewhere, or lacks a header.
        self._only_secure = bool(settings.SECURE_SSL_REDIRECT or settings.SECURE_HSTS_SECONDS)
        self._security = SecurityMiddleware(lambda request: HttpResponse())
        self._headers = _security_headers(self._security, is_secure=self._only_secure)
        self._headers.append((POLICY, OUR_POLICY))
        self._started = _own_receivers(request_started)
        self._finished = _own_receivers(request_finished)
        self._databases = len(settings.DATABASES)
        self._known: dict[str, Callable[..., Any]] = {}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO") or ""
        if (
            not path.startswith(PROTOCOLS)
            or not self._is_open
            or not path.isascii()
            or any(map(environ.get, MOVED))
            or not is_served(environ)
            or (self._only_secure and not WSGIRequest(environ).is_secure())
        ):
            return self._project(environ, start_response)
        used = self._begin(environ)
        request = Request(environ)
        try:
            response = self._answer(request)
        except Exception as problem:
            response = response_for_exception(request._request, problem)
        if type(response) is not Response or response.status_code >= 400:
            return self._hand_over(request, for_django(response), start_response)
        content = response.content
        headers = [*response.headers.items(), ("Content-Length", str(len(content)))]
        start_response(STATUS[response.status_code], headers + self._headers)
        self._end(used)
        # A list, which the server sends at once. It would ask a response for one part after the
        # other.
        return [content]

    def _answer(self, request: Request) -> Any:
        known = self._known.get(request.path)
        if known is not None:
            return known(request)
        match = resolve(request.path)
        view: Any = match.func
        viewset = getattr(view, "cls", None)
        if viewset is None or not issubclass(viewset, OJSViewSet):
            return call(match, request._request)
        enter = partial(viewset.enter, view.actions)
        if match.url_name and not match.kwargs and len(self._known) < MOST:
            self._known[request.path] = enter
        return enter(request, **match.kwargs)

    def _hand_over(self, request: Request, response: Any, start_response: Any) -> Iterable[bytes]:
        """Send a response of Django's, as its handler does."""
        self._security.process_response(request._request, response)
        with_policy(response)
        if response.status_code >= 400:
            log_response(
                "%s: %s",
                response.reason_phrase,
                request.path,
                response=response,
                request=request._request,
            )
        status = f"{response.status_code} {response.reason_phrase}"
        if not response.streaming and not response.has_header("Content-Length"):
            response["Content-Length"] = str(len(response.content))
        start_response(status, list(response.items()))
        if response.streaming:
            # Its end tells that the request has ended.
            response._handler_class = WSGIHandler
            return response
        self._end([])
        return [response.content]

    def _begin(self, environ: dict[str, Any]) -> Sequence[Any]:
        """What Django does when a request starts; return the connections to look after."""
        if len(request_started.receivers) > self._started:
            request_started.send(sender=WSGIHandler, environ=environ)
            return []
        used = connections.all(initialized_only=True)
        for connection in used:
            connection.queries_log.clear()
            connection.close_if_unusable_or_obsolete()
        return used

    def _end(self, used: Sequence[Any]) -> None:
        """What Django does when a request ends."""
        if len(request_finished.receivers) > self._finished:
            request_finished.send(sender=WSGIHandler)
            return
        if len(used) < self._databases:
            used = connections.all(initialized_only=True)
        for connection in used:
            connection.close_if_unusable_or_obsolete()


def _own_receivers(signal: Signal) -> int:
    """How many of those who listen are Django's own; what they do is done here."""
    return sum(1 for _, receiver, *_ in signal.receivers if receiver() in LISTENING)


def _security_headers(security: SecurityMiddleware, *, is_secure: bool) -> list[tuple[str, str]]:
    response = HttpResponse()
    del response["Content-Type"]
    request: Any = SimpleNamespace(is_secure=lambda: is_secure)
    security.process_response(request, response)
    return list(response.items())
