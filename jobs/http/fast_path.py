"""The fast path: the hot verbs answered without REST framework's and Django's objects.

Enqueue, fetch, ack, nack and heartbeat come thousands of times a second. For them a request and a
response of REST framework take longer than all that is done about them in Python. `fast()` puts a
view before the viewset's own that asks for the same, in the same order, by the same functions, and
calls the verb itself. `OJS["FAST_PATH"] = False` switches it off; the viewset answers then, and the
same (`tests/project/test_fast_path.py`).

A server may also ask such a view past Django's handler, with nothing but a WSGI environment:
`ojs_project.bypass` does.
"""

from __future__ import annotations

from functools import update_wrapper
from typing import Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from .. import access
from ..conf import ojs_settings
from ..store.database import connection, drop_if_dead
from ..store.watchdog import bounded
from . import errors
from .authentication import Caller
from .base import OJSViewSet, dress
from .body import read_object
from .hosts import check_host
from .negotiation import renderer_for
from .request import Meta, Readable, body_stream, check_url, request_id_of
from .verbs import Verb, VerbRequest
from .versioning import check_version

METHOD = "POST"
"""That of every hot verb."""


class Answer(NamedTuple):
    """A response as it is sent."""

    status: int
    headers: dict[str, str]
    content: bytes


class FastView:
    """The view of an address that has one hot verb and nothing else."""

    def __init__(self, view: Any, verb: Verb) -> None:
        """
        Args:
            view: of a viewset: the same without the fast path.
        """
        update_wrapper(self, view)
        self._view = view
        self._verb = verb
        viewset: type[OJSViewSet] = view.cls
        self._viewset = viewset
        self._command = access.find(
            viewset.binding, f"{viewset.resource}.{view.actions[METHOD.lower()]}"
        )
        (authentication,) = viewset.authentication_classes
        self._authentication = authentication()
        self._renderers = [renderer() for renderer in viewset.renderer_classes]
        self._has_version = viewset.versioning_class is not None

    @property
    def is_on(self) -> bool:
        return ojs_settings.FAST_PATH

    def __call__(self, request: HttpRequest, **named: str) -> HttpResponseBase:
        if request.method != METHOD or not self.is_on:
            response: HttpResponseBase = self._view(request, **named)
            return response
        status, headers, content = self.answer(
            request.META, request.path, body_stream(request), **named
        )
        return HttpResponse(content, status=status, headers=headers)

    def answer(self, meta: Meta, path: str, stream: Readable, **named: str) -> Answer:
        """Answer a POST.

        Args:
            named: what the path names, such as `job_id`.
        """
        request_id = request_id_of(meta)
        caller: Caller | None = None
        drop_if_dead(connection())
        try:
            with bounded("A request"):
                check_host(meta)
                check_url(path, meta)
                if self._has_version:
                    check_version(meta)
                caller = self._authentication.caller(METHOD, meta)
                access.authorize(caller, self._command)
                if named and caller.project:
                    self._viewset.confine(caller, **named)
                document = read_object(stream, meta)
                request = VerbRequest(caller, document, meta, path, request_id)
                response = self._verb(request, **named)
        except Exception as problem:
            errors.note_refusal(
                problem,
                caller,
                protocol=self._authentication.protocol,
                method=METHOD,
                path=path,
                meta=meta,
            )
            response = errors.answer_to(problem, request_id, path, self._viewset.refuse)
        renderer = renderer_for(meta, self._renderers)
        headers = response.headers
        dress(headers, response.status, request_id, has_version=self._has_version)
        headers["Content-Type"] = renderer.media_type
        return Answer(response.status, headers, renderer.render(response.document))


def fast(view: Any, verb: Verb) -> FastView:
    """Put the fast path before a viewset's view of one hot verb.

    Args:
        view: `SomeViewSet.as_view({"post": action})`.
        verb: what that action carries out.
    """
    return FastView(view, verb)
