"""What the demonstration jobs do: succeed, take their time, fail, or fail for good."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Abandoned(Exception):
    """The job is no longer ours, or the worker has to go: stop, and report nothing."""


class Execution:
    """One attempt at a job, as its handler sees it."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job_id: str = job["id"]
        self.type: str = job["type"]
        self.args: list[Any] = job["args"]
        self.attempt: int = job["attempt"]
        self.abandoned = threading.Event()
        self._settling = threading.Lock()

    def work_for(self, seconds: float) -> None:
        """Pretend to work.

        Raises:
            Abandoned: there is no point in going on.
        """
        if self.abandoned.wait(seconds):
            raise Abandoned

    def may_settle(self) -> bool:
        """Whether the caller is the first who wants to report an outcome; asked once by each."""
        return self._settling.acquire(blocking=False)


def fast(execution: Execution, *args: Any) -> dict[str, Any]:
    """Done at once."""
    return {"echo": list(args)}


def slow(execution: Execution, seconds: float) -> dict[str, Any]:
    """Takes a while, and notices when it should stop."""
    execution.work_for(seconds)
    return {"worked_for": seconds}


def flaky(execution: Execution, failures: int) -> dict[str, Any]:
    """Fails so many times, then succeeds."""
    if execution.attempt <= failures:
        raise ConnectionError("The other side hung up (as this demonstration job is meant to).")
    return {"succeeded_at_attempt": execution.attempt}


def broken(execution: Execution) -> None:
    """Always fails."""
    raise ValueError("This demonstration job is meant to fail each time.")


HANDLERS: dict[str, Callable[..., Any]] = {
    "demo.fast": fast,
    "demo.slow": slow,
    "demo.flaky": flaky,
    "demo.broken": broken,
    # What makes it special is when it runs.
    "demo.scheduled": fast,
}
