"""Requests that wait for something, and how many of them one server process lets wait.

A request that waits holds a server thread, whatever it waits for: work, a result, a report of
progress, room in a queue. All of them share `MAX_WAITING` places, so that acks and heartbeats
always find a thread; a request that gets none is answered at once with what there is.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from ..conf import ojs_settings
from ..store.database import connection

LOOKS = (0.05, 0.5)
"""Seconds between two looks: the first, and the longest it grows to."""

_counting = threading.Lock()
_waiting = 0

Found = TypeVar("Found")


@contextlib.contextmanager
def place() -> Iterator[bool]:
    """Take a place to wait in, for the length of the block; False if none is left."""
    global _waiting
    with _counting:
        granted = _waiting < ojs_settings.MAX_WAITING
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
