"""A worker process's own state and its one-way order (OJS worker protocol §2.3)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from workers.lifecycle import WorkerState

logger = logging.getLogger("workers.runtime")

SIGNAL = "a signal"
SERVER = "the server"


class ProcessState:
    """running → quiet → terminate; quiet may go back to running, terminate is final.

    A worker remembers what quieted it: the server may withdraw its own request, but only a SIGCONT
    ends a SIGTSTP.
    """

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        self._lock = threading.Lock()
        self._quieted_by: set[str] = set()
        self._terminating = False
        self.is_forced = False
        """Asked to terminate twice: do not wait for active jobs."""
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
        """End a quiet: SIGCONT ends any (§9.4), the server only its own."""
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
        """Move to `desired`, the reply to a heartbeat that reported `reported` (§4.4), as far as
        §2.3 allows."""
        if desired in (WorkerState.TERMINATE, WorkerState.TERMINATED):
            self.terminate(SERVER)
        elif desired == WorkerState.QUIET:
            # If the worker quieted itself, the reply only echoes its own state. A SIGCONT may have
            # come meanwhile: an outdated echo must not undo it.
            if reported == WorkerState.RUNNING:
                self.quiet(SERVER)
        else:
            self.resume(SERVER)

    def _tell(self, before: WorkerState, by: str) -> None:
        if self.now != before:
            logger.info("From %s to %s, requested by %s.", before, self.now, by)
            self.changed()
