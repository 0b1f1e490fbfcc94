"""A steady supply of demonstration jobs, enqueued as a Django site does; `handlers` runs them."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

import jobs
from jobs.errors import OJSError

QUEUE = "demo"
"""A separate queue: the demonstration worker must not take a visitor's jobs."""
EVERY = 2.0
"""Seconds between two jobs: enough to see activity, about 40,000 a day."""

logger = logging.getLogger(__name__)

New = tuple[str, list[Any], dict[str, Any]]
"""Type, arguments and options of a job."""


def fast(number: int) -> New:
    return "demo.fast", [number], {}


def slow(number: int) -> New:
    return "demo.slow", [3 + number % 5], {}


def flaky(number: int) -> New:
    """Fails at its first attempt and succeeds at the second."""
    retry = {"max_attempts": 3, "initial_interval": "PT2S", "jitter": False}
    return "demo.flaky", [1], {"retry": retry}


def broken(number: int) -> New:
    """Fails at both of its attempts and ends in the dead letter."""
    retry = {
        "max_attempts": 2,
        "initial_interval": "PT2S",
        "jitter": False,
        "on_exhaustion": "dead_letter",
    }
    return "demo.broken", [], {"retry": retry}


def scheduled(number: int) -> New:
    return "demo.scheduled", [number], {"scheduled_at": timedelta(seconds=10)}


ONE_OF_EACH = (scheduled, slow, flaky, broken, fast)
ROUND = (fast, slow, fast, flaky, fast, scheduled, slow, fast, fast, flaky, slow, fast) * 3 + (
    broken,
)


def new_jobs() -> Iterator[New]:
    """Yield jobs without end; the first ones are one of each type."""
    for number, make in enumerate(itertools.chain(ONE_OF_EACH, itertools.cycle(ROUND)), 1):
        yield make(number)


def trickle(stop: threading.Event) -> None:
    """Enqueue one of each immediately, then one job at a time, until stopped."""
    coming = new_jobs()
    batch = list(itertools.islice(coming, len(ONE_OF_EACH)))
    try:
        while not stop.is_set():
            try:
                for job_type, args, options in batch:
                    jobs.enqueue(job_type, args, queue=QUEUE, **options)
            except (DatabaseError, InterfaceError, OJSError) as problem:
                # A demonstration need not know whether the job was stored nevertheless.
                logger.debug("Could not enqueue: %s", problem)
                connections.close_all()
            stop.wait(EVERY)
            batch = [next(coming)]
    finally:
        connections.close_all()
