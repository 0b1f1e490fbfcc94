"""Threads that begin together, each with a database connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections


def together(*tasks: Callable[[], Any]) -> list[Any]:
    """Do the tasks at the same time; return what each returned, or raise what one raised."""
    start = threading.Barrier(len(tasks))

    def run(task: Callable[[], Any]) -> Any:
        try:
            start.wait(30)
            return task()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result() for future in [pool.submit(run, task) for task in tasks]]


def in_step(rounds: int, *tasks: Callable[[int], Any]) -> list[list[Any]]:
    """Do the tasks at the same time, again for each round; return the results of each round."""
    gate = threading.Barrier(len(tasks))

    def repeat(task: Callable[[int], Any]) -> list[Any]:
        try:
            return [task(number) for number in range(rounds) if gate.wait(30) is not None]
        except BaseException:
            gate.abort()
            raise

    repeated = [lambda task=task: repeat(task) for task in tasks]
    return [list(results) for results in zip(*together(*repeated), strict=True)]
