"""What a hot verb is given and returns, whichever way its request came.

A verb is a function of a `VerbRequest`. The action of a viewset calls it, and so does the fast path
(`fast_path`), which knows no viewset; so both do the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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

    def read(self, *, required: bool = False) -> dict[str, Any]:
        """Return the body; an empty one is `{}` (OJS HTTP §6.1).

        Args:
            required: refuse an empty body.

        Raises:
            InvalidPayload: it is empty.
        """
        return read_required(self.document) if required else self.document or {}


class VerbResponse:
    """A document with its status, and headers beside those that every response has."""

    __slots__ = ("document", "headers", "status", "stream")

    def __init__(self, document: Any, status: int = 200, *, stream: Stream | None = None) -> None:
        """
        Args:
            stream: the body, in place of a document; needs a server with an event loop.
        """
        self.document = document
        self.status = status
        self.headers: dict[str, str] = {}
        self.stream = stream

    def __setitem__(self, name: str, text: str) -> None:
        self.headers[name] = text


def outcome_of(verb: Verb, request: VerbRequest, **named: str) -> Any:
    """Return what a verb returns or raises."""
    try:
        return verb(request, **named)
    except Exception as problem:
        return problem


Batch = Callable[[Sequence[VerbRequest]], Sequence[Any]]
"""Carries out a verb for requests that came at the same time; returns what each would have returned
or raised by itself."""
Verb = Callable[..., "VerbResponse | Waiting[Any]"]
"""Called with a `VerbRequest`, and with what its URL names: `ack(request, job_id=…)`."""
