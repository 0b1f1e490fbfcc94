"""Registers the schedules of the site's code, for commands that start."""

from __future__ import annotations

import logging

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError

from jobs import crontab

logger = logging.getLogger("jobs.cron")


def register() -> None:
    """
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
