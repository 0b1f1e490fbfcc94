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
from typing import Any

from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_started
from django.db import DatabaseError, InterfaceError, connections

from jobs import crontab

logger = logging.getLogger("jobs.cron")

PAUSES = (1.0, 5.0, 15.0)
"""Seconds until the next try, while the database or its tables are missing; then the last again."""
IDENTITY = "ojs-code-schedules"

_begun = threading.Event()
_never = threading.Event()


def at_first_request() -> None:
    """Have the first request of this process begin the registration."""
    request_started.connect(_on_request, dispatch_uid=IDENTITY)


def begin() -> None:
    """Register in the background, once in a process, and not in the tests of a site."""
    request_started.disconnect(dispatch_uid=IDENTITY)
    # Django's test runners, and pytest-django, set this for as long as they run.
    if hasattr(mail, "outbox") or _begun.is_set():
        return
    _begun.set()
    threading.Thread(target=register, name=IDENTITY, daemon=True).start()


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


def _on_request(**kwargs: Any) -> None:
    begin()
