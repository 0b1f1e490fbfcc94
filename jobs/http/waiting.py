"""Requests that wait: for work, a result, a report of progress, or room in a queue.

A verb that finds nothing yet returns a `Waiting`: how to look again, and for how long. On an event
loop it waits without a thread and takes one only to look. Under WSGI it blocks its request's
thread, so at most `PLACES` requests wait at once in a process; the other threads remain for acks
and heartbeats. A request that gets no place is answered immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ..store.database import connection
from .loop import Loop
from .verbs import VerbResponse

LOOKS = (0.05, 0.5)
"""Seconds between two looks: the first interval, and the longest."""
PLACES = 24
"""Requests that may wait in a thread at once."""

_counting = threading.Lock()
_waiting = 0

Found = TypeVar("Found")
Answer = TypeVar("Answer")
Look = Callable[[], VerbResponse | None]
Answering = Callable[[Look], Answer | None]
"""Checks that the client may still have the response, looks, and makes the response from what it
finds or raises; returns None if it finds nothing."""


class Waiting(Generic[Answer]):
    """A pending response; this class looks immediately, then less and less often."""

    def __init__(self, look: Look, seconds: float, otherwise: Callable[[], VerbResponse]) -> None:
        """
        Args:
            look: returns the response, or None if it is not available yet.
            seconds: how long to wait.
            otherwise: returns the response when the time is up, or raises.
        """
        self.look = look
        self.seconds = seconds
        self.otherwise = otherwise
        self._pause = LOOKS[0]

    def in_thread(self, check: Callable[[], object]) -> VerbResponse:
        """Wait in the thread of the request.

        Args:
            check: called before each look; raises if the client may no longer have the response.
        """

        def look() -> VerbResponse | None:
            check()
            return self.look()

        return until(look, self.seconds) or self.otherwise()

    def at_once(self) -> VerbResponse:
        """Return the response as if the time were up."""
        return self.look() or self.otherwise()

    async def on_loop(self, loop: Loop, answer: Answering[Answer]) -> Answer:
        """Wait without a thread; when the process stops, end as if the time were up."""
        deadline = time.monotonic() + self.seconds
        while (found := await loop.in_thread(answer, self.look)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or loop.ending.is_set():
                return await self.give_up(loop, answer)
            await self.sleep(loop, left)
        return found

    async def sleep(self, loop: Loop, longest: float) -> None:
        """Sleep until it is worth looking again, for at most `longest` seconds."""
        pause, self._pause = self._pause, min(self._pause * 1.5, LOOKS[1])
        await first_of(loop.ending, seconds=min(longest, pause))

    async def give_up(self, loop: Loop, answer: Answering[Answer]) -> Answer:
        """Return the response if nothing was found in time."""
        last = await loop.in_thread(answer, self.otherwise)
        assert last is not None
        return last


async def first_of(*events: asyncio.Event, seconds: float) -> None:
    """Sleep until one of `events` is set, or the time is up."""
    if any(event.is_set() for event in events):
        return
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


@contextlib.contextmanager
def place() -> Iterator[bool]:
    """Take a place to wait in, for the duration of the block; yield False if there is none."""
    global _waiting
    with _counting:
        granted = _waiting < PLACES
        _waiting += granted
    try:
        yield granted
    finally:
        with _counting:
            _waiting -= granted


def until(look: Callable[[], Found | None], seconds: float) -> Found | None:
    """Look until something is found, and return it; None when the time is up.

    Without a place to wait in, it looks once.
    """
    return next((found for found in looks(look, seconds) if found is not None), None)


def looks(look: Callable[[], Found], seconds: float) -> Iterator[Found]:
    """Look repeatedly, less and less often, until the time is up or the caller stops."""
    deadline = time.monotonic() + seconds
    yield look()
    with place() as granted:
        pause, longest = LOOKS
        never = threading.Event()
        while granted and (left := deadline - time.monotonic()) > 0:
            current = connection()
            if current.settings_dict["OPTIONS"].get("pool") and not current.in_atomic_block:
                current.close()  # do not hold a connection while sleeping
            never.wait(min(left, pause))
            pause = min(pause * 1.5, longest)
            yield look()
