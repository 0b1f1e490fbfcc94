"""One periodic query on behalf of everything in a process that waits for its result."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from .loop import Loop

logger = logging.getLogger("jobs.http")

Member = TypeVar("Member")


class Poll(Generic[Member]):
    """Queries periodically while it has members."""

    every: float
    """Seconds between two queries."""
    subject: str
    """What it queries, for the log."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._members: set[Member] = set()
        self._task: asyncio.Task[None] | None = None

    async def look(self, members: Collection[Member]) -> None:
        """Query once, and notify the members."""
        raise NotImplementedError

    @contextlib.contextmanager
    def joined(self, member: Member) -> Iterator[None]:
        """Notify `member` of changes for the duration of the block."""
        self._members.add(member)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield
        finally:
            self._members.discard(member)

    async def _run(self) -> None:
        try:
            while self._members:
                await asyncio.sleep(self.every)
                try:
                    await self.look(list(self._members))
                except Exception as problem:  # the database is unavailable
                    logger.warning("%s cannot be looked at: %s", self.subject, problem)
        finally:
            self._task = None
