"""The fast path: the hot verbs answered without REST framework's and Django's objects.

Enqueue, fetch, ack, nack and heartbeat come thousands of times a second. For them a request and a
response of REST framework take longer than all that is done about them in Python. `fast()` puts a
view before the viewset's own that asks for the same, in the same order, by the same functions, and
calls the verb itself. `OJS["FAST_PATH"] = False` switches it off; the viewset answers then, and the
same (`tests/project/test_fast_path.py`).

Verbs that wait or stream go the same way, since such a view can hand over to an event loop what is
not there yet (`Parked`).

A server may also ask such a view past Django's handler, with nothing but a WSGI environment:
`ojs_project.bypass` does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
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
from .loop import LOOP, Stream
from .negotiation import renderer_for
from .request import Meta, Readable, body_stream, check_url, request_id_of
from .verbs import Verb, VerbRequest, VerbResponse
from .versioning import check_version
from .waiting import Look, Waiting


class Answer(NamedTuple):
    """A response as it is sent."""

    status: int
    headers: dict[str, str]
    content: bytes
    stream: Stream | None = None
    """The body, in place of `content`."""


class Parked(NamedTuple):
    """A request whose answer is not there yet."""

    waiting: Waiting[Answer]
    answer: Callable[[Look], Answer | None]
    """Makes the answer of what a look finds; called in a thread."""


class ParkedResponse(HttpResponse):
    """Stands for the answer on its way through Django's middleware."""

    def __init__(self, parked: Parked) -> None:
        super().__init__()
        del self["Content-Type"]
        self.parked = parked


class StreamedResponse(HttpResponse):
    """Stands for a body that an event loop writes."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(status=answer.status, headers=answer.headers)
        self.stream = answer.stream


class FastView:
    """The view of an address whose verb is called past REST framework."""

    def __init__(self, view: Any, verb: Verb, method: str, *, streams: bool) -> None:
        """
        Args:
            view: of a viewset: the same without the fast path.
        """
        update_wrapper(self, view)
        self._view = view
        self._verb = verb
        self.method = method
        self._streams = streams
        viewset: type[OJSViewSet] = view.cls
        self._viewset = viewset
        self._command = access.find(
            viewset.binding, f"{viewset.resource}.{view.actions[method.lower()]}"
        )
        (authentication,) = viewset.authentication_classes
        self._authentication = authentication()
        self._renderers = [renderer() for renderer in viewset.renderer_classes]
        self._has_version = viewset.versioning_class is not None

    def is_on(self, meta: Meta) -> bool:
        """Whether this view answers, and not the viewset's own."""
        return LOOP in meta if self._streams else ojs_settings.FAST_PATH

    def __call__(self, request: HttpRequest, **named: str) -> HttpResponseBase:
        if request.method != self.method or not self.is_on(request.META):
            response: HttpResponseBase = self._view(request, **named)
            return response
        found = self.answer(request.META, request.path, body_stream(request), **named)
        if isinstance(found, Parked):
            return ParkedResponse(found)
        if found.stream is not None:
            return StreamedResponse(found)
        return HttpResponse(found.content, status=found.status, headers=found.headers)

    def answer(self, meta: Meta, path: str, stream: Readable, **named: str) -> Answer | Parked:
        """Answer a request of the method.

        Args:
            named: what the path names, such as `job_id`.

        Returns:
            Where an event loop waits for it, perhaps a request that is parked.
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
                caller = self._authentication.caller(self.method, meta)
                access.authorize(caller, self._command)
                if named and caller.project:
                    self._viewset.confine(caller, **named)
                document = read_object(stream, meta) if self.method == "POST" else None
                request = VerbRequest(caller, document, meta, path, request_id)
                response = self._verb(request, **named)
                if isinstance(response, Waiting):
                    if LOOP in meta:
                        again = partial(self._answer_later, meta, path, request_id, caller)
                        return Parked(response, again)
                    response = response.in_thread()
        except Exception as problem:
            response = self._refuse(problem, meta, path, request_id, caller)
        return self._finish(response, meta, request_id)

    def _answer_later(
        self, meta: Meta, path: str, request_id: str, caller: Caller, look: Look
    ) -> Answer | None:
        try:
            with bounded("A request"):
                response = look()
        except Exception as problem:
            response = self._refuse(problem, meta, path, request_id, caller)
        return None if response is None else self._finish(response, meta, request_id)

    def _refuse(
        self, problem: Exception, meta: Meta, path: str, request_id: str, caller: Caller | None
    ) -> VerbResponse:
        errors.note_refusal(
            problem,
            caller,
            protocol=self._authentication.protocol,
            method=self.method,
            path=path,
            meta=meta,
        )
        return errors.answer_to(problem, request_id, path, self._viewset.refuse)

    def _finish(self, response: VerbResponse, meta: Meta, request_id: str) -> Answer:
        headers = response.headers
        dress(headers, response.status, request_id, has_version=self._has_version)
        if response.stream is not None:
            return Answer(response.status, headers, b"", response.stream)
        renderer = renderer_for(meta, self._renderers)
        headers["Content-Type"] = renderer.media_type
        return Answer(response.status, headers, renderer.render(response.document))


def fast(view: Any, verb: Verb, method: str = "POST", *, streams: bool = False) -> FastView:
    """Put the fast path before a viewset's view of one verb.

    Args:
        view: `SomeViewSet.as_view({"post": action})`.
        verb: what that action carries out.
        streams: the verb writes a stream on an event loop. Where there is none, the viewset
            answers; where there is one, the verb does whatever `FAST_PATH` says.
    """
    return FastView(view, verb, method, streams=streams)
