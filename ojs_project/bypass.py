"""Answers requests of the fast path without Django's handler and middleware.

For the fast path (`jobs.http.fast_path`), the project's middleware does nothing but add headers,
which are the same for each response. All other requests, and unusual ones, go through Django's
handler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from http import HTTPStatus
from io import BytesIO
from types import SimpleNamespace
from typing import Any

from django.conf import settings
from django.core.cache import close_caches
from django.core.handlers.base import reset_urlconf
from django.core.handlers.wsgi import LimitedStream, WSGIHandler, WSGIRequest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections, connections, reset_queries
from django.dispatch import Signal
from django.http import HttpResponse
from django.middleware.security import SecurityMiddleware
from django.urls import Resolver404
from django.utils.log import log_response

from jobs.http.base import failed, mark
from jobs.http.fast_path import Answer, FastView, Parked
from jobs.http.hosts import is_served
from jobs.http.request import Readable
from workers.asgi.application import Later, Reply

from .middleware import MOST, OUR_POLICY, POLICY, PROTOCOLS, resolve, with_policy

BEFORE = (
    "ojs_project.middleware.PolicyMiddleware",
    "ojs_project.middleware.HostMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "ojs_project.middleware.ProtocolMiddleware",
)
MOVED = ("SCRIPT_NAME", "SCRIPT_URL", "REDIRECT_URL")
"""Variables by which a server reports a prefix of the site or a rewritten path."""
METHODS = frozenset({"GET", "POST"})
"""Methods that have a fast path."""
LISTENING = (reset_queries, close_old_connections, close_caches, reset_urlconf)
"""Django's own receivers of the signals at a request's start and end."""
STATUS = {status.value: f"{status.value} {status.phrase}" for status in HTTPStatus}

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Hot = Callable[[dict[str, Any], Readable], Answer | Parked]
"""The fast path of one address."""


class Bypass:
    """A WSGI application around the project's own."""

    def __init__(self, project: Application) -> None:
        self._project = project
        # Middleware that a site puts before ours must see every request.
        self._is_open = (
            tuple(settings.MIDDLEWARE[: len(BEFORE)]) == BEFORE
            and settings.FORCE_SCRIPT_NAME is None
        )
        # Django would redirect plain HTTP, or the response would lack a header.
        self._only_secure = bool(settings.SECURE_SSL_REDIRECT or settings.SECURE_HSTS_SECONDS)
        self._security = SecurityMiddleware(lambda request: HttpResponse())
        self._headers = _security_headers(self._security, is_secure=self._only_secure)
        self._headers.append((POLICY, OUR_POLICY))
        self._started = _own_receivers(request_started)
        self._finished = _own_receivers(request_finished)
        self._databases = len(settings.DATABASES)
        self._known: dict[str, tuple[FastView, Hot]] = {}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        reply = self.respond(environ)
        if reply is None:
            return self._project(environ, start_response)
        assert isinstance(reply, Reply)  # without an event loop, no response is delayed
        start_response(STATUS[reply.status], reply.headers)
        # A list is sent at once. From a response object, the server would request one part after
        # the other.
        return [reply.content]

    def respond(self, environ: dict[str, Any]) -> Reply | Later | None:
        """Answer a request over the fast path; None if it goes through Django's handler."""
        try:
            hot = self._hot(environ)
        except Exception as problem:
            return self._hand_over(environ, failed(environ, environ["PATH_INFO"], problem))
        if hot is None:
            return None
        used = self._begin(environ)
        try:
            found = hot(environ, _stream(environ))
            if isinstance(found, Parked):
                return Later(found, partial(self._reply, environ))
            return self._reply(environ, found)
        except Exception as problem:
            return self._hand_over(environ, failed(environ, environ["PATH_INFO"], problem))
        finally:
            self._end(used)

    def gathered(self, environ: dict[str, Any]) -> FastView | None:
        """The view of a request that may be answered together with others."""
        hot = self._hot(environ)
        if hot is None:
            return None
        # Only a path without parameters, like the cached ones.
        view, _ = self._known.get(environ["PATH_INFO"], (None, None))
        body = environ["wsgi.input"]
        # Any other stream fails when it is read: the body was given up.
        is_whole = isinstance(body, BytesIO)
        return view if view and is_whole and view.is_gathered(body.getvalue()) else None

    def respond_together(
        self, view: FastView, environs: Sequence[dict[str, Any]]
    ) -> list[Reply | Later]:
        """Answer requests of a `gathered` view."""
        used = self._begin(environs[0])
        try:
            answers = view.answer_together(
                [(environ, environ["PATH_INFO"], environ["wsgi.input"]) for environ in environs]
            )
            return [
                Later(found, partial(self._reply, environ))
                if isinstance(found, Parked)
                else self._reply(environ, found)
                for environ, found in zip(environs, answers, strict=True)
            ]
        finally:
            self._end(used)

    def _reply(self, environ: dict[str, Any], answer: Answer) -> Reply:
        status, headers, content, stream, unsent, is_logged = answer
        if status >= 400:
            response = HttpResponse(content, status=status, headers=headers)
            mark(response, is_logged=is_logged)
            return self._hand_over(environ, response)
        sent = [*headers.items(), *self._headers]
        if stream is None:
            sent.append(("Content-Length", str(len(content))))
        return Reply(status, sent, content, stream, unsent)

    def _hot(self, environ: dict[str, Any]) -> Hot | None:
        """The fast path of a request; None if it goes through Django's handler."""
        path = environ.get("PATH_INFO") or ""
        if (
            environ["REQUEST_METHOD"] not in METHODS
            or not path.startswith(PROTOCOLS)
            or not self._is_open
            or not path.isascii()
            or any(map(environ.get, MOVED))
            or not is_served(environ)
            or (self._only_secure and not WSGIRequest(environ).is_secure())
        ):
            return None
        view, hot = self._known.get(path) or self._look_up(path)
        if view is None or view.method != environ["REQUEST_METHOD"] or not view.is_on(environ):
            return None
        return hot

    def _look_up(self, path: str) -> tuple[FastView, Hot] | tuple[None, None]:
        try:
            match = resolve(path)
        except Resolver404:
            return None, None
        view = match.func
        if not isinstance(view, FastView):
            return None, None
        hot = partial(_answer, view, path, match.kwargs)
        if not match.kwargs and len(self._known) < MOST:
            self._known[path] = view, hot
        return view, hot

    def _hand_over(self, environ: dict[str, Any], response: Any) -> Reply:
        """Finish an error, and log it, as Django's handler does."""
        request = WSGIRequest(environ)
        self._security.process_response(request, response)
        with_policy(response)
        log_response(
            "%s: %s",
            response.reason_phrase,
            request.path,
            response=response,
            request=request,
        )
        if not response.has_header("Content-Length"):
            response["Content-Length"] = str(len(response.content))
        return Reply(response.status_code, list(response.items()), response.content)

    def _begin(self, environ: dict[str, Any]) -> Sequence[Any]:
        """Do what Django does at the start of a request; return the connections it checked."""
        if len(request_started.receivers) > self._started:
            request_started.send(sender=WSGIHandler, environ=environ)
            return []
        used = connections.all(initialized_only=True)
        for connection in used:
            connection.queries_log.clear()
            connection.close_if_unusable_or_obsolete()
        return used

    def _end(self, used: Sequence[Any]) -> None:
        """Do what Django does at the end of a request."""
        if len(request_finished.receivers) > self._finished:
            request_finished.send(sender=WSGIHandler)
            return
        if len(used) < self._databases:
            used = connections.all(initialized_only=True)
        for connection in used:
            connection.close_if_unusable_or_obsolete()


def _answer(
    view: FastView, path: str, named: dict[str, str], environ: dict[str, Any], stream: Readable
) -> Answer | Parked:
    return view.answer(environ, path, stream, **named)


def _stream(environ: dict[str, Any]) -> Readable:
    stream: Any = environ["wsgi.input"]
    length = environ.get("CONTENT_LENGTH") or ""
    if environ.get("wsgi.input_terminated") and (not length or length.isdecimal()):
        body: Readable = stream
        return body
    return LimitedStream(stream, int(length) if length.isdecimal() else 0)


def _own_receivers(signal: Signal) -> int:
    """The number of Django's own receivers, whose work is done here."""
    return sum(1 for _, receiver, *_ in signal.receivers if receiver() in LISTENING)


def _security_headers(security: SecurityMiddleware, *, is_secure: bool) -> list[tuple[str, str]]:
    response = HttpResponse()
    del response["Content-Type"]
    request: Any = SimpleNamespace(is_secure=lambda: is_secure)
    security.process_response(request, response)
    return list(response.items())
