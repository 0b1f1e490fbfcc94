"""Pauses between tries while a server is unavailable: growing, capped and randomized."""

from __future__ import annotations

import random

STEPS = (0.25, 0.5, 1.0, 2.0, 5.0)


class Backoff:
    """The next pause in seconds; `reset()` when the server has answered."""

    def __init__(self) -> None:
        self.failures = 0

    def next(self) -> float:
        step = STEPS[min(self.failures, len(STEPS) - 1)]
        self.failures += 1
        return step * random.uniform(0.75, 1.25)

    def reset(self) -> None:
        self.failures = 0
