"""`runjobworker --reload`: a new worker for each change of the code, by Django's autoreloader.

Two processes, as with `runserver`. One starts the other, anew after each change, and passes signals
on to it. In the other, the worker runs in a thread, since the autoreloader keeps the main one. When
a file has changed or a signal comes, it is asked to end, and may finish its jobs.

The first does not use `run_with_reloader()`, which kills the worker's process on the first signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from django.utils import autoreload

from workers.runtime import signals
from workers.runtime.process import WorkerProcess
from workers.runtime.state import SIGNAL

CHANGED = 3
"""Exit code of a process whose code has changed."""
PATIENCE = 30
"""Seconds beyond the grace period for a worker to end."""
GLANCE = 0.2
"""Seconds between two checks of the other process."""


def run(start: Callable[[Callable[[WorkerProcess], object]], object]) -> None:
    """Call `start` in each new process, with a function that receives its worker."""
    if os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true":
        _Watched(start).run()
    else:
        sys.exit(_start_anew())


def _start_anew() -> int:
    """Run this command in another process, and again after each change; return its exit code."""
    received: SimpleQueue[int] = SimpleQueue()
    for each in signals.WANTED:
        signal.signal(each, lambda number, frame: received.put(number))
    arguments = autoreload.get_child_arguments()
    surroundings = os.environ | {autoreload.DJANGO_AUTORELOAD_ENV: "true"}
    is_ending = False
    code = CHANGED
    while code == CHANGED and not is_ending:
        process = subprocess.Popen(arguments, env=surroundings, close_fds=False)
        while process.poll() is None:
            with contextlib.suppress(Empty):
                number = received.get(timeout=GLANCE)
                is_ending = is_ending or number in signals.TERMINATING
                # Ctrl-C reaches both processes, so the other one leaves it to this one.
                is_interrupt = number == signal.SIGINT
                process.send_signal(signal.SIGTERM if is_interrupt else number)
        code = process.returncode
    if is_ending and code in (CHANGED, -signal.SIGTERM):  # ended while it changed or started
        return 0
    return code if code >= 0 else 128 - code


class _Watched:
    """The process with the worker. Signals reach the worker's state from here."""

    def __init__(self, start: Callable[[Callable[[WorkerProcess], object]], object]) -> None:
        self._start = start
        self._reloader: Any = autoreload.get_reloader()
        self._worker: WorkerProcess | None = None
        self._is_ending = False
        self._has_ended = threading.Event()

    def run(self) -> None:
        with signals.handled(self):
            signal.signal(signal.SIGINT, lambda number, frame: None)
            try:
                autoreload.start_django(self._reloader, self._work)
            finally:  # also when the reloader leaves this process by SystemExit
                if self._worker is not None:
                    self._worker.state.terminate("a change of the code")
                    self._has_ended.wait(self._worker.options.grace_period + PATIENCE)

    def _work(self) -> None:
        try:
            self._start(self._started)
        finally:
            self._has_ended.set()
            if self._is_ending:
                self._reloader.stop()

    def _started(self, worker: WorkerProcess) -> None:
        self._worker = worker
        if self._is_ending:
            worker.state.terminate(SIGNAL)

    # What signals ask for

    def terminate(self, by: str) -> None:
        self._is_ending = True
        if self._worker is not None:
            self._worker.state.terminate(by)
        if self._worker is None or self._has_ended.is_set():
            self._reloader.stop()

    def force(self) -> None:
        if self._worker is not None:
            self._worker.state.force()

    def quiet(self, by: str) -> None:
        if self._worker is not None:
            self._worker.state.quiet(by)

    def resume(self, by: str) -> None:
        if self._worker is not None:
            self._worker.state.resume(by)
