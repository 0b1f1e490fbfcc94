"""Where the verbs of this process are observed, if they are (OJS distributed tracing §4).

`jobs.opentelemetry.instrument()` puts a recorder here when the process starts. Without it, a verb
pays for one look at a variable, and OpenTelemetry is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from time import time_ns
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from ..spec.validation import NewJob


class Activity(Protocol):
    """An internal operation in progress."""

    def count(self, number: int) -> None:
        """Note how many rows it touched; one that touched none leaves no span."""


class Recorder(Protocol):
    """What records spans; `jobs.opentelemetry` has the only one."""

    def enqueueing(self, new: Sequence[NewJob]) -> AbstractContextManager[None]:
        """Record that jobs are stored; those without a trace context get one."""

    def settling(
        self, operation: str, reports: Sequence[Any]
    ) -> AbstractContextManager[Callable[[Sequence[Any]], None]]:
        """Record that reports of workers are settled; what it yields takes their outcomes."""

    def fetched(self, jobs: Iterable[Any], worker_id: str, began: int) -> None:
        """Record that jobs were claimed for a worker.

        Args:
            began: when, in nanoseconds since the epoch; see `clock`.
        """

    def internal(self, name: str) -> AbstractContextManager[Activity]:
        """Record an operation of the server's own."""

    def flush(self) -> None:
        """Send what is recorded, before the process ends without further notice."""

    def brought(self, jobs: Iterable[Any], began: int) -> None:
        """Record, in a worker, the contexts of jobs that a fetch brought."""

    def reporting(
        self, reports: Sequence[tuple[Any, Any]]
    ) -> AbstractContextManager[Callable[[Mapping[UUID, str]], None]]:
        """Record, in a worker, that pairs of context and report are sent.

        What it yields takes the reasons of the reports that the server refused.
        """


recorder: Recorder | None = None
previous: ContextVar[Mapping[UUID, str] | None] = ContextVar("ojs_previous", default=None)
"""The `traceparent` of each attempt that is being settled, for the steps that follow it."""
UNTRACED: AbstractContextManager[Any] = nullcontext(None)


def clock() -> int:
    """The time in nanoseconds since the epoch; 0 if nothing is recorded."""
    return 0 if recorder is None else time_ns()


def enqueueing(new: Sequence[NewJob]) -> AbstractContextManager[None]:
    """Observe that new jobs are stored in this block."""
    return UNTRACED if recorder is None else recorder.enqueueing(new)


def fetched(jobs: Iterable[Any], worker_id: str, began: int) -> None:
    """See `Recorder.fetched`."""
    if recorder is not None:
        recorder.fetched(jobs, worker_id, began)


def flush() -> None:
    """See `Recorder.flush`."""
    if recorder is not None:
        recorder.flush()


def internal(name: str) -> AbstractContextManager[Activity | None]:
    """Observe an operation of the server's own; an empty name means none."""
    return UNTRACED if recorder is None or not name else recorder.internal(name)


def settling(
    operation: str, reports: Sequence[Any]
) -> AbstractContextManager[Callable[[Sequence[Any]], object]]:
    """Observe that reports are settled in this block; what it yields takes their outcomes."""
    return UNHEARD if recorder is None else recorder.settling(operation, reports)


def reporting(
    reports: Sequence[tuple[Any, Any]],
) -> AbstractContextManager[Callable[[Mapping[UUID, str]], object]]:
    """Observe that a worker sends reports; see `Recorder.reporting`."""
    return UNHEARD if recorder is None else recorder.reporting(reports)


UNHEARD: AbstractContextManager[Callable[[Any], object]] = nullcontext(lambda outcomes: None)
