"""A web server registers the schedules of the site's code when it starts (`jobs.crontab`).

Its first request starts a thread that does this, or the startup event of `workers.asgi.JobServer`:
nothing waits for it, no management command does it, and a server that was started before `migrate`
tries again. What is in the database already as the code declares it is read, and not written:
however many processes a deployment has, the first one makes the change.
"""

from __future__ import annotations

import itertools
import logging
import threading

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, InterfaceError, connections

from jobs import crontab
from jobs.http.server_thread import ServerThread

logger = logging.getLogger("jobs.cron")

PAUSES = (1.0, 5.0, 15.0)
"""Seconds until the next try, while the database or its tables are missing; then the last again."""
IDENTITY = "ojs-code-schedules"

_never = threading.Event()


def register() -> None:
    """Register, and try again for as long as the database cannot be used.

    An error in the code's schedules is logged: the server serves its requests regardless.
    """
    # Late: the runtime is not imported by what only serves requests.
    from workers.runtime import handlers

    try:
        # Without all of them, schedules would be taken for removed.
        handlers.autodiscover()
        for number, pause in enumerate(itertools.chain(PAUSES, itertools.repeat(PAUSES[-1]))):
            if _registered(logging.DEBUG if number else logging.WARNING):
                return
            _never.wait(pause)
    except ImproperlyConfigured as problem:
        logger.error("The schedules of the code are not registered: %s", problem)
    except Exception:
        # Code of the site, in any of its modules of handlers and tasks.
        logger.exception("The schedules of the code are not registered.")


def _registered(level: int) -> bool:
    """Try it once; a database that cannot be used is logged at this level."""
    try:
        crontab.register()
    except (DatabaseError, InterfaceError) as problem:
        logger.log(
            level,
            "The schedules of the code are not registered yet; this server tries again: %s",
            str(problem).strip(),
        )
        return False
    finally:
        connections.close_all()
    return True


thread = ServerThread(IDENTITY, register)
