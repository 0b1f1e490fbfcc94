"""Exceptions that handlers raise to decide about their job, and errors in the protocol's form."""

from __future__ import annotations

import traceback
from datetime import timedelta
from types import TracebackType
from typing import Any
from uuid import UUID

from jobs.engine import Failure
from jobs.spec.durations import LONGEST
from jobs.spec.error_texts import MESSAGE, class_name, legible, message_of

FRAMES = 50
"""Most entries of a backtrace (OJS core §8.1): the last ones, which show what happened."""
TYPE = 255


def _period(value: timedelta | float) -> timedelta:
    """Read the delay that a handler requests; one that has already passed means now.

    Raises:
        ValueError: it is longer than a duration may be.
    """
    period = value if isinstance(value, timedelta) else timedelta(seconds=value)
    if period > LONGEST:
        raise ValueError(f"{period} is longer than the 100 years a duration may last.")
    return max(period, timedelta(0))


class Directive(Exception):
    """Raised by a handler: not a bug, but its decision about the job."""

    is_error = False
    """Whether error monitoring shall hear of it."""
    fails = True
    """Whether the attempt counts as failed."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or type(self).__name__)
        self.reason = reason

    @property
    def cause(self) -> BaseException | None:
        """The error for which the handler decides so: it says `from error`, or handles it."""
        if self.__cause__ is None and not self.__suppress_context__:
            return self.__context__
        return self.__cause__

    @property
    def message(self) -> str:
        """The handler's reason, or else the error that it has handled."""
        if self.reason or self.cause is None:
            return message_of(self)
        return described(self.cause)


class Retry(Directive):
    """Try again as the retry policy allows, after `in_` instead of its backoff (OJS retry §7)."""

    def __init__(self, in_: timedelta | float | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = None if in_ is None else _period(in_)


class Discard(Directive):
    """Give the job up, regardless of its policy; with `dead_letter` an operator will see it."""

    def __init__(self, reason: str = "", *, dead_letter: bool = False) -> None:
        super().__init__(reason)
        self.dead_letter = dead_letter


class Snooze(Directive):
    """Release the job and run it again after `in_`; the attempt does not count."""

    fails = False

    def __init__(self, in_: timedelta | float, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = _period(in_)


class JobTimeout(Exception):
    """Raised inside a handler that ran longer than it may."""

    is_error = True
    """False if it is the worker that ends."""

    def __init__(self, message: str = "The job ran longer than it may.") -> None:
        super().__init__(message)


class InvalidResult(Exception):
    """A handler returned something that JSON, or the server, cannot carry; the work is done, so it
    is not repeated."""


def failure_of(problem: BaseException, job_id: UUID, worker_id: str, attempt: int) -> Failure:
    """The failure to report for an attempt that ended with `problem` (OJS core §8, retry §7.3)."""
    failure = Failure(
        job_id,
        worker_id,
        attempt,
        type=type_name(type(problem)),
        code="handler_error",
        message=problem.message if isinstance(problem, Directive) else message_of(problem),
    )
    if isinstance(problem, Directive) and problem.cause is not None:
        failure.backtrace = backtrace(problem.cause)
    if isinstance(problem, Snooze):
        failure.release, failure.retry_in = True, problem.delay
    elif isinstance(problem, Retry):
        failure.type, failure.code, failure.retry_in = "retry", "RETRY", problem.delay
    elif isinstance(problem, Discard):
        failure.type = "discard"
        failure.code = "DEAD_LETTER" if problem.dead_letter else "DISCARD"
    elif isinstance(problem, JobTimeout):
        failure.type = failure.code = "timeout"
    else:
        failure.backtrace = backtrace(problem)
        if isinstance(problem, InvalidResult):
            failure.type = failure.code = "invalid_result"
            failure.retryable = False
    return failure


def type_name(kind: type[BaseException]) -> str:
    """The name for retry policies: `ValueError`, but `shop.errors.CardDeclined`."""
    name: str = getattr(kind, "type_on_wire", "")
    if name:
        return name
    return class_name(kind)[:TYPE]


def described(problem: BaseException) -> str:
    """The exception in one line, as Python prints it: `shop.errors.CardDeclined: too old`."""
    return f"{type_name(type(problem))}: {message_of(problem)}"[:MESSAGE]


def backtrace(problem: BaseException) -> list[str]:
    """The traceback as Python prints it, without the frames of this package on top."""
    entries = traceback.format_exception(type(problem), problem, frames_of(problem))[-FRAMES:]
    return [legible(entry[:MESSAGE]) for entry in entries]


PLUMBING = (
    *("workers.runtime", "jobs.middleware", "jobs.opentelemetry", "jobs.sentry"),
    *("asgiref", "asyncio", "concurrent.futures", "contextlib", "threading"),
    *("opentelemetry", "sentry_sdk"),
)
"""Packages whose frames stand between the worker and the site's own code."""


def frames_of(problem: BaseException) -> TracebackType | None:
    """The frames of an exception, without those on top that are not the site's.

    One that was raised before any code of the site's ran keeps the frames below this package's.
    """
    return _below(problem.__traceback__, PLUMBING) or _below(problem.__traceback__, PLUMBING[:1])


def _below(frames: TracebackType | None, packages: tuple[str, ...]) -> TracebackType | None:
    while frames is not None and _is_of(frames, packages):
        frames = frames.tb_next
    return frames


def _is_of(frames: TracebackType, packages: tuple[str, ...]) -> bool:
    module = str(frames.tb_frame.f_globals.get("__name__", ""))
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def not_found(context: Any) -> Failure:
    """No handler here; another worker, or the next deployment, may have one."""
    return _own_failure(
        context,
        "handler_not_found",
        f"This worker has no handler for jobs of type '{context.type}'.",
    )


def needs_database(context: Any) -> Failure:
    """A handler with `atomic_ack`, in a worker that reaches its jobs over HTTP."""
    return _own_failure(
        context,
        "handler_needs_database",
        f"The handler of '{context.type}' completes its job in its own transaction; run it by a "
        "worker of the site itself, without --url.",
    )


def not_this_version(context: Any) -> Failure:
    """The handler does not run this version; another worker, or an older one, may."""
    return _own_failure(
        context,
        "version_not_supported",
        f"This worker does not run version {context.version} of '{context.type}'.",
    )


def invalid_result(context: Any, reason: str) -> Failure:
    """The server does not accept the result."""
    failure = _own_failure(context, "invalid_result", reason)
    failure.retryable = False
    return failure


def shutdown(context: Any) -> Failure:
    """The grace period is over and the job is still active (§7.2.5, Appendix B)."""
    return _own_failure(context, "shutdown", "The worker shut down before the job was done.")


def _own_failure(context: Any, code: str, message: str) -> Failure:
    return Failure(
        context.id, context.worker_id, context.attempt, type=code, code=code, message=message
    )
