"""Refusals and internal errors as OJS error documents (OJS HTTP §16; OJS errors)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.http import Http404

from ..access import refusals
from ..access.address import address_of
from ..errors import (
    BackendUnavailable,
    BatchTooLarge,
    BodyTooLarge,
    BreakingChange,
    Conflict,
    DatabaseRefused,
    DatabaseUnavailable,
    DuplicateJob,
    InMaintenance,
    InvalidArguments,
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
    TenantLimitExceeded,
    TenantRequired,
    TooManyConnections,
    UnfinishedBody,
    Unsupported,
    UnsupportedCompression,
    UpgradeRequired,
    WaitTimeout,
)
from ..store import clock, outages
from ..store.trouble import explain
from .authentication import CHALLENGE, Caller
from .request import Meta
from .verbs import VerbResponse, show_rate

logger = logging.getLogger("jobs.api")

DOCUMENTATION = "https://openjobspec.org/errors/"

STATUS: dict[type[OJSError], int] = {
    InvalidPayload: 400,
    InvalidRetryPolicyRequest: 422,
    InvalidArguments: 422,
    BreakingChange: 422,
    TenantRequired: 422,
    UpgradeRequired: 426,
    InvalidRequest: 400,
    BodyTooLarge: 413,
    BatchTooLarge: 413,
    UnsupportedCompression: 415,
    QueueFull: 429,
    TenantLimitExceeded: 429,
    TooManyConnections: 429,
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
    BackendUnavailable: 503,
    DatabaseRefused: 500,
    NotAuthenticated: 401,
    PermissionDenied: 403,
}
ERROR_TYPES: dict[type[OJSError], str] = {InvalidRetryPolicyRequest: "validation_error"}

Refuse = Callable[[OJSError, str], VerbResponse]
"""Renders a refusal in the format of a binding; also receives the id of the request."""


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
    if isinstance(problem, QueueFull | TenantLimitExceeded | BatchTooLarge):
        # The documents of these errors show the details beside the code.
        error = problem.details | error
    if type(problem) in ERROR_TYPES:
        error["type"] = ERROR_TYPES[type(problem)]
    return error


def refusal(problem: OJSError, request_id: str, *, status: int | None = None) -> VerbResponse:
    """The response to a refused request: the document and the headers that belong to it."""
    document = error_document(problem, request_id, retryable=problem.retryable)
    response = VerbResponse({"error": document}, status or status_of(problem))
    if isinstance(problem, QueueFull):
        response["Retry-After"] = str(problem.RETRY_AFTER)
        response["X-OJS-Queue-Depth"] = str(problem.details["depth"])
        response["X-OJS-Queue-Bound"] = str(problem.details["bound"])
    elif isinstance(problem, TenantLimitExceeded):
        response["Retry-After"] = str(problem.retry_after)
        if problem.remaining is not None:
            reset = clock.now() + timedelta(seconds=problem.retry_after)
            show_rate(response, problem.details["maximum"], problem.remaining, reset)
    elif isinstance(problem, TooManyConnections):
        # OJS HTTP §18.2: as for any limit that a client has reached.
        response["Retry-After"] = str(problem.RETRY_AFTER)
        reset = clock.now() + timedelta(seconds=problem.RETRY_AFTER)
        show_rate(response, problem.details["limit"], 0, reset)
    elif isinstance(problem, BackendUnavailable):
        response["Retry-After"] = str(problem.RETRY_AFTER)
    elif isinstance(problem, BatchTooLarge):
        response["X-OJS-Max-Batch-Size"] = str(problem.details["max_batch_size"])
    elif isinstance(problem, UpgradeRequired):
        response["Upgrade"] = "websocket"
    if response.status == 401:
        response["WWW-Authenticate"] = CHALLENGE
    return response


def answer_to(problem: Exception, request_id: str, path: str, refuse: Refuse) -> VerbResponse:
    """The response to any exception; logs what is not the client's fault."""
    if isinstance(problem, OJSError):
        return refuse(problem, request_id)
    if isinstance(problem, Http404):
        return refuse(unknown_path(path), request_id)
    trouble = explain(problem)
    if isinstance(trouble, DatabaseUnavailable):
        outages.report(logger, trouble, problem)
        response = refuse(trouble, request_id)
        response.is_logged = True
        return response
    if trouble is not None:
        logger.error("Database error", exc_info=problem)
        return refuse(trouble, request_id)
    logger.error("Unhandled error", exc_info=problem)
    bug = OJSError("Internal server error.")
    bug.retryable = True
    return refuse(bug, request_id)


def unknown_path(path: str) -> NotFound:
    return NotFound(
        f"There is nothing at '{path}'.",
        hint="See the endpoints of the OJS HTTP binding.",
        resource_type="path",
        resource_id=path,
    )


def method_not_allowed(method: str, allowed: str, request_id: str, refuse: Refuse) -> VerbResponse:
    problem = InvalidRequest(f"{method} is not allowed here; allowed: {allowed}.", method=method)
    response = refuse(problem, request_id)
    response.status = 405
    response["Allow"] = allowed
    return response


def note_refusal(
    problem: Exception, caller: Caller | None, *, protocol: str, method: str, path: str, meta: Meta
) -> None:
    """Record a 401 or 403 in the audit (`jobs.access.refusals`)."""
    if isinstance(problem, refusals.AUDITED):
        refusals.note(
            problem,
            protocol=protocol,
            address=address_of(meta),
            key=caller.name if caller else "",
            call=refusals.call_of(method, path),
        )
