"""Defines a handler: a function, and how it is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async

from jobs.engine import Failure
from jobs.spec.versions import ALL, Versions, version_number
from jobs.task_options import Errors

from .outcomes import Directive, JobTimeout


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and how it is run."""

    type: str
    function: Callable[..., Any]
    concurrency: int | None = None
    """Most jobs of this type at once in one process; None means as many as there are places."""
    timeout: timedelta | None = None
    """Longest execution; the job's own timeout may be shorter."""
    atomic_ack: bool = False
    """Run in a transaction that also completes the job: both are committed, or neither."""
    ended: Callable[[Any, Any], None] | None = None
    """Called after each execution with what will be reported of it; must not raise."""
    versions: Versions = ALL
    """The versions it can run; other workers get the other versions (OJS job versioning §8)."""

    retry_on: Errors | None = None
    """Errors after which there is another attempt; None means any."""
    discard_on: Errors = ()
    """Errors after which the job is given up."""

    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", iscoroutinefunction(self.function))

    def call(self, context: Any) -> Any:
        return self.function(context, *context.args)

    def takes(self, context: Any) -> bool:
        """Whether it runs the job's version; a job without a version suits every handler."""
        return self.versions == ALL or version_number(context.version) in self.versions

    def judge(self, failure: Failure, problem: BaseException) -> Failure:
        """Add to a failure what the handler says of such errors."""
        if not isinstance(problem, Exception) or isinstance(problem, Directive | JobTimeout):
            return failure
        if isinstance(problem, self.discard_on):
            failure.code = "DISCARD"
        elif self.retry_on is not None and not isinstance(problem, self.retry_on):
            failure.retryable = False
        return failure

    def tell(self, context: Any, outcome: Any) -> None:
        if self.ended is not None:
            self.ended(context, outcome)

    async def atell(self, context: Any, outcome: Any) -> None:
        if self.ended is not None:
            await sync_to_async(self.ended)(context, outcome)
