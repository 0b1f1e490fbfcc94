"""What is worth a line in the log once, and not each time that a stranger provokes it."""

from __future__ import annotations

from collections.abc import Hashable


class Once:
    """Tells what it has not met before, up to a number of things, and from then on nothing."""

    def __init__(self, most: int = 100) -> None:
        self._most = most
        self._met: set[Hashable] = set()

    def is_new(self, thing: Hashable) -> bool:
        """Whether to log it; what strangers send cannot make this remember more than `most`."""
        if thing in self._met or len(self._met) >= self._most:
            return False
        self._met.add(thing)
        return True
