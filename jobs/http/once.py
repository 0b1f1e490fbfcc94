"""Limits log lines that clients can provoke: each is written once, and only so many in total."""

from __future__ import annotations

from collections.abc import Hashable


class Once:
    """Recognizes things it has not seen before, up to a maximum number of things."""

    def __init__(self, most: int = 100) -> None:
        self._most = most
        self._met: set[Hashable] = set()

    def is_new(self, thing: Hashable) -> bool:
        """Whether to log it. Remembers at most `most` things, however many clients send."""
        if thing in self._met or len(self._met) >= self._most:
            return False
        self._met.add(thing)
        return True
