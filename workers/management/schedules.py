"""Registers the schedules of the site's code, for commands that start."""

from __future__ import annotations

import logging

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError

from jobs import crontab
from workers.runtime import handlers

logger = logging.getLogger("jobs.cron")


def register_if_possible() -> str:
    """Register, for a command with other work to do; log and return why that is not possible."""
    try:
        handlers.autodiscover()
        register()
    except (CommandError, ImproperlyConfigured) as problem:
        logger.error("The schedules of the code are not registered: %s", problem)
        return str(problem)
    except Exception as problem:
        # Code of the site, in any of its modules of handlers and tasks.
        logger.exception("The schedules of the code are not registered.")
        return f"{type(problem).__name__}: {problem}"
    return ""


def register() -> None:
    """Register what the imported modules declare.

    Raises:
        CommandError: the code declares an invalid schedule.
    """
    try:
        crontab.register()
    except ImproperlyConfigured as problem:
        raise CommandError(str(problem)) from problem
    except (DatabaseError, InterfaceError) as problem:
        # The command itself waits for its database. Another process, or the next start, does this.
        logger.warning("The schedules of the code are not registered: %s", str(problem).strip())
