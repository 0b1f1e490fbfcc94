"""Run the reaper: recover jobs of dead workers, expire reservations, promote what is due."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandError
from django.db import DatabaseError, Error, InterfaceError, close_old_connections

from jobs.checks import tolerating_schedules
from jobs.conf import ojs_settings
from jobs.store import keepalive, writable
from jobs.store.trouble import described
from jobs.store.watchdog import bounded
from workers.chores import metric_export, reaper
from workers.management import alive, schedules
from workers.management.ends import ends
from workers.management.lines import SpeakingCommand

SIGN_OF_LIFE = 5
"""Seconds between two signs of life, or a third of the silence that triggers a warning."""
PATIENCE = (0.5, 1, 2, 5)
"""Growing pauses, in seconds, while the database is unavailable."""


class Command(SpeakingCommand):
    help = __doc__ or ""
    logger = logging.getLogger("workers.reaper")
    dates_lines = True

    def add_arguments(self, parser: Any) -> None:
        names = [chore.name for chore in reaper.CHORES]
        parser.add_argument("--once", action="store_true", help="one round, then exit (for cron)")
        parser.add_argument(
            "--only",
            action="append",
            default=[],
            choices=names,
            help="only this chore (repeatable)",
        )
        parser.add_argument(
            "--interval", type=float, help="seconds between rounds (default: REAPER_INTERVAL)"
        )

        alive.add_argument(parser)

    def check(self, *args: Any, **kwargs: Any) -> None:
        """Run the system checks; an error in a schedule of the code does not stop recovery."""
        with tolerating_schedules():
            super().check(*args, **kwargs)

    def handle(self, *args: Any, **options: Any) -> None:
        interval = options["interval"]
        if interval is None:
            interval = ojs_settings.REAPER_INTERVAL.total_seconds()
        # Written so that NaN is refused as well.
        if not 0 <= interval <= threading.TIMEOUT_MAX:
            raise CommandError(f"--interval is a number of seconds, not {interval:g}.")
        self._pulse = alive.outside(options)
        self._rests = reaper.Rests()
        keepalive.apply()
        writable.warn_of_isolation()
        if options["once"]:
            # Without its tables, every chore would fail, each with a traceback.
            reaper.last_seen()
        unregistered = ""
        if not options["only"] or "schedules" in options["only"]:
            unregistered = schedules.register_if_possible()
        if options["once"]:
            self._once(options["only"], unregistered)
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(reaper.sending(options["only"]))
            if not options["only"] or "tallies" in options["only"]:
                stack.enter_context(metric_export.exporting())
            self._loop(interval, options["only"])

    def _once(self, only: list[str], unregistered: str) -> None:
        failed = [f"registering the schedules of the code ({unregistered})"] if unregistered else []

        def complain(chore: reaper.Chore, problem: Exception) -> None:
            reaper.complain(chore, problem)
            failed.append(f"{chore.name} ({_reason(problem)})")

        self._round(only, lambda: False, complain)
        reaper.sign_of_life(reaper.own_name())
        reaper.send_due(only)
        if failed:
            raise CommandError(f"Not everything was done; what failed: {'; '.join(failed)}")

    def _loop(self, interval: float, only: list[str]) -> None:
        # Not an Event: a second signal right after the first would find its lock held by the first
        # one's handler, in the same thread, and wait forever.
        asked: queue.SimpleQueue[int] = queue.SimpleQueue()
        for name in ends():
            signal.signal(name, lambda number, frame: asked.put(number))
        self.say(f"The reaper runs every {interval:g} s.")
        self._pulse.ready()
        self._pulse.takes(True)
        failures = 0
        last_sign = 0.0
        often = min(SIGN_OF_LIFE, ojs_settings.REAPER_SILENT.total_seconds() / 3)
        while asked.empty():
            pause = interval
            try:
                if time.monotonic() - last_sign >= often:
                    with bounded("The reaper's sign of life", reaper.STUCK, self._give_up):
                        reaper.sign_of_life(reaper.own_name())
                    last_sign = time.monotonic()
                self._round(only, lambda: not asked.empty())
                failures = 0
            except (DatabaseError, InterfaceError) as problem:
                pause = PATIENCE[min(failures, len(PATIENCE) - 1)]
                failures += 1
                self.logger.warning(
                    "Database trouble, trying again in %g s. %s", pause, described(problem)
                )
                close_old_connections()
            self._pulse.beat()
            with contextlib.suppress(queue.Empty):
                asked.put(asked.get(timeout=pause))
        self._pulse.takes(False)
        self._pulse.ending()
        self.say("The reaper stops.")

    def _round(
        self,
        only: list[str],
        stop: Callable[[], bool],
        failed: Callable[..., object] = reaper.complain,
    ) -> None:
        def between_batches() -> bool:
            self._pulse.beat()
            return stop()

        done = reaper.sweep(
            only, rests=self._rests, stop=between_batches, failed=failed, give_up=self._give_up
        )
        for line in reaper.report(done):
            self.say(line)

    def _give_up(self) -> None:
        """End a process that hangs, but not on the database: its manager starts another."""
        logging.shutdown()
        os._exit(1)


def _reason(problem: Exception) -> str:
    if isinstance(problem, Error):
        return described(problem)
    reason, _, _ = str(problem).partition("\n")
    return f"{type(problem).__name__}: {reason}"
