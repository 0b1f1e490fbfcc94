"""Threads that begin together, each with its own database connection."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections

from tests.database import atomic, connection
from tests.processes import eventually


def together(*tasks: Callable[[], Any]) -> list[Any]:
    """Run the tasks at the same time; return their results, or raise the first exception."""
    start = threading.Barrier(len(tasks))

    def run(task: Callable[[], Any]) -> Any:
        try:
            start.wait(120)
            return task()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(run, task) for task in tasks]]


def in_step(rounds: int, *tasks: Callable[[int], Any]) -> list[list[Any]]:
    """Run the tasks at the same time, again for each round; return the results of each round."""
    gate = threading.Barrier(len(tasks))

    def repeat(task: Callable[[int], Any]) -> list[Any]:
        try:
            return [task(number) for number in range(rounds) if gate.wait(120) is not None]
        except BaseException:
            gate.abort()
            raise

    repeated = [lambda task=task: repeat(task) for task in tasks]
    return [list(results) for results in zip(*together(*repeated), strict=True)]


WAITING = """
    SELECT count(*)
      FROM pg_stat_activity
     WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def while_it_waits(
    change: Callable[[], Any], act: Callable[[], Any], then: Callable[[], Any] = lambda: None
) -> Any:
    """Make `change`; when `act` waits for its locks run `then`, and commit; return `act`'s result.

    What `act` read before it had to wait is then out of date. If `then` needs a lock that `act`
    holds, that is a deadlock. An `act` that does not wait at all ends before `then`.
    """
    with ThreadPoolExecutor(1) as pool:

        def acted() -> Any:
            try:
                return act()
            finally:
                connections.close_all()

        def waits() -> bool:
            with connection.cursor() as cursor:
                # A transaction sees the statistics as they were when it first read them.
                cursor.execute("SELECT pg_stat_clear_snapshot()")
                cursor.execute(WAITING)
                return bool(cursor.fetchone()[0])

        with atomic():
            change()
            acting = pool.submit(acted)
            eventually(lambda: acting.done() or waits(), lambda: "neither done nor waiting")
            then()
        return acting.result()
