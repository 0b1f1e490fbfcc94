"""Wakes the fetch loop: a job is done, work has come, the state has changed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class Bell:
    """An event whose ring can be relayed to somebody who sleeps elsewhere."""

    def __init__(self) -> None:
        self._rung = threading.Event()
        self._relay: Callable[[], None] | None = None

    def ring(self) -> None:
        self._rung.set()
        relay = self._relay
        if relay is not None:
            relay()

    def clear(self) -> None:
        self._rung.clear()

    @property
    def is_rung(self) -> bool:
        return self._rung.is_set()

    def wait(self, timeout: float) -> None:
        self._rung.wait(timeout)

    @contextlib.contextmanager
    def relayed_to(self, ring: Callable[[], None]) -> Iterator[None]:
        """Ring somebody else too; at once if this bell has been rung before."""
        self._relay = ring
        try:
            if self._rung.is_set():
                ring()
            yield
        finally:
            self._relay = None
