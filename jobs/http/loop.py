"""What an event loop offers to requests that wait, stream, or stay open.

The front door (`workers.asgi`) implements it. Nothing here imports a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from .request import Meta

Result = TypeVar("Result")

LOOP = "ojs.loop"
"""Set in a request's environment where an event loop waits for the answer."""


class HasThreads(Protocol):
    """Something that has threads for the database."""

    async def in_thread(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call `function` in a thread that may use the database, and return its result."""


class Loop(HasThreads, Protocol):
    """The event loop of a server process, and its threads for the database."""

    ending: asyncio.Event
    """Set when the process has been asked to end: say goodbye, and return."""

    def shared(self, make: Callable[[Loop], Result]) -> Result:
        """Return what `make` returned when it was first asked for: one for the whole process."""

    def keep(self, task: Coroutine[Any, Any, None]) -> None:
        """Run `task` to its end beside everything else."""


Stream = Callable[[Loop], AsyncIterator[bytes]]
"""The body of a response that is written while it comes into being, part by part."""


class Socket(Protocol):
    """A WebSocket."""

    meta: Meta
    """Of the request that opens it, as a WSGI environment."""
    subprotocols: list[str]
    """Those that the client offers."""
    close_code: int | None
    """That of the client, once it has closed."""

    async def refuse(self, status: int, text: str) -> None:
        """Answer the request with an error instead of accepting it."""

    async def accept(self, subprotocol: str | None = None) -> None: ...

    async def receive(self) -> str | bytes | None:
        """Return the next message; None once the connection has ended."""

    async def send(self, text: str) -> None:
        """Send a message; return when the server has taken it.

        Raises:
            ConnectionError: the connection has ended.
        """

    async def close(self, code: int = 1000, reason: str = "") -> None: ...
