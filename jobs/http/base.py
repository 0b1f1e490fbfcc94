"""What every OJS HTTP endpoint shares: body, headers, errors (OJS HTTP §3 to §6, §16, §19).

Policies are pinned here: a host site's `REST_FRAMEWORK` setting changes nothing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any, ClassVar

from django.db import connections, transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.utils.functional import cached_property
from django.views.decorators.csrf import csrf_exempt
from rest_framework import exceptions
from rest_framework.viewsets import ViewSet

from .. import access
from ..access import Binding, Command, projects, refusals
from ..access.address import address_of
from ..errors import (
    BatchTooLarge,
    BodyTooLarge,
    Conflict,
    DatabaseRefused,
    DatabaseUnavailable,
    DuplicateJob,
    InMaintenance,
    InvalidPayload,
    InvalidRequest,
    InvalidRetryPolicyRequest,
    JobTypeNotAllowed,
    NotAuthenticated,
    NotFound,
    NotInstalled,
    OJSError,
    PermissionDenied,
    QueueClosed,
    QueueFull,
    ResultPruned,
    ResultTooLarge,
    UnfinishedBody,
    Unsupported,
    UnsupportedCompression,
    WaitTimeout,
)
from ..protocols import OJS
from ..spec.identifiers import parse_uuid, uuid7
from ..store.database import connection, drop_if_dead
from ..store.trouble import explain
from ..store.watchdog import bounded
from . import dialects
from .authentication import ApiKeyAuthentication, Caller
from .body import read_object
from .dialects import EVENTS
from .hosts import check_host
from .request import Request
from .response import Response, dumps, for_django

logger = logging.getLogger("jobs.api")

SPEC_VERSION = "1.0"
OUR_VERSION = re.compile(r"1(\.[0-9]{1,9}){0,2}(-rc\.[0-9]{1,9})?")
"""Any minor version of our major one: a newer one only adds (OJS HTTP §3.3)."""
REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
DOCUMENTATION = "https://openjobspec.org/errors/"

STATUS: dict[type[OJSError], int] = {
    InvalidPayload: 400,
    InvalidRetryPolicyRequest: 422,
    InvalidRequest: 400,
    BodyTooLarge: 413,
    BatchTooLarge: 413,
    UnsupportedCompression: 415,
    QueueFull: 429,
    QueueClosed: 422,
    JobTypeNotAllowed: 422,
    NotInstalled: 501,
    Unsupported: 422,
    NotFound: 404,
    ResultPruned: 410,
    ResultTooLarge: 413,
    WaitTimeout: 408,
    UnfinishedBody: 408,
    DuplicateJob: 409,
    Conflict: 409,
    InMaintenance: 503,
    DatabaseUnavailable: 503,
    DatabaseRefused: 500,
    NotAuthenticated: 401,
    PermissionDenied: 403,
}
ERROR_TYPES: dict[type[OJSError], str] = {InvalidRetryPolicyRequest: "validation_error"}


class OJSViewSet(ViewSet):
    """A viewset of the OJS HTTP binding. Who may use its actions is declared in `jobs.access`."""

    authentication_classes: Any = [ApiKeyAuthentication]
    permission_classes: Any = []
    throttle_classes: Any = []
    parser_classes: Any = []
    renderer_classes: Any = []
    versioning_class: Any = None
    # No part of a host site's OpenAPI document; ours is in `workers.openapi`.
    schema: Any = None
    # No OPTIONS: DRF would describe its classes to anybody.
    http_method_names: Any = ["get", "head", "post", "put", "patch", "delete"]

    protocol: ClassVar[str] = OJS
    """What its clients speak, for the record of a key's last use."""
    binding: ClassVar[str] = Binding.OJS
    resource: ClassVar[str] = ""
    """What its actions are about; `resource.action` is the name of a command in the table."""
    commands: ClassVar[dict[str, Command | None]] = {}
    """Action → what the table says of it: looked up with the URLs, not for each request."""
    command: Command | None = None
    """What is asked for by the request."""

    @classmethod
    def as_view(cls, actions: Any = None, **initkwargs: Any) -> Any:
        if "get" in actions:
            actions = {"head": actions["get"], **actions}
        # Its own: a subclass has another binding, or is about something else.
        cls.commands = cls.__dict__.get("commands", {}) | {
            action: access.find(cls.binding, f"{cls.resource}.{action}")
            for action in actions.values()
        }
        view = super().as_view(actions, **initkwargs)
        # The engine has its own transactions. One that the site's ATOMIC_REQUESTS put around a
        # request would stay open for as long as a fetch waits, in whichever database.
        for name in connections:
            view = transaction.non_atomic_requests(using=name)(view)
        return view

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return for_django(self.answer(Request.of(request), *args, **kwargs))

    @classmethod
    def enter(cls, actions: dict[str, str], request: Request, **kwargs: Any) -> Any:
        """Answer a request that does not come through Django's handler."""
        self = cls()
        self.action_map = actions
        return self.answer(request, **kwargs)

    def answer(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Carry out one request: what REST framework's `dispatch` does, without its policies."""
        self.request: Any = request
        self.args, self.kwargs = args, kwargs
        self.action = self.action_map.get(request.method.lower(), "")
        drop_if_dead(connection())
        try:
            with bounded("A request"):
                self.initial(request, *args, **kwargs)
                if not self.action:
                    raise exceptions.MethodNotAllowed(request.method)
                response = getattr(self, self.action)(request, *args, **kwargs)
        except Exception as problem:
            self._note_refusal(problem)
            response = self.get_exception_handler()(problem, {"view": self, "request": request})
        return self.finalize_response(request, response, *args, **kwargs)

    @property
    def allowed_methods(self) -> list[str]:
        return [name.upper() for name in self.http_method_names if name in self.action_map]

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        """Hold the request to what every endpoint asks; there is nothing to negotiate."""
        check_host(request)
        check_version(request.META)
        check_url(request)
        if not self.action:
            return
        command = self.command = self.commands.get(self.action)
        if command is not None and command.is_open:
            return
        caller = self.caller
        access.authorize(caller, command)
        if caller.project:
            self.confine(**kwargs)

    def confine(self, **named: Any) -> None:
        """Hold the key of a project to what is its own of the things that the URL names.

        Raises:
            NotFound: another project's do not exist for it. Every URL with a job id is asked.
        """
        if "job_id" in named:
            self.require_own(named["job_id"])

    def require_own(self, job_id: str) -> None:
        """
        Raises:
            JobNotFound: the caller's project has no such job.
        """
        parsed = parse_uuid(job_id)
        if parsed is not None:
            projects.require(parsed, self.caller.project)

    # Django's, not that of functools: before Python 3.12 the latter holds a lock of the whole class
    # while it looks, so that one look at a database that hangs stopped every request.
    @cached_property
    def caller(self) -> Caller:
        return AUTHENTICATION.authenticate(self.request, self.protocol)[0]

    @property
    def is_redacted(self) -> bool:
        """Whether arguments, results and errors are hidden from this caller here."""
        return access.is_redacted(self.command, self.caller)

    def _note_refusal(self, problem: Exception) -> None:
        if isinstance(problem, refusals.AUDITED):
            # Asking for it again would only be refused again.
            caller = self.__dict__.get("caller")
            refusals.note(
                problem,
                protocol=self.protocol,
                address=address_of(self.request.META),
                key=caller.name if caller else "",
                call=refusals.call_of(self.request.method, self.request.path),
            )

    def get_exception_handler(self) -> Callable[..., Response]:
        return answer_error

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Any:
        dress(request, response)
        return response

    def read(self, *, required: bool = False) -> dict[str, Any]:
        """Return the request's JSON object; an empty body is `{}` (OJS HTTP §6.1).

        Args:
            required: refuse an empty body.

        Raises:
            InvalidPayload: it is no JSON object we can keep.
            InvalidRequest: its media type is not ours.
            BodyTooLarge: it exceeds `MAX_BODY_SIZE`.
            UnfinishedBody: it did not arrive.
        """
        document = read_object(self.request)
        if document is None and required:
            raise InvalidPayload("The request body is empty; it must be a JSON object.")
        return document or {}


AUTHENTICATION = ApiKeyAuthentication()


def check_version(headers: Any) -> None:
    """
    Raises:
        Unsupported: the client asks for a spec version we do not speak (OJS HTTP §3.2).
    """
    wanted = headers.get("HTTP_OJS_VERSION")
    if wanted and not OUR_VERSION.fullmatch(wanted.strip()):
        raise Unsupported(f"OJS version {wanted!r} is not supported.", supported=[SPEC_VERSION])


def check_url(request: Any) -> None:
    """
    Raises:
        InvalidRequest: the URL contains a NUL character, which no text in PostgreSQL may.
    """
    if "\x00" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
        raise InvalidRequest("The URL contains a NUL character.", hint="Leave out the '%00'.")


def request_id(request: Any) -> str:
    """The client's `X-Request-Id` if it is printable, else one of ours (OJS HTTP §19)."""
    found: str = getattr(request, "ojs_request_id", "")
    if not found:
        given = request.META.get("HTTP_X_REQUEST_ID", "")
        found = given if REQUEST_ID.fullmatch(given) else f"req_{uuid7()}"
        request.ojs_request_id = found
    return found


def dress(request: Any, response: Any) -> None:
    """Put the standard headers on (OJS HTTP §6.5)."""
    response["OJS-Version"] = SPEC_VERSION
    response["X-Request-Id"] = request_id(request)
    response["Content-Type"] = EVENTS if response.streaming else dialects.media_type(request.META)
    # What must say when to come again (OJS errors §10, ERR-006).
    if response.status_code in (429, 503) and "Retry-After" not in response:
        response["Retry-After"] = "5"


def answer_error(problem: Exception, context: dict[str, Any]) -> Response:
    """Turn what was raised into an OJS error reply (OJS HTTP §16); bugs go on to Django."""
    request = context["request"]
    if isinstance(problem, OJSError):
        return error_response(request, problem)
    if isinstance(problem, exceptions.MethodNotAllowed):
        allowed = ", ".join(context["view"].allowed_methods)
        refusal = InvalidRequest(
            f"{request.method} is not allowed here; allowed: {allowed}.", method=request.method
        )
        response = error_response(request, refusal, status=405)
        response["Allow"] = allowed
        return response
    if isinstance(problem, Http404):
        return error_response(request, unknown_path(request))
    trouble = explain(problem)
    if isinstance(trouble, DatabaseUnavailable):
        logger.error("%s %s", trouble, str(problem).strip())
        return error_response(request, trouble)
    if trouble is not None:
        logger.exception("Database error")
        return error_response(request, trouble)
    logger.exception("Unhandled error")
    return error_response(request, OJSError("Internal server error."), status=500, retryable=True)


def unknown_path(request: Any) -> NotFound:
    return NotFound(
        f"There is nothing at '{request.path}'.",
        hint="See the endpoints of the OJS HTTP binding.",
        resource_type="path",
        resource_id=request.path,
    )


def status_of(problem: OJSError) -> int:
    return next((code for kind, code in STATUS.items() if isinstance(problem, kind)), 500)


def error_document(problem: OJSError, identifier: str, *, retryable: bool) -> dict[str, Any]:
    error: dict[str, Any] = {
        "code": problem.code,
        "message": problem.message,
        "retryable": retryable,
        "details": problem.details,
        "request_id": identifier,
        "docs_url": DOCUMENTATION + problem.code,
        "doc_url": DOCUMENTATION + problem.code,
    }
    if problem.hint:
        error["hint"] = problem.hint
    if isinstance(problem, QueueFull | BatchTooLarge):
        # Their documents show the details beside the code.
        error = problem.details | error
    if type(problem) in ERROR_TYPES:
        error["type"] = ERROR_TYPES[type(problem)]
    return error


def error_response(
    request: Any, problem: OJSError, *, status: int | None = None, retryable: bool | None = None
) -> Response:
    document = error_document(
        problem,
        request_id(request),
        retryable=problem.retryable if retryable is None else retryable,
    )
    response = Response({"error": document}, status=status or status_of(problem))
    if isinstance(problem, QueueFull):
        response["Retry-After"] = str(problem.RETRY_AFTER)
        response["X-OJS-Queue-Depth"] = str(problem.details["depth"])
        response["X-OJS-Queue-Bound"] = str(problem.details["bound"])
    elif isinstance(problem, DatabaseUnavailable):
        response["Retry-After"] = str(problem.RETRY_AFTER)
    elif isinstance(problem, BatchTooLarge):
        response["X-OJS-Max-Batch-Size"] = str(problem.details["max_batch_size"])
    if response.status_code == 401:
        response["WWW-Authenticate"] = 'Bearer realm="ojs"'
    return response


# Without the exemption a POST would be answered with Django's own page about CSRF tokens.
@csrf_exempt
def not_found(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """The 404 of every path under /ojs that is not an endpoint."""
    problem = unknown_path(request)
    document = error_document(problem, request_id(request), retryable=False)
    response = HttpResponse(dumps({"error": document}), status=404)
    dress(request, response)
    return response
