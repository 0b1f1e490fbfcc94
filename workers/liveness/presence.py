"""Announces the address of a server with a port of its own, for the manifest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from django.db import DatabaseError, InterfaceError

from jobs.http import endpoints

logger = logging.getLogger("workers.presence")

AWAY = (DatabaseError, InterfaceError)


@contextlib.asynccontextmanager
async def announced(
    in_thread: Callable[..., Awaitable[Any]], name: str, url: str
) -> AsyncIterator[None]:
    """Announce `url` regularly while the context lasts.

    Args:
        in_thread: runs a function in a thread with a database connection.
    """
    announcing = asyncio.create_task(_announce(in_thread, name, url))
    try:
        yield
    finally:
        announcing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await announcing
        with contextlib.suppress(*AWAY):
            await in_thread(endpoints.withdraw, url)


async def _announce(in_thread: Callable[..., Awaitable[Any]], name: str, url: str) -> None:
    while True:
        try:
            await in_thread(endpoints.announce, name, url)
        except AWAY as problem:
            logger.warning("%s cannot be announced at present: %s", url, problem)
        await asyncio.sleep(endpoints.EVERY)
