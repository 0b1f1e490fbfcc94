"""Lifespan events for the site's application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

logger = logging.getLogger("workers.asgi")

Message = dict[str, Any]


class Lifespan:
    """Forwards the server's lifespan events to an application, and its answers back.

    An application need not support such events: it may raise an exception, as Django's own does,
    or return. Then the events are answered without it.
    """

    def __init__(self, application: Callable[..., Awaitable[None]] | None, scope: Message) -> None:
        self._application = application
        self._scope = scope
        self._events: asyncio.Queue[Message] = asyncio.Queue()
        self._answer: asyncio.Future[Message] | None = None
        """The answer that the server waits for."""
        self._task: asyncio.Future[None] | None = None

    async def tell(self, event: Message) -> Message:
        """Forward `lifespan.startup` or `lifespan.shutdown`; return the answer."""
        if self._application is not None:
            answer = self._answer = asyncio.get_running_loop().create_future()
            self._events.put_nowait(event)
            if self._task is None:
                self._task = asyncio.ensure_future(self._run(self._application))
            await asyncio.wait([answer, self._task], return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
        return {"type": f"{event['type']}.complete"}

    async def _run(self, application: Callable[..., Awaitable[None]]) -> None:
        has_answered = False

        async def send(message: Message) -> None:
            nonlocal has_answered
            has_answered = True
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(message)

        try:
            await application(self._scope, self._events.get, send)
        except Exception as problem:
            if has_answered:
                logger.exception("The site's application raised an exception in its lifespan.")
            else:
                logger.info("The site's application does not support lifespan events: %s", problem)
