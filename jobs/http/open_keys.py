"""Checks the keys of open connections regularly, so that a revoked key is not served indefinitely.

Each command of a client is checked when it is carried out, against the cached key. This module is
for connections that are idle or wait for work.
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
"""Keys per query."""
SHORTEST = 1.0
"""Seconds between two checks, however short `API_KEY_CACHE` is."""


class Keyed(Protocol):
    """A connection."""

    @property
    def key(self) -> str:
        """Digest of its key; empty without one."""

    def renew(self, caller: Caller | None) -> None:
        """Continue with the current rights of the key; None: the key is no longer valid."""


async def watch(connections: Collection[Keyed], in_thread: Callable[..., Awaitable[Any]]) -> None:
    """Check the keys of all `connections` every `API_KEY_CACHE`, until cancelled."""
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
            # The database is unavailable: the remaining keys are checked next time.
            logger.exception("The keys of open connections cannot be looked at.")
        for connection in keyed:
            # The connection may have changed its key meanwhile.
            if connection.key in found:
                connection.renew(found[connection.key])
