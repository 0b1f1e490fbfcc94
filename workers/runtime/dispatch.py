"""Dispatches fetched jobs to handlers: which function, which pool, how long, how many at once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from jobs.engine import Failure

from . import handlers
from .active import ActiveJob, ActiveJobs
from .client import CONFLICT, Refused
from .context import JobContext, Progress, WorkerLink
from .execution import failed
from .outcomes import JobTimeout, needs_database, not_found, not_this_version
from .pool import EventLoop, Threads


class Dispatcher(WorkerLink):
    """Starts jobs and interrupts them."""

    def __init__(
        self,
        active: ActiveJobs,
        ended: Callable[[ActiveJob, Any], None],
        extend: Callable[[], None],
        keep: Callable[[UUID, int, Any], None],
        tell: Callable[[Progress], None],
        *,
        is_local: bool,
    ) -> None:
        self._active = active
        self.places = active.concurrency
        self._ended = ended
        self._extend = extend
        self._keep = keep
        self._tell = tell
        self._is_local = is_local
        self.threads = Threads(active.concurrency, ended)
        self._loop = EventLoop(ended)
        self._known: list[str] | None = None

    def start(self, contexts: Iterable[JobContext]) -> None:
        """Hand jobs to their handlers; those that cannot run here are reported."""
        now = time.monotonic()
        jobs: dict[Threads | EventLoop, list[ActiveJob]] = {}
        for context in contexts:
            job = self._accepted(context, now)
            if job is not None:
                jobs.setdefault(self._place_of(job), []).append(job)
        for place, accepted in jobs.items():
            place.submit(accepted)

    def _accepted(self, context: JobContext, now: float) -> ActiveJob | None:
        handler = handlers.find(context.type)
        if handler is None:
            self._refuse(context, not_found(context))
            return None
        if handler.atomic_ack and not self._is_local:
            self._refuse(context, needs_database(context))
            return None
        if not handler.takes(context):
            self._refuse(context, not_this_version(context))
            return None
        if handler.concurrency is not None and self._active.is_full(handler):
            self.release(context)
            return None
        context.line = self
        job = ActiveJob(context, handler, now)
        timeout = _shorter(handler.timeout, context.timeout)
        if timeout is not None:
            job.deadline = now + timeout.total_seconds()
            job.grace = context.grace_period.total_seconds()
        self._active.add(job)
        return job

    # Requests of handlers, through their context

    def beat(self) -> None:
        self._extend()

    def tell(self, context: JobContext, value: float | None, data: dict[str, Any] | None) -> None:
        self._tell(Progress(context.id, context.attempt, value, data))

    def keep(self, context: JobContext, state: Any) -> None:
        try:
            self._keep(context.id, context.attempt, state)
        except Refused as refusal:
            if refusal.status == CONFLICT:
                context.cancel("lost")
            raise

    def release(self, context: JobContext) -> None:
        """Release a job that cannot be run here now; the attempt does not count."""
        release = Failure(context.id, context.worker_id, context.attempt, release=True)
        self._report(context, release)

    def _refuse(self, context: JobContext, failure: Failure) -> None:
        context.log(failure.message, level=logging.WARNING)
        self._report(context, failure)

    def _report(self, context: JobContext, report: Failure) -> None:
        job = ActiveJob(context, None, time.monotonic())
        self._active.add(job)
        self._ended(job, report)

    def wanted_types(self, *, known_only: bool) -> list[str] | None:
        """The types to fetch, without those whose places are all taken; None for any."""
        limited = (handler for handler in handlers.registered() if handler.concurrency)
        full = self._active.full_types(limited)
        if not full and not known_only:
            return None
        if self._known is None:
            self._known = handlers.known()
        return [name for name in self._known if name not in full]

    def time_out(self, job: ActiveJob) -> bool:
        """Fail a job whose time is up, and interrupt its handler; False if it ended just now.

        A thread that ignores the interrupt keeps its place until it ends (§8.2). A job with a grace
        period is notified first, and has that long to clean up (OJS timeouts §7.2).
        """
        if job.grace and job.deadline is not None:
            job.deadline, job.grace = job.deadline + job.grace, 0.0
            self._tell_to_end(job, "timeout")
            return False
        report = failed(job.context, JobTimeout())
        if not job.decide(report):
            return False
        job.context.cancel("timeout")
        if job.is_running:
            self._place_of(job).interrupt(job)
        return True

    def cut_short(self, job: ActiveJob) -> None:
        """Notify a job's handler that the worker ends, and let it clean up.

        A task on the event loop is cancelled. A thread can check `context.cancelled`; an exception
        out of nowhere could interrupt its cleanup.
        """
        self._tell_to_end(job, "shutdown")

    def _tell_to_end(self, job: ActiveJob, reason: str) -> None:
        job.context.cancel(reason)
        if job.is_running and job.handler is not None and job.handler.is_async:
            self._loop.interrupt(job)

    def stop(self) -> None:
        self.threads.stop()
        self._loop.stop()

    def _place_of(self, job: ActiveJob) -> Threads | EventLoop:
        return self._loop if job.handler is not None and job.handler.is_async else self.threads


def _shorter(first: timedelta | None, second: timedelta | None) -> timedelta | None:
    if first is None or second is None:
        return first or second
    return min(first, second)
