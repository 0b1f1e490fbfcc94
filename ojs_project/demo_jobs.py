"""A trickle of demonstration jobs, enqueued over HTTP as any producer would."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from typing import Any

from .demo_client import Client, NoAnswer, Refused

QUEUE = "demo"
"""A queue of their own: the demonstration worker must not take a visitor's jobs."""
EVERY = 2.0
"""Seconds between two jobs: enough to see something move, about 40,000 a day."""

logger = logging.getLogger(__name__)

Document = dict[str, Any]


def fast(number: int) -> Document:
    return {"type": "demo.fast", "args": [number]}


def slow(number: int) -> Document:
    return {"type": "demo.slow", "args": [3 + number % 5]}


def flaky(number: int) -> Document:
    """Fails at its first attempt and succeeds at the second."""
    retry = {"max_attempts": 3, "initial_interval": "PT2S", "jitter": False}
    return {"type": "demo.flaky", "args": [1], "options": {"retry": retry}}


def broken(number: int) -> Document:
    """Fails at both of its attempts and ends in the dead letter."""
    retry = {
        "max_attempts": 2,
        "initial_interval": "PT2S",
        "jitter": False,
        "on_exhaustion": "dead_letter",
    }
    return {"type": "demo.broken", "args": [], "options": {"retry": retry}}


def scheduled(number: int) -> Document:
    return {"type": "demo.scheduled", "args": [number], "options": {"delay_until": "+PT10S"}}


ONE_OF_EACH = (scheduled, slow, flaky, broken, fast)
ROUND = (fast, slow, fast, flaky, fast, scheduled, slow, fast, fast, flaky, slow, fast) * 3 + (
    broken,
)


def documents() -> Iterator[Document]:
    """Yield job documents without end; the first ones are one of each type."""
    for number, make in enumerate(itertools.chain(ONE_OF_EACH, itertools.cycle(ROUND)), 1):
        document = make(number)
        yield document | {"options": {"queue": QUEUE} | document.get("options", {})}


def trickle(client: Client, stop: threading.Event) -> None:
    """Enqueue one of each at once, and then a job now and again, until told to stop."""
    jobs = documents()
    batch = list(itertools.islice(jobs, len(ONE_OF_EACH)))
    while not stop.is_set():
        try:
            client.post("/ojs/v1/jobs/batch", {"jobs": batch})
        except (NoAnswer, Refused) as problem:
            # The job may exist all the same; a demonstration need not know.
            logger.debug("Could not enqueue: %s", problem)
        stop.wait(EVERY)
        batch = [next(jobs)]
