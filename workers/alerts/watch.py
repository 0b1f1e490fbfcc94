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

from django.db import DatabaseError, InterfaceError

from jobs.http.server_thread import ServerThread
from jobs.store.database import borrowed

logger = logging.getLogger("workers.alerts")

EVERY = 10.0
"""Seconds between two looks."""
SILENT = timedelta(seconds=15)
"""A reaper gives a sign of life every five seconds; a server acts when some are missing."""
IDENTITY = "ojs-alert-watch"

_never = threading.Event()


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


thread = ServerThread(IDENTITY, _watch)
