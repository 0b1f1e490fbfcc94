"""Wakes the fetch loop: a job is done, work has come, the state has changed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class WakeEvent:
    """An event for one that waits; its ring can be relayed to somebody who sleeps elsewhere."""

    def __init__(self) -> None:
        # Held while it has not been rung. A lock alone is a fifth of the work of an Event.
        self._silence = threading.Lock()
        self._silence.acquire()
        self._relay: Callable[[], None] | None = None

    def ring(self) -> None:
        if self._silence.locked():
            with contextlib.suppress(RuntimeError):  # somebody else has, just now
                self._silence.release()
        relay = self._relay
        if relay is not None:
            relay()

    def clear(self) -> None:
        self._silence.acquire(blocking=False)

    def wait(self, timeout: float) -> None:
        """Return when it is rung, or was since the last `wait` or `clear`; or when time is up."""
        self._silence.acquire(timeout=max(0.0, timeout))

    @contextlib.contextmanager
    def relayed_to(self, ring: Callable[[], None]) -> Iterator[None]:
        """Ring somebody else too; at once if this bell has been rung before."""
        self._relay = ring
        try:
            if not self._silence.locked():
                ring()
            yield
        finally:
            self._relay = None
