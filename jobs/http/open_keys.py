"""Connections that stay open look at their keys again: who was revoked is not served for ever.

What a client says is checked where it is carried out, against what is remembered of its key. Here
are those that say nothing, or wait for work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Protocol

from ..conf import ojs_settings
from .authentication import Caller, current_callers

logger = logging.getLogger("workers.keys")

AT_ONCE = 500
"""Keys of one query."""
SHORTEST = 1.0
"""Seconds between two looks, however short `API_KEY_CACHE` is."""


class Keyed(Protocol):
    """A connection."""

    @property
    def key(self) -> str:
        """Hash of the key it came with; empty without one."""

    def renew(self, caller: Caller | None) -> None:
        """Go on as what the key is now; None: it opens nothing any more."""


async def watch(connections: Collection[Keyed], in_thread: Callable[..., Awaitable[Any]]) -> None:
    """Look at the keys of all `connections` every `API_KEY_CACHE`, for ever."""
    while True:
        await asyncio.sleep(max(SHORTEST, ojs_settings.API_KEY_CACHE.total_seconds()))
        keyed = [connection for connection in connections if connection.key]
        keys = list({connection.key for connection in keyed})
        found: dict[str, Caller | None] = {}
        try:
            for start in range(0, len(keys), AT_ONCE):
                some = keys[start : start + AT_ONCE]
                current = await in_thread(current_callers, some)
                found |= {key: current.get(key) for key in some}
        except Exception:
            # The database is away: what was not asked about is asked about next time.
            logger.exception("The keys of open connections cannot be looked at.")
        for connection in keyed:
            # It may have come with another key meanwhile.
            if connection.key in found:
                connection.renew(found[connection.key])
