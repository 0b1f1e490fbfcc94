"""A thread of each web server process that notices a reaper that has fallen silent.

The reaper checks all rules, but cannot report that it does not run. So the servers check the rules
about that, and send what is due, for as long as no reaper does.

The thread starts with the first request, or with the startup event of `workers.asgi.JobServer`. It
sees nothing while no server runs or the database is away: only a check from outside does
(`/ojs/v1/health`).
"""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any

from django.core import mail
from django.core.signals import request_started
from django.db import DatabaseError, InterfaceError

from jobs.store.database import borrowed

logger = logging.getLogger("workers.alerts")

EVERY = 10.0
"""Seconds between two looks."""
SILENT = timedelta(seconds=15)
"""A reaper gives a sign of life every five seconds; a server acts when some are missing."""
IDENTITY = "ojs-alert-watch"

_begun = threading.Event()
_never = threading.Event()


def at_first_request() -> None:
    """Have the first request of this process start the thread."""
    request_started.connect(_on_request, dispatch_uid=IDENTITY)


def begin() -> None:
    """Start the thread, once in a process, and not in the tests of a site."""
    request_started.disconnect(dispatch_uid=IDENTITY)
    # Django's test runners, and pytest-django, set this for as long as they run.
    if hasattr(mail, "outbox") or _begun.is_set():
        return
    _begun.set()
    threading.Thread(target=_watch, name=IDENTITY, daemon=True).start()


def look() -> bool:
    """Check the rules about the reaper if it seems silent, and send what is due; return whether
    it was."""
    # Late: what only serves requests need not import it at its start.
    from ..liveness import reapers
    from ..models import AlertRule
    from . import delivery, evaluation
    from .problems import silent_reaper

    rules = AlertRule.objects.filter(kind=silent_reaper.name, enabled=True)
    if not rules.exists() or not reapers.is_silent(reapers.last_seen(), SILENT):
        return False
    evaluation.evaluate([silent_reaper.name])
    delivery.deliver_due()
    return True


def _watch() -> None:
    while not _never.wait(EVERY):
        try:
            with borrowed():
                look()
        except (DatabaseError, InterfaceError) as problem:
            # Also before `migrate`, and while the database is away.
            logger.debug("The reaper is not watched: %s", str(problem).strip())


def _on_request(**kwargs: Any) -> None:
    begin()
