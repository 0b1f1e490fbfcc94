"""Requests that wait for something: work, a result, a report of progress, room in a queue.

A verb that finds nothing yet returns a `Waiting`: how to look again, and for how long. On an event
loop it waits without a thread; only a look takes one. Under WSGI it keeps its request's thread, so
no more than `PLACES` of them wait at once in a process: acks and heartbeats always find a
thread. A request that finds no place is answered at once with what there is.
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
"""Seconds between two looks: the first, and the longest it grows to."""
PLACES = 24
"""Requests that may wait in a thread at once."""

_counting = threading.Lock()
_waiting = 0

Found = TypeVar("Found")
Answer = TypeVar("Answer")
Look = Callable[[], VerbResponse | None]
Answering = Callable[[Look], Answer | None]
"""Calls a look and makes the whole answer of what it finds or raises; None if it finds nothing."""


class Waiting(Generic[Answer]):
    """A response that is not there yet; this one looks at once, then less and less often."""

    def __init__(self, look: Look, seconds: float, otherwise: Callable[[], VerbResponse]) -> None:
        """
        Args:
            look: returns the response; None while there is none.
            seconds: how long to wait.
            otherwise: returns the response when the time is up, or raises.
        """
        self.look = look
        self.seconds = seconds
        self.otherwise = otherwise
        self._pause = LOOKS[0]

    def in_thread(self) -> VerbResponse:
        """Wait in the thread of the request."""
        return until(self.look, self.seconds) or self.otherwise()

    async def on_loop(self, loop: Loop, answer: Answering[Answer]) -> Answer:
        """Wait without a thread; at the end of the process, as if the time were up."""
        deadline = time.monotonic() + self.seconds
        while (found := await loop.in_thread(answer, self.look)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or loop.ending.is_set():
                return await self.give_up(loop, answer)
            await self.sleep(loop, left)
        return found

    async def sleep(self, loop: Loop, longest: float) -> None:
        """Sleep until it is worth looking again, for `longest` seconds at most."""
        pause, self._pause = self._pause, min(self._pause * 1.5, LOOKS[1])
        await first_of(loop.ending, seconds=min(longest, pause))

    async def give_up(self, loop: Loop, answer: Answering[Answer]) -> Answer:
        """Return the answer when nothing came."""
        last = await loop.in_thread(answer, self.otherwise)
        assert last is not None
        return last

    async def withdraw(self, loop: Loop) -> None:
        """Take back what was found: the client left before it was answered."""


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
    """Take a place to wait in, for the length of the block; False if none is left."""
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
    """Look until there is something, and return it; None when the time is up.

    Without a place to wait in it looks once.
    """
    return next((found for found in looks(look, seconds) if found is not None), None)


def looks(look: Callable[[], Found], seconds: float) -> Iterator[Found]:
    """Look again and again, less and less often, until the time is up or the caller stops."""
    deadline = time.monotonic() + seconds
    yield look()
    with place() as granted:
        pause, longest = LOOKS
        never = threading.Event()
        while granted and (left := deadline - time.monotonic()) > 0:
            current = connection()
            if current.settings_dict["OPTIONS"].get("pool") and not current.in_atomic_block:
                current.close()  # a sleeper must not keep it from those that work
            never.wait(min(left, pause))
            pause = min(pause * 1.5, longest)
            yield look()
