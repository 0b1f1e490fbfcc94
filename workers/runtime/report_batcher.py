"""The moment between a fetch and the next exchange, in which small jobs run.

As long as jobs are begun one after the other, a thread or two do for all of them. As soon as one
holds up the others, each gets a thread of its own. Nothing that may take long is done before: no
job waits for another one, or for the server. Those that end meanwhile are reported together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sized

from .active import ActiveJobs
from .pool import Threads
from .wake_event import WakeEvent

LINGER = 0.001
"""Seconds reports wait for those of other jobs that are about to end: one exchange for all."""
GLANCE = 0.0003
"""Seconds between two looks whether jobs that wait for a thread are being begun."""
SETTLED = 0.01
"""A handler that has run for so many seconds is not about to end: nobody waits for it."""
ANY = sys.maxsize


class ReportBatcher:
    """When the loop waits for jobs, and which of them wakes it when they end."""

    def __init__(self, active: ActiveJobs, threads: Threads, wake_event: WakeEvent) -> None:
        self._active = active
        self._threads = threads
        self._wake_event = wake_event
        self._awaited = ANY
        """The bell rings where no more than these still run."""

    def ended(self, running: int) -> None:
        """A handler has returned, in its own thread; `running` others have not."""
        if running <= self._awaited:
            self._wake_event.ring()

    def gather(self, reports: Sized) -> None:
        """Return when all jobs have been begun, and those that end quickly have ended."""
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
