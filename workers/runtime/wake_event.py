"""Wakes the fetch loop: a job is done, work has come, the state has changed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


class WakeEvent:
    """An event for one waiting thread; its ring can be relayed to a thread that waits elsewhere."""

    def __init__(self) -> None:
        # Held until rung. A plain lock costs a fifth of an Event.
        self._silence = threading.Lock()
        self._silence.acquire()
        self._relay: Callable[[], None] | None = None

    def ring(self) -> None:
        if self._silence.locked():
            with contextlib.suppress(RuntimeError):  # another thread has just released it
                self._silence.release()
        relay = self._relay
        if relay is not None:
            relay()

    def clear(self) -> None:
        self._silence.acquire(blocking=False)

    def wait(self, timeout: float) -> None:
        """Return when rung, if rung since the last `wait` or `clear`, or when time is up."""
        self._silence.acquire(timeout=max(0.0, timeout))

    @contextlib.contextmanager
    def relayed_to(self, ring: Callable[[], None]) -> Iterator[None]:
        """Also call `ring`; at once if this event has been rung before."""
        self._relay = ring
        try:
            if not self._silence.locked():
                ring()
            yield
        finally:
            self._relay = None
