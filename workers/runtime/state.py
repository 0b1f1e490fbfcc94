"""A worker process's own state, and the one way it goes (OJS worker protocol §2.3)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from workers.lifecycle import WorkerState

logger = logging.getLogger("workers.runtime")

SIGNAL = "a signal"
SERVER = "the server"


class ProcessState:
    """running → quiet → terminate; from quiet back to running, from terminate nowhere.

    A worker remembers who quieted it: what the server asked for the server may take back, and a
    SIGTSTP only a SIGCONT.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.Lock()
        self._quieted_by: set[str] = set()
        self._terminating = False
        self.is_forced = False
        """Asked to terminate twice: without waiting for active jobs."""
        self.changed = changed

    @property
    def now(self) -> WorkerState:
        if self._terminating:
            return WorkerState.TERMINATE
        return WorkerState.QUIET if self._quieted_by else WorkerState.RUNNING

    @property
    def is_running(self) -> bool:
        return not self._terminating and not self._quieted_by

    @property
    def is_terminating(self) -> bool:
        return self._terminating

    def quiet(self, by: str) -> None:
        with self._lock:
            before = self.now
            self._quieted_by.add(by)
        self._tell(before, by)

    def resume(self, by: str) -> None:
        """SIGCONT ends any quiet (§9.4); the server only one of its own."""
        with self._lock:
            before = self.now
            if by == SIGNAL:
                self._quieted_by.clear()
            else:
                self._quieted_by.discard(by)
        self._tell(before, by)

    def terminate(self, by: str) -> None:
        with self._lock:
            before = self.now
            self._terminating = True
        self._tell(before, by)

    def force(self) -> None:
        """End now, without waiting for active jobs."""
        self.is_forced = True
        self.terminate(SIGNAL)
        self.changed()

    def obey(self, desired: WorkerState, reported: WorkerState) -> None:
        """Go where the answer to a heartbeat that said `reported` asks (§4.4), as far as §2.3
        allows."""
        if desired in (WorkerState.TERMINATE, WorkerState.TERMINATED):
            self.terminate(SERVER)
        elif desired == WorkerState.QUIET:
            # To a worker that quieted itself the answer repeats what that says of itself. A
            # SIGCONT may have come meanwhile: an echo of before must not undo it.
            if reported == WorkerState.RUNNING:
                self.quiet(SERVER)
        else:
            self.resume(SERVER)

    def _tell(self, before: WorkerState, by: str) -> None:
        if self.now != before:
            logger.info("From %s to %s: %s asked for it.", before, self.now, by)
            self.changed()
