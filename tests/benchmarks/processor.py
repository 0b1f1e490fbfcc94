"""How fast a processor is at the moment: on a machine that others share, it changes by the minute.

The same piece of work is done again and again beside a measurement. Only the processor's time for
it counts, not the time that it waits for a processor.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

STEPS = 100_000
PAUSE = 1.0
"""Seconds between two pieces of work, which take a hundredth of that."""


class Watch:
    """The costs of the piece of work since they were last taken."""

    def __init__(self) -> None:
        self._costs: list[float] = []

    def add(self) -> None:
        began = time.thread_time()
        for _ in range(STEPS):
            pass
        self._costs.append(1000 * (time.thread_time() - began))

    def take(self) -> float:
        """Return their median in milliseconds; zero if there are none."""
        costs, self._costs = self._costs, []
        return statistics.median(costs) if costs else 0.0


@contextmanager
def watched(pause: float = PAUSE) -> Iterator[Watch]:
    """Do the work every `pause` seconds, in another thread, until the block ends."""
    watch, over = Watch(), threading.Event()

    def go_on() -> None:
        while not over.wait(pause):
            watch.add()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
