"""Log lines about a database that is unavailable: one for each reason, then a count once a minute.

A server refuses thousands of requests a minute then. Each would be a line that says the same.
"""

from __future__ import annotations

import logging
import threading

from ..errors import DatabaseUnavailable

EVERY = 60.0
"""Seconds from a line to the one that counts what has been left out since."""

_lock = threading.Lock()
_left_out: dict[tuple[str, str], int] = {}
"""Logger and reason → lines left out since the first."""


def report(logger: logging.Logger, trouble: DatabaseUnavailable, problem: Exception) -> None:
    """Log that a request was refused, and why; or count it, if that has been said already."""
    key = logger.name, trouble.message
    with _lock:
        if key in _left_out:
            _left_out[key] += 1
            return
        _left_out[key] = 0
    logger.error("%s %s", trouble, " ".join(str(problem).split()))
    timer = threading.Timer(EVERY, _count, [logger, key])
    timer.daemon = True
    timer.start()


def _count(logger: logging.Logger, key: tuple[str, str]) -> None:
    with _lock:
        count = _left_out.pop(key, 0)
    if count:
        logger.error("%s %d more requests were refused within %g s.", key[1], count, EVERY)


def forget() -> None:
    """Say everything again. For tests."""
    with _lock:
        _left_out.clear()
