"""Requests that wait for something: they look again and again, and only so many of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
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
    global _waiters
    with _counting:
        if _waiters >= ojs_settings.MAX_WAITING:
            return look()
        _waiters += 1
    deadline = time.monotonic() + seconds
    pause, longest = LOOKS
    never = threading.Event()
    try:
        while True:
            found = look()
            left = deadline - time.monotonic()
            if found is not None or left <= 0:
                return found
            current = connection()
            if current.settings_dict["OPTIONS"].get("pool") and not current.in_atomic_block:
                current.close()  # a sleeper must not keep it from those that work
            never.wait(min(left, pause))
            pause = min(pause * 1.5, longest)
    finally:
        with _counting:
            _waiters -= 1
