"""Handlers of the demonstration jobs: succeed, take their time, fail, or fail for good."""

from __future__ import annotations

from typing import Any

from workers.runtime import JobContext, handler


@handler("demo.fast")
def fast(context: JobContext, *args: Any) -> dict[str, Any]:
    """Finishes immediately."""
    return {"echo": list(args)}


@handler("demo.scheduled")
def scheduled(context: JobContext, *args: Any) -> dict[str, Any]:
    """Like `fast`; only the time when it runs is different."""
    return fast(context, *args)


@handler("demo.slow")
def slow(context: JobContext, seconds: int) -> dict[str, Any]:
    """Takes a while, reports progress, and notices when it should stop."""
    for second in range(seconds):
        context.progress(second / seconds, f"second {second + 1} of {seconds}")
        if context.wait(1):
            raise InterruptedError("The worker asked this job to stop.")
    return {"worked_for": seconds}


@handler("demo.flaky")
def flaky(context: JobContext, failures: int) -> dict[str, Any]:
    """Fails the given number of times, then succeeds."""
    if context.attempt <= failures:
        raise ConnectionError("The other side hung up (as this demonstration job is meant to).")
    return {"succeeded_at_attempt": context.attempt}


@handler("demo.broken")
def broken(context: JobContext) -> None:
    """Always fails."""
    raise ValueError("This demonstration job is meant to fail each time.")
