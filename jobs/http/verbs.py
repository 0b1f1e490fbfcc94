"""Arguments and results of a hot verb, independent of how its request arrived.

A verb is a function of a `VerbRequest`. Both the action of a viewset and the fast path
(`fast_path`), which does not use viewsets, call it, so both do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .body import read_required
from .loop import Stream
from .request import Meta

if TYPE_CHECKING:
    from .authentication import Caller
    from .waiting import Waiting


@dataclass(slots=True)
class VerbRequest:
    """A request whose caller may use the verb, and whose body has been parsed."""

    caller: Caller
    document: dict[str, Any] | None
    """The body; None if it was empty."""
    meta: Meta
    path: str
    request_id: str
    check_again: Callable[[], object]
    """Raises if the client may no longer use the verb; for requests that wait or stream."""

    def read(self, *, required: bool = False) -> dict[str, Any]:
        """Return the body; an empty one is `{}` (OJS HTTP §6.1).

        Args:
            required: refuse an empty body.

        Raises:
            InvalidPayload: it is empty.
        """
        return read_required(self.document) if required else self.document or {}


Unsent = Callable[[], object]
"""Takes back what a response gives."""


class VerbResponse:
    """A document with its status, and headers besides those that every response has."""

    __slots__ = ("document", "headers", "is_logged", "status", "stream", "unsent")

    def __init__(
        self,
        document: Any,
        status: int = 200,
        *,
        stream: Stream | None = None,
        unsent: Unsent | None = None,
    ) -> None:
        """
        Args:
            stream: the body, instead of a document; needs a server with an event loop.
            unsent: called in a thread, by such a server, if the client has disconnected before.
        """
        self.document = document
        self.status = status
        self.headers: dict[str, str] = {}
        self.stream = stream
        self.unsent = unsent
        self.is_logged = False
        """The log says why it is an error: Django must not add a line of its own."""

    def __setitem__(self, name: str, text: str) -> None:
        self.headers[name] = text


def show_rate(response: Any, limit: int, remaining: int, reset: datetime) -> None:
    """Say how much more a client may do (OJS HTTP §18.1).

    Args:
        response: anything with headers by index.
        reset: when at least one more will be possible.
    """
    response["X-RateLimit-Limit"] = str(limit)
    response["X-RateLimit-Remaining"] = str(remaining)
    response["X-RateLimit-Reset"] = str(int(reset.timestamp()) + 1)


def outcome_of(verb: Verb, request: VerbRequest, **named: str) -> Any:
    """Return the verb's result or the exception it raises."""
    try:
        return verb(request, **named)
    except Exception as problem:
        return problem


Batch = Callable[[Sequence[VerbRequest]], Sequence[Any]]
"""Handles requests for a verb that arrived at the same time; returns, for each, the result or
exception of a separate call."""
Verb = Callable[..., "VerbResponse | Waiting[Any]"]
"""Called with a `VerbRequest` and the URL's parameters: `ack(request, job_id=…)`."""
