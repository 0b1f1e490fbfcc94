"""Viewset behind every HTTP endpoint, with its policies (OJS HTTP §3 to §6).

All of REST framework's policies are pinned here: a site's `REST_FRAMEWORK` setting changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.functional import cached_property
from django.views.decorators.csrf import csrf_exempt
from rest_framework.exceptions import MethodNotAllowed
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from .. import access
from ..access import Binding, Command, projects
from ..errors import NeedsEventLoop, OJSError
from ..spec.identifiers import parse_uuid
from ..spec.members import Members
from ..store.database import connection, drop_if_dead
from ..store.watchdog import bounded
from . import dialects, errors, parameters
from .authentication import ApiKeyAuthentication, Caller
from .body import Mend, read_required
from .hosts import check_host
from .loop import LOOP
from .negotiation import Negotiation
from .parsers import OJSParser
from .permissions import MayUseCommand, OfOwnProject, check_again
from .renderers import OJSRenderer, PlainJSONRenderer, SDKRenderer, dumps
from .request import Meta, Request, check_url, request_id_of
from .verbs import Verb, VerbRequest, VerbResponse
from .versioning import SPEC_VERSION, SpecVersioning
from .waiting import Waiting


class OJSViewSet(ViewSet):
    """A viewset of the OJS HTTP binding. Permissions for its actions are declared in `jobs.access`.

    Its hot verbs also have a fast path around REST framework (`fast_path`), with the same checks
    in the same order.
    """

    authentication_classes: Sequence[type[ApiKeyAuthentication]] = [ApiKeyAuthentication]
    permission_classes = [MayUseCommand, OfOwnProject]
    throttle_classes = []
    parser_classes = [OJSParser]
    renderer_classes: Sequence[type[OJSRenderer]] = [OJSRenderer, PlainJSONRenderer, SDKRenderer]
    content_negotiation_class = Negotiation
    versioning_class: type[SpecVersioning] | None = SpecVersioning
    # Not in a host site's OpenAPI document; ours is in `workers.openapi`.
    schema = None
    # No OPTIONS: REST framework would describe its classes to anyone.
    metadata_class = None
    http_method_names = ["get", "head", "post", "put", "patch", "delete"]

    # REST framework sets it before applying the policies; earlier errors need a response, too.
    format_kwarg = None

    request: Request
    binding: ClassVar[str] = Binding.OJS
    resource: ClassVar[str] = ""
    """What its actions are about; `resource.action` is the name of a command in the table."""
    queries: ClassVar[Mapping[str, type[Members]]] = {}
    """Action → what its query may say. All others take no parameters."""
    mends: ClassVar[Mapping[str, Mend]] = {}
    """Action that reports failures → what makes the errors in its body legible."""

    @classmethod
    def as_view(cls, actions: dict[str, Any] | None = None, **initkwargs: Any) -> Any:
        # REST framework adds HEAD with the first request, while other threads may be iterating.
        head = {"head": actions["get"]} if actions and "get" in actions else {}
        view = super().as_view(head | (actions or {}), **initkwargs)
        # The engine has its own transactions. A transaction of the site's ATOMIC_REQUESTS, on any
        # database, would stay open for as long as a fetch waits.
        for name in connections:
            view = transaction.non_atomic_requests(using=name)(view)
        return view

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        drop_if_dead(connection())
        with bounded("A request"):
            return super().dispatch(request, *args, **kwargs)

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        plain = super().initialize_request(request, *args, **kwargs)
        # OPTIONS has no action either: REST framework's `metadata` is not served.
        self.action = self.action_map.get((request.method or "").lower(), "")
        return Request(
            request,
            plain.parsers,
            self.get_authenticators(),
            plain.negotiator,
            plain.parser_context,
        )

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
        check_host(request.META)
        check_url(request.path, request.META)
        super().initial(request, *args, **kwargs)

        self.check_query(self.action, request.META)

    def perform_authentication(self, request: Request) -> None:  # type: ignore[override]
        """Authenticate only when the caller is needed: open endpoints accept even a wrong key."""

    @property
    def default_response_headers(self) -> dict[str, str]:
        # `Allow` is sent with a 405 only, and no cache would use `Vary`.
        return {}

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], Response]:
        return exception_handler

    def finalize_response(  # type: ignore[override]
        self, request: Request, response: HttpResponseBase, *args: Any, **kwargs: Any
    ) -> HttpResponseBase:
        """Add the headers that every response has."""
        if self.is_head and isinstance(response, StreamingHttpResponse):
            response.streaming_content = ()
        finished = super().finalize_response(request, response, *args, **kwargs)  # type: ignore[arg-type]
        dress(
            finished.headers,
            finished.status_code,
            self.request_id,
            has_version=self.versioning_class is not None,
        )
        if isinstance(finished, Response) and finished.data is None:
            finished.add_post_render_callback(_keep_type)
        return finished

    # Used by the actions and the policies

    @classmethod
    def check_query(cls, action: str, meta: Meta) -> None:
        """
        Raises:
            InvalidRequest: the query has a parameter that the action does not declare.
        """
        # Without an action, the request will be answered 405.
        if action and meta.get("QUERY_STRING"):
            declared = cls.queries.get(action, parameters.NoQuery)
            parameters.check_names(declared, parameters.query_of(meta))

    @cached_property
    def request_id(self) -> str:
        return request_id_of(self.request.META)

    @property
    def is_head(self) -> bool:
        """Whether only the headers of a GET are wanted: nothing waits or streams for them."""
        return self.request.method == "HEAD"

    @cached_property
    def command(self) -> Command | None:
        """The declaration of the action; None if it has none; no key may use it then."""
        return access.find(self.binding, f"{self.resource}.{self.action}")

    @property
    def is_open(self) -> bool:
        """Whether the action is answered without a key."""
        return self.command is not None and self.command.is_open

    # Django's, not functools': before Python 3.12 the latter holds a class-wide lock while it
    # computes the value, so one query to a database that hangs would stop every request.
    @cached_property
    def caller(self) -> Caller:
        """The sender of the request; the key is looked up on first access.

        Raises:
            NotAuthenticated: there is no valid key.
        """
        caller: Any = self.request.auth
        assert isinstance(caller, Caller)
        return caller

    @property
    def is_redacted(self) -> bool:
        """Whether arguments, results and errors are hidden from this caller here."""
        return access.is_redacted(self.command, self.caller)

    @classmethod
    def confine(cls, caller: Caller, **named: str) -> None:
        """Restrict a project's key to that project's objects among those that the URL names.

        Raises:
            NotFound: the object belongs to another project. Every URL with a job id is checked.
        """
        if "job_id" in named:
            cls.require_own(caller, named["job_id"])

    @classmethod
    def require_own(cls, caller: Caller, job_id: str) -> None:
        """
        Raises:
            JobNotFound: the caller's project has no such job.
        """
        parsed = parse_uuid(job_id)
        if parsed is not None:
            projects.require(parsed, caller.project)

    @staticmethod
    def refuse(problem: OJSError, request_id: str) -> VerbResponse:
        """Render a refusal in the format of the binding."""
        return errors.refusal(problem, request_id)

    def read(self, form: type[Members] | None = None, *, required: bool = False) -> dict[str, Any]:
        """Return the request's JSON object, `request.data`; an empty body is `{}` (OJS HTTP §6.1).

        Args:
            form: what the request may say. If that is closed, other members are refused.
            required: refuse an empty body.

        Raises:
            InvalidPayload: it is not a JSON object that can be stored without loss.
            InvalidRequest: its media type is not supported, or it has a member that would be
                ignored.
            BodyTooLarge: it exceeds `MAX_BODY_SIZE`.
            UnfinishedBody: it did not arrive completely.
        """
        sent: Any = self.request.data
        document: dict[str, Any] = read_required(sent) if required else sent or {}
        if form is not None and form.is_closed:
            form.refuse_others(document)
        return document

    def carry_out(self, verb: Verb, **named: str) -> Response:
        """Call the verb that the fast path calls as well."""
        return sent(self._outcome(verb, **named))

    def open_stream(self, verb: Verb, **named: str) -> StreamingHttpResponse:
        """Answer what only an event loop can write, which here is at most its head.

        Raises:
            NeedsEventLoop: the stream itself is wanted, or there is no loop.
        """
        response = self._outcome(verb, **named)
        if not self.is_head or LOOP not in self.request.META:
            raise NeedsEventLoop()
        return StreamingHttpResponse(headers=response.headers)

    def _outcome(self, verb: Verb, **named: str) -> VerbResponse:
        document: Any = self.request.data
        meta = self.request.META
        request = VerbRequest(
            self.caller, document, meta, self.request.path, self.request_id, self.check_again
        )
        response = verb(request, **named)
        if isinstance(response, Waiting):
            return response.at_once() if self.is_head else response.in_thread(self.check_again)
        return response

    def check_again(self) -> None:
        """Check that the caller may still use the action, while its request waits."""
        (authentication,) = self.authentication_classes
        check_again(
            self.caller,
            self.command,
            authentication=authentication(),
            method=self.request.method or "",
            meta=self.request.META,
        )


def _keep_type(response: Response) -> None:
    # REST framework removes it from an empty response, but clients may read it all the same.
    response["Content-Type"] = response.accepted_renderer.media_type


def sent(response: VerbResponse) -> Response:
    found = Response(response.document, status=response.status, headers=response.headers)
    mark(found, is_logged=response.is_logged)
    return found


def mark(response: HttpResponse, *, is_logged: bool) -> None:
    """Tell Django whether it may log an error."""
    if is_logged:
        response._has_been_logged = True  # type: ignore[attr-defined]


def exception_handler(problem: Exception, context: dict[str, Any]) -> Response:
    """Turn an exception into an error document (OJS HTTP §16), and record refusals."""
    view: OJSViewSet = context["view"]
    request: Request = context["request"]
    method, path = request.method or "", request.path
    if isinstance(problem, MethodNotAllowed):
        allowed = ", ".join(view.allowed_methods)
        return sent(errors.method_not_allowed(method, allowed, view.request_id, view.refuse))
    errors.note_refusal(
        problem,
        # Only if it is known already: authenticating again would only fail again.
        view.__dict__.get("caller"),
        protocol=view.authentication_classes[0].protocol,
        method=method,
        path=path,
        meta=request.META,
    )
    return sent(errors.answer_to(problem, view.request_id, path, view.refuse))


class Headers(Protocol):
    """Headers of a Django response, or a dictionary of them."""

    def __setitem__(self, name: str, text: str, /) -> None: ...
    def __contains__(self, name: object, /) -> bool: ...


def dress(headers: Headers, status: int, request_id: str, *, has_version: bool = True) -> None:
    """Add the standard headers except `Content-Type` (OJS HTTP §6.5)."""
    if has_version:
        headers["OJS-Version"] = SPEC_VERSION
    headers["X-Request-Id"] = request_id
    # These must name a time to retry after (OJS errors §10, ERR-006).
    if status in (429, 503) and "Retry-After" not in headers:
        headers["Retry-After"] = "5"


def refused(
    meta: Meta,
    problem: OJSError,
    *,
    refuse: errors.Refuse = errors.refusal,
    has_version: bool = True,
) -> HttpResponse:
    """A refusal from outside a viewset: from a middleware or server, or for an unknown path."""
    request_id = request_id_of(meta)
    return _from_outside(meta, refuse(problem, request_id), request_id, has_version=has_version)


def failed(meta: Meta, path: str, problem: Exception) -> HttpResponse:
    """The response to an exception outside a viewset; logs what is not the client's fault."""
    request_id = request_id_of(meta)
    found = errors.answer_to(problem, request_id, path, errors.refusal)
    return _from_outside(meta, found, request_id)


def _from_outside(
    meta: Meta, found: VerbResponse, request_id: str, *, has_version: bool = True
) -> HttpResponse:
    response = HttpResponse(dumps(found.document), status=found.status, headers=found.headers)
    dress(response.headers, found.status, request_id, has_version=has_version)
    response["Content-Type"] = dialects.media_type(meta)
    mark(response, is_logged=found.is_logged)
    return response


# Without the exemption a POST would be answered with Django's own page about CSRF tokens.
@csrf_exempt
def not_found(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """The 404 of every path under /ojs that is not an endpoint."""
    return refused(request.META, errors.unknown_path(request.path))
