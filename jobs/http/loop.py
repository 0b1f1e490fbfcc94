"""The interface of an event loop to requests that wait, stream, or stay open.

The ASGI application (`workers.asgi`) implements it. Nothing here imports a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from .request import Meta

Result = TypeVar("Result")

LOOP = "ojs.loop"
"""Set in a request's environment if an event loop can wait for the response."""


class HasThreads(Protocol):
    """Has threads for the database."""

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call `function` in a thread that may use the database, and return its result."""


class Loop(HasThreads, Protocol):
    """The event loop of a server process, and its threads for the database."""

    ending: asyncio.Event
    """Set when the process has been asked to stop: end the connection, and return."""

    def shared(self, make: Callable[[Loop], Result]) -> Result:
        """Return what `make` returned when it was first called: one object per process."""

    def keep(self, task: Coroutine[Any, Any, None]) -> None:
        """Run `task` in the background until it ends."""


Stream = Callable[[Loop], AsyncIterator[bytes]]
"""The body of a streamed response, part by part."""


class Socket(Protocol):
    """A WebSocket."""

    meta: Meta
    """The WSGI environment of the request that opens it."""
    subprotocols: list[str]
    """Subprotocols that the client offers."""
    close_code: int | None
    """The client's close code, once it has closed the connection."""

    async def refuse(self, status: int, text: str) -> None:
        """Answer the request with an error instead of accepting it."""

    async def accept(self, subprotocol: str | None = None) -> None: ...

    async def receive(self) -> str | bytes | None:
        """Return the next message; None once the connection has ended or was closed here."""

    async def send(self, text: str) -> None:
        """Send a message; return once the server has accepted it.

        Raises:
            ConnectionError: the connection has ended.
        """

    async def close(self, code: int = 1000, reason: str = "") -> None: ...
