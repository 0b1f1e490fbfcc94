"""A one-line status, from the health endpoint and the database."""

from __future__ import annotations

import threading
import time
from datetime import datetime

from django.db import DatabaseError, InterfaceError, connections
from django.utils import timezone

from jobs.models import Job
from jobs.spec.lifecycle import State
from workers.models import Worker

from .console import Console
from .health import NoAnswer, health

EVERY = 1.0
"""Seconds between two updates where the line can be rewritten."""
EVERY_LINE = 30.0
"""Seconds between two updates where each adds a line to a log."""
FIRST = 1.0
"""Seconds until the first update: by then the worker has registered."""
LEISURE = 20
"""Least pause after an update, as a multiple of its duration: counting is not free."""


class Reporter:
    """Shows the status at intervals, in a thread of its own, until stopped."""

    def __init__(self, console: Console, url: str, stop: threading.Event) -> None:
        self._console = console
        self._url = url
        self._stop = stop
        self._since = timezone.now()
        self._started = time.monotonic()

    def run(self) -> None:
        every = EVERY if self._console.is_terminal else EVERY_LINE
        try:
            self._stop.wait(FIRST)
            while not self._stop.is_set():
                asked = time.monotonic()
                line = self.line()
                took = time.monotonic() - asked
                if not self._stop.is_set():
                    self._console.show(line)
                self._stop.wait(max(every, took * LEISURE))
        finally:
            connections.close_all()

    def line(self) -> str:
        parts = [_duration(time.monotonic() - self._started), *troubles(self._url)]
        try:
            parts += [workers(), *waiting(), *finished(self._since)]
        except (DatabaseError, InterfaceError):
            parts.append("the database cannot be read")
            connections.close_all()
        return "  ".join(parts)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def troubles(url: str) -> list[str]:
    """Return the problems that the health endpoint reports; empty if it is healthy."""
    try:
        reaper = health(url).get("reaper", {})
    except NoAnswer:
        return ["THE SERVER DOES NOT ANSWER"]
    if reaper.get("status") == "healthy":
        return []
    return [reaper.get("message", "THE REAPER IS SILENT")]


def workers() -> str:
    """How many workers there are, and how many of them have missed a heartbeat or more."""
    silent = Worker.objects.late().count()
    heard = Worker.objects.live().count() - silent
    text = f"{heard} worker{'' if heard == 1 else 's'}"
    return f"{text} (+{silent} silent)" if silent else text


def waiting() -> list[str]:
    """Jobs under way, by state; each WHERE has a partial index of its own."""
    jobs = Job.objects.order_by()
    found = {State.ACTIVE: jobs.filter(reserved_for__isnull=False).count()}
    for state in (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE):
        found[state] = jobs.filter(state=state).count()
    return [f"{count} {state}" for state, count in found.items() if count]


def finished(since: datetime) -> list[str]:
    """Jobs that ended since then, and since when that is: the other numbers are totals."""
    counts = [
        f"{Job.objects.filter(state=state, finished_at__gte=since).count()} {state}"
        for state in (State.COMPLETED, State.DISCARDED)
    ]
    return [f"since the start: {', '.join(counts)}"]
