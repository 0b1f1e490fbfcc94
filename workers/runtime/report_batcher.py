"""Batches reports in the moment between a fetch and the next exchange, while small jobs run.

While jobs start one after the other, one or two threads suffice for all of them. As soon as one
holds up the others, each gets its own thread. Nothing slow happens before that: no job waits for
another one, or for the server. Jobs that end meanwhile are reported together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sized

from .active import ActiveJobs
from .pool import Threads
from .wake_event import WakeEvent

LINGER = 0.001
"""Seconds that reports wait for those of jobs about to end, to share one exchange."""
GLANCE = 0.0003
"""Seconds between two checks whether waiting jobs are being started."""
SETTLED = 0.01
"""Seconds after which a handler is not considered about to end: reports do not wait for it."""
ANY = sys.maxsize


class ReportBatcher:
    """Decides how long the loop waits for running jobs, and whose end wakes it."""

    def __init__(self, active: ActiveJobs, threads: Threads, wake_event: WakeEvent) -> None:
        self._active = active
        self._threads = threads
        self._wake_event = wake_event
        self._awaited = ANY
        """The wake event rings when no more than this many handlers still run."""

    def ended(self, running: int) -> None:
        """Note, in the handler's thread, that it returned; `running` others have not."""
        if running <= self._awaited:
            self._wake_event.ring()

    def gather(self, reports: Sized) -> None:
        """Return when all jobs have started, and those that end quickly have ended."""
        waiting = self._threads.waiting
        if not waiting and not reports:
            return
        now = time.monotonic()
        until = now + LINGER
        self._awaited = self._active.running_since(now - SETTLED)
        while (waiting or reports) and self._active.running > self._awaited and now < until:
            self._wake_event.wait(GLANCE if waiting else until - now)
            now = time.monotonic()
            if waiting:
                waiting, before = self._threads.waiting, waiting
                if waiting == before:
                    break
        self._awaited = ANY
        self._threads.wake_all()
