"""Batches reports in the moment between a fetch and the next exchange, while small jobs run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sized

from .active import ActiveJobs
from .wake_event import WakeEvent

LINGER = 0.001
"""Seconds that reports wait for those of jobs about to end, to share one exchange."""
SETTLED = 0.01
"""Seconds after which a handler is not considered about to end: reports do not wait for it."""
ANY = sys.maxsize


class ReportBatcher:
    """Decides how long the loop waits for running jobs, and whose end wakes it."""

    def __init__(self, active: ActiveJobs, wake_event: WakeEvent) -> None:
        self._active = active
        self._wake_event = wake_event
        self._awaited = ANY
        """The wake event rings when no more than this many handlers still run."""

    def ended(self, running: int) -> None:
        """Note, in the handler's thread, that it returned; `running` others have not."""
        if running <= self._awaited:
            self._wake_event.ring()

    def gather(self, reports: Sized) -> None:
        """Return when the jobs that end quickly have ended, if there is anything to report."""
        if not reports:
            return
        now = time.monotonic()
        until = now + LINGER
        self._awaited = self._active.running_since(now - SETTLED)
        while self._active.running > self._awaited and now < until:
            self._wake_event.wait(until - now)
            now = time.monotonic()
        self._awaited = ANY
