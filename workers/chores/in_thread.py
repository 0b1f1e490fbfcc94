"""Sweeps of the reaper in a thread of another process: `runjobworker --reaper`, for small sites."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator

from django.db import DatabaseError, InterfaceError, close_old_connections, connections

from jobs.conf import ojs_settings
from jobs.store.trouble import described
from jobs.store.watchdog import bounded

from . import metric_export, reaper

logger = logging.getLogger("workers.reaper")
PATIENCE = 5.0
"""Seconds between two tries while the database is unavailable."""


@contextlib.contextmanager
def sweeping() -> Iterator[None]:
    """Run the sweeps as long as the context lasts. Any number of reapers may run at once."""
    over = threading.Event()
    thread = threading.Thread(target=_sweep, args=(over,), name="ojs-reaper", daemon=True)
    thread.start()
    try:
        with reaper.sending(), metric_export.exporting():
            yield
    finally:
        over.set()
        thread.join(reaper.STUCK)


def _sweep(over: threading.Event) -> None:
    name = f"{reaper.own_name()}:worker"
    rests = reaper.Rests()
    try:
        while not over.is_set():
            pause = ojs_settings.REAPER_INTERVAL.total_seconds()
            try:
                with bounded("The reaper's sign of life", reaper.STUCK):
                    reaper.sign_of_life(name)
                for line in reaper.report(reaper.sweep(rests=rests, stop=over.is_set)):
                    logger.info("%s", line)
            except (DatabaseError, InterfaceError) as problem:
                logger.warning("Database trouble, trying again. %s", described(problem))
                close_old_connections()
                pause = PATIENCE
            over.wait(pause)
    finally:
        connections.close_all()


class Once:
    """What one of several processes does that were forked after this was made, and no other.

    A token in a pipe, which is read only once.
    """

    def __init__(self) -> None:
        self._pipe, token = os.pipe()
        os.write(token, b"1")
        os.close(token)

    def is_mine(self) -> bool:
        return os.read(self._pipe, 1) != b""


@contextlib.contextmanager
def missing_reaper_is_logged(once: Once) -> Iterator[None]:
    """Log a warning if no reaper is seen although there was time to start one."""
    over = threading.Event()
    thread = threading.Thread(target=_look, args=(over, once), name="ojs-reaper-seen", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _look(over: threading.Event, once: Once) -> None:
    if over.wait(ojs_settings.REAPER_SILENT.total_seconds()):
        return
    try:
        if reaper.is_silent(reaper.last_seen()) and once.is_mine():
            logger.warning(
                "No reaper runs: jobs of workers that die are not recovered, and schedules do not "
                "run. Start manage.py runreaper, or this command with --reaper."
            )
    except (DatabaseError, InterfaceError):
        pass  # the worker itself reports it
    finally:
        connections.close_all()
