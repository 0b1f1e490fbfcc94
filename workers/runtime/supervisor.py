"""Supervises several worker processes, for sites whose jobs need more than one core.

Children are forked before any connection is opened. One that crashes, or reaches its memory limit,
is restarted; one that was asked to end is not. Signals are passed on.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from django.db import connections

from jobs.record import tracing

from .health_signal import ChildHealthSignal, HealthSignal, HealthSignals
from .process import UNREGISTERED
from .signals import WANTED

logger = logging.getLogger("workers.runtime")

SOON = 5.0
"""Seconds; a child that lived shorter is not restarted at once."""
PAUSES = (0.0, 1.0, 2.0, 5.0, 10.0)
BEAT = 1.0
"""Seconds between two signs of life."""
GLANCE = 0.2
"""Seconds between two checks of the children."""


class Supervisor:
    """Keeps `count` children running until asked to end."""

    def __init__(
        self, count: int, child: Callable[[HealthSignal], int], health_signal: HealthSignal
    ) -> None:
        self._count = count
        self._child = child
        self._health_signal = health_signal
        self._pulses = HealthSignals(count)
        self._places: dict[int, int] = {}
        """Process id → index of the child."""
        self._is_ready = False
        self._beaten_at = 0.0
        self._running: dict[int, float] = {}
        self._due: list[float] = []
        self._deaths = 0
        self._ending = False
        self._exit_code = 0
        self._received: SimpleQueue[int] = SimpleQueue()

    def run(self) -> int:
        """Run the children; return 0 once all have ended as requested.

        If the children of a burst could not register, return their exit code.
        """
        for number in WANTED:
            signal.signal(number, lambda number, frame: self._received.put(number))
        for _ in range(self._count):
            self._fork()
        while self._running or self._due:
            self._pass_on()
            self._reap()
            self._restart()
            self._beat()
        return self._exit_code

    def _fork(self) -> None:
        # An open connection belongs to one process only.
        connections.close_all()
        place = min(set(range(self._count)) - set(self._places.values()))
        health_signal = self._pulses.of(place)
        health_signal.begin()
        pid = os.fork()
        if pid == 0:
            self._be_child(health_signal)
        self._running[pid] = time.monotonic()
        self._places[pid] = place
        logger.info("Started worker process %d.", pid)

    def _be_child(self, health_signal: ChildHealthSignal) -> None:
        code = 1
        try:
            # Leave the terminal's foreground group: Ctrl-C then comes from the supervisor, once.
            os.setpgid(0, 0)
            for number in WANTED:
                signal.signal(number, signal.SIG_DFL)
            code = self._child(health_signal)
        except BaseException:
            logger.exception("The worker process crashed.")
        finally:
            tracing.flush()
            logging.shutdown()
            os._exit(code)

    def _pass_on(self) -> None:
        try:
            number = self._received.get(timeout=GLANCE)
        except Empty:
            return
        if number in (signal.SIGTERM, signal.SIGINT):
            if not self._ending:
                self._health_signal.ending()
            self._ending = True
            self._due.clear()
        for pid in self._running:
            os.kill(pid, number)

    def _reap(self) -> None:
        for pid, began in list(self._running.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if not ended:
                continue
            del self._running[pid], self._places[pid]
            code = os.waitstatus_to_exitcode(status)
            if code == 0 or self._ending:
                logger.info("Worker process %d has ended.", pid)
                continue
            if code == UNREGISTERED:
                self._exit_code = code
                continue
            now = time.monotonic()
            self._deaths = self._deaths + 1 if now - began < SOON else 0
            pause = PAUSES[min(self._deaths, len(PAUSES) - 1)]
            logger.warning("Worker process %d ended with %d; another follows.", pid, code)
            self._due.append(now + pause)

    def _beat(self) -> None:
        """Signal to the outside what holds for every running child."""
        children = [self._pulses.of(place) for place in self._places.values()]
        if not self._is_ready and len(children) == self._count:
            self._is_ready = all(child.is_ready for child in children)
            if self._is_ready:
                self._health_signal.ready()
        full = len(children) == self._count
        self._health_signal.takes(full and all(child.is_taking for child in children))
        if time.monotonic() - self._beaten_at >= BEAT and all(child.is_alive for child in children):
            self._beaten_at = time.monotonic()
            self._health_signal.beat()

    def _restart(self) -> None:
        now = time.monotonic()
        for moment in [moment for moment in self._due if moment <= now]:
            self._due.remove(moment)
            self._fork()
