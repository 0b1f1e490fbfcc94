"""Fast path: the hot verbs answered without REST framework's and Django's objects.

Enqueue, fetch, ack, nack and heartbeat come thousands of times a second. For them, creating a
request and a response of REST framework takes longer than the rest of the Python code. `fast()`
puts a view before the viewset's own. It makes the same checks, in the same order, by the same
functions, and calls the verb itself. `OJS["FAST_PATH"] = False` switches it off; then the viewset
gives the same responses (`tests/project/test_fast_path.py`).

Verbs that wait or stream use it as well, since such a view can leave a pending response to an
event loop (`Parked`).

A server may also call such a view without Django's handler, with only a WSGI environment, as
`ojs_project.bypass` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
from .base import OJSViewSet, dress, mark
from .body import read_object
from .hosts import check_host
from .loop import LOOP, Stream
from .negotiation import renderer_for
from .permissions import check_again
from .request import Meta, Readable, body_stream, check_url, request_id_of
from .verbs import Batch, Unsent, Verb, VerbRequest, VerbResponse
from .versioning import check_version
from .waiting import Look, Waiting


class Answer(NamedTuple):
    """A response, ready to be sent."""

    status: int
    headers: dict[str, str]
    content: bytes
    stream: Stream | None = None
    """The body, instead of `content`."""
    unsent: Unsent | None = None
    """Takes back what it gives, if the client has disconnected before."""
    is_logged: bool = False
    """The log says why it is an error."""


class Parked(NamedTuple):
    """A request whose response is not available yet."""

    waiting: Waiting[Answer]
    answer: Callable[[Look], Answer | None]
    """Makes the response from what a query found; called in a thread."""


class ParkedResponse(HttpResponse):
    """Represents the parked request on its way through Django's middleware."""

    def __init__(self, parked: Parked) -> None:
        super().__init__()
        del self["Content-Type"]
        self.parked = parked


class WholeResponse(HttpResponse):
    """Represents an answer, and what is to be done if it cannot be sent."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.content, status=answer.status, headers=answer.headers)
        self.unsent = answer.unsent
        mark(self, is_logged=answer.is_logged)


class StreamedResponse(HttpResponse):
    """Represents a body that an event loop writes."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(status=answer.status, headers=answer.headers)
        self.stream = answer.stream


class _Asking:
    """A request that is being answered."""

    __slots__ = ("caller", "meta", "path", "request_id")

    def __init__(self, meta: Meta, path: str) -> None:
        self.meta = meta
        self.path = path
        self.request_id = request_id_of(meta)
        self.caller: Caller | None = None


