"""Requests that wait for something: they look again and again, and only so many of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from ..conf import ojs_settings
from ..database import connection

LOOKS = (0.05, 0.5)
"""Seconds between two looks: the first, and the longest it grows to."""

_counting = threading.Lock()
_waiters = 0

Found = TypeVar("Found")


def until(look: Callable[[], Found | None], seconds: float) -> Found | None:
    """Look until there is something, and return it; None when the time is up.

    Waiters hold a thread each; beyond `MAX_WAITING` they look once.
    """
    return next((found for found in looks(look, seconds) if found is not None), None)


def looks(look: Callable[[], Found], seconds: float) -> Iterator[Found]:
    """Look again and again, less and less often, until the time is up or nobody listens."""
    global _waiters
    with _counting:
        is_full = _waiters >= ojs_settings.MAX_WAITING
        _waiters += not is_full
    if is_full:
        yield look()
        return
    deadline = time.monotonic() + seconds
    pause, longest = LOOKS
    never = threading.Event()
    try:
        while True:
            yield look()
            left = deadline - time.monotonic()
            if left <= 0:
                return
            current = connection()
            if current.settings_dict["OPTIONS"].get("pool") and not current.in_atomic_block:
                current.close()  # a sleeper must not keep it from those that work
            never.wait(min(left, pause))
            pause = min(pause * 1.5, longest)
    finally:
        with _counting:
            _waiters -= 1
