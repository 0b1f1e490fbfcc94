"""`runjobworker --reload`: a new worker for each change of the code, by Django's autoreloader.

The worker runs in a thread, as `runserver` does, since the autoreloader keeps the main one. When a
file has changed, the worker is asked to end and may finish its jobs, before another process starts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from django.utils import autoreload

from workers.runtime.process import WorkerProcess

PATIENCE = 30
"""Seconds beyond the grace period for a worker to end."""


def run(start: Callable[[Callable[[WorkerProcess], object]], object]) -> None:
    """Call `start` in each new process, with a function that receives its worker."""
    running: list[WorkerProcess] = []
    ended = threading.Event()

    def work() -> None:
        ended.clear()
        try:
            start(running.append)
        finally:
            ended.set()

    try:
        autoreload.run_with_reloader(work)
    finally:
        # The process that watches the other has no worker.
        if running and os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true":
            process = running[-1]
            process.state.terminate("a change of the code")
            ended.wait(process.options.grace_period + PATIENCE)