class FastView:
    """The view of an address whose verb bypasses REST framework."""

    def __init__(
        self,
        view: Any,
        verb: Verb,
        method: str,
        *,
        streams: bool,
        batch: Batch | None,
        alone: re.Pattern[bytes] | None,
    ) -> None:
        """
        Args:
            view: a viewset's view, which does the same without the fast path.
        """
        update_wrapper(self, view)
        self._view = view
        self._verb = verb
        self.method = method
        self._streams = streams
        self.batch = batch
        self._alone = alone
        viewset: type[OJSViewSet] = view.cls
        self._viewset = viewset
        self._action: str = view.actions[method.lower()]
        self._mend = viewset.mends.get(self._action)
        self._command = access.find(viewset.binding, f"{viewset.resource}.{self._action}")
        (authentication,) = viewset.authentication_classes
        self._authentication = authentication()
        self._renderers = [renderer() for renderer in viewset.renderer_classes]
        self._has_version = viewset.versioning_class is not None

    def is_on(self, meta: Meta) -> bool:
        """Whether this view answers instead of the viewset's own."""
        return LOOP in meta if self._streams else ojs_settings.FAST_PATH

    def is_gathered(self, body: bytes) -> bool:
        """Whether a request may be answered together with others."""
        return self.batch is not None and not (self._alone and self._alone.search(body))

    def __call__(self, request: HttpRequest, **named: str) -> HttpResponseBase:
        if request.method != self.method or not self.is_on(request.META):
            response: HttpResponseBase = self._view(request, **named)
            return response
        found = self.answer(request.META, request.path, body_stream(request), **named)
        if isinstance(found, Parked):
            return ParkedResponse(found)
        if found.stream is not None:
            return StreamedResponse(found)
        return WholeResponse(found)

    def answer(self, meta: Meta, path: str, stream: Readable, **named: str) -> Answer | Parked:
        """Answer a request with the view's method.

        Args:
            named: parameters from the path, such as `job_id`.

        Returns:
            With an event loop, possibly a parked request.
        """
        drop_if_dead(connection())
        asking = _Asking(meta, path)
        try:
            with bounded("A request"):
                request = self._prepare(asking, stream, named)
                outcome: Any = self._verb(request, **named)
                if isinstance(outcome, Waiting) and LOOP not in meta:
                    outcome = outcome.in_thread(request.check_again)
        except Exception as problem:
            outcome = problem
        return self._answer(asking, outcome)

    def answer_together(self, given: Sequence[tuple[Meta, str, Readable]]) -> list[Answer | Parked]:
        """Answer requests that arrived at the same time."""
        drop_if_dead(connection())
        found: list[Any] = []
        requests: list[VerbRequest] = []
        asked = [_Asking(meta, path) for meta, path, _ in given]
        with bounded("Requests"):
            for asking, (_, _, stream) in zip(asked, given, strict=True):
                try:
                    requests.append(self._prepare(asking, stream, {}))
                    found.append(None)
                except Exception as problem:
                    found.append(problem)
            assert self.batch is not None
            try:
                outcomes = iter(self.batch(requests) if requests else ())
            except Exception as problem:
                outcomes = iter([problem] * len(requests))
        return [
            self._answer(asking, next(outcomes) if outcome is None else outcome)
            for asking, outcome in zip(asked, found, strict=True)
        ]

    def _prepare(self, asking: _Asking, stream: Readable, named: dict[str, str]) -> VerbRequest:
        """Make the checks that apply to every request, in the order of `OJSViewSet`."""
        meta, path = asking.meta, asking.path
        check_host(meta)
        check_url(path, meta)
        if self._has_version:
            check_version(meta)
        caller = asking.caller = self._authentication.caller(self.method, meta)
        access.authorize(caller, self._command)
        if named and caller.project:
            self._viewset.confine(caller, **named)
        self._viewset.check_query(self._action, meta)
        document = read_object(stream, meta, self._mend) if self.method == "POST" else None
        check = partial(self._check_again, asking)
        return VerbRequest(caller, document, meta, path, asking.request_id, check)

    def _check_again(self, asking: _Asking) -> None:
        assert asking.caller is not None
        check_again(
            asking.caller,
            self._command,
            authentication=self._authentication,
            method=self.method,
            meta=asking.meta,
        )

    def _answer(self, asking: _Asking, outcome: Any) -> Answer | Parked:
        if isinstance(outcome, Waiting):
            return Parked(outcome, partial(self._answer_later, asking))
        if isinstance(outcome, Exception):
            outcome = self._refuse(asking, outcome)
        return self._finish(asking, outcome)

    def _answer_later(self, asking: _Asking, look: Look) -> Answer | None:
        try:
            self._check_again(asking)
            response = look()
        except Exception as problem:
            response = self._refuse(asking, problem)
        return None if response is None else self._finish(asking, response)

    def _refuse(self, asking: _Asking, problem: Exception) -> VerbResponse:
        errors.note_refusal(
            problem,
            asking.caller,
            protocol=self._authentication.protocol,
            method=self.method,
            path=asking.path,
            meta=asking.meta,
        )
        return errors.answer_to(problem, asking.request_id, asking.path, self._viewset.refuse)

    def _finish(self, asking: _Asking, response: VerbResponse) -> Answer:
        headers = response.headers
        dress(headers, response.status, asking.request_id, has_version=self._has_version)
        if response.stream is not None:
            return Answer(response.status, headers, b"", response.stream)
        renderer = renderer_for(asking.meta, self._renderers)
        headers["Content-Type"] = renderer.media_type
        content = renderer.render(response.document)
        return Answer(response.status, headers, content, None, response.unsent, response.is_logged)


def fast(
    view: Any,
    verb: Verb,
    method: str = "POST",
    *,
    streams: bool = False,
    batch: Batch | None = None,
    alone: re.Pattern[bytes] | None = None,
) -> FastView:
    """Put the fast path before a viewset's view of one verb.

    Args:
        view: `SomeViewSet.as_view({"post": action})`.
        verb: the function that this action calls.
        streams: the verb writes a stream on an event loop. Without one, the viewset answers; with
            one, this view does, whatever `FAST_PATH` is.
        batch: handles several requests for the verb at once.
        alone: what is in the bodies of requests that are answered on their own nevertheless.
    """
    return FastView(view, verb, method, streams=streams, batch=batch, alone=alone)
