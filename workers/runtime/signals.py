"""POSIX signals → the process's state (OJS worker protocol §9).

A signal handler may interrupt any line of the main thread, even one that holds a lock. So it only
puts the number into a reentrant queue, and a thread does the rest.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any, Protocol

from .state import SIGNAL

TERMINATING = (signal.SIGTERM, signal.SIGINT)
WANTED = (*TERMINATING, signal.SIGTSTP, signal.SIGCONT)
EXIT_AT = 3
"""Requests to end after which a process ends at once, whatever it is doing."""


class Obedient(Protocol):
    """What signals move: the `ProcessState`, or whoever passes them on to it."""

    def terminate(self, by: str) -> None: ...
    def force(self) -> None: ...
    def quiet(self, by: str) -> None: ...
    def resume(self, by: str) -> None: ...


@contextlib.contextmanager
def handled(state: Obedient) -> Iterator[None]:
    """Handle signals while the context lasts; does nothing outside the main thread.

    SIGTERM and SIGINT: terminate with grace; a second time: without (graceful shutdown §4.2).
    SIGTSTP: quiet. SIGCONT: run again.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: SimpleQueue[int | None] = SimpleQueue()
    before = {
        number: signal.signal(number, lambda number, frame: received.put(number))
        for number in WANTED
    }
    thread = threading.Thread(target=_obey, args=(received, state), name="ojs-signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        received.put(None)
        thread.join()


def _obey(received: SimpleQueue[Any], state: Obedient) -> None:
    asked_to_end = 0
    while (number := received.get()) is not None:
        if number in TERMINATING:
            asked_to_end += 1
            if asked_to_end == 1:
                state.terminate(SIGNAL)
            elif asked_to_end < EXIT_AT:
                state.force()
            else:
                os._exit(128 + number)
        elif number == signal.SIGTSTP:
            state.quiet(SIGNAL)
        elif number == signal.SIGCONT:
            state.resume(SIGNAL)
