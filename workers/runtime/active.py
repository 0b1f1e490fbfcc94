"""The jobs that a process holds, and the places they take (OJS worker protocol §8.2).

A job takes its place from FETCH until the server knows its outcome and its thread is free again.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from uuid import UUID

from jobs.engine import Completion, Failure

from .context import JobContext
from .handling import Handler

Report = Completion | Failure


@dataclass(eq=False, slots=True)
class ActiveJob:
    """One job that the process holds."""

    context: JobContext
    handler: Handler | None
    """None if this worker has none: the job is then reported without being run."""
    since: float
    """When it came, on the monotonic clock."""
    deadline: float | None = None
    """When its time is up, on the same clock."""
    grace: float = 0.0
    """Seconds for cleanup after that; 0 once it has been notified (OJS timeouts §5.4)."""
    report: Report | None = None
    """The report for the server; the first one decided counts."""
    is_decided: bool = False
    is_settled: bool = False
    """The server knows the outcome, or will find out without this process."""
    is_running: bool = True
    thread: int | None = None
    """The thread its handler runs in, while it does."""
    tries: int = 0
    """How often the report has been sent."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def id(self) -> UUID:
        return self.context.id

    def decide(self, report: Report | None) -> bool:
        """Set the job's outcome; False if it was already set."""
        with self.lock:
            if self.is_decided:
                return False
            self.is_decided = True
            self.report = report
            self.is_settled = report is None
            return True


class ActiveJobs:
    """All jobs that the process holds, shared by the pool's threads and the fetch loop."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self._jobs: dict[UUID, ActiveJob] = {}
        self._lock = threading.Lock()
        self._by_type: Counter[str] = Counter()
        """Counts for types that have a limit."""
        self.running = 0
        """How many handlers have not returned."""
        self._timed: set[ActiveJob] = set()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def free(self) -> int:
        return self.concurrency - len(self._jobs)

    def add(self, job: ActiveJob) -> None:
        with self._lock:
            self._jobs[job.context.id] = job
            self.running += 1
            if job.handler is not None and job.handler.concurrency is not None:
                self._by_type[job.handler.type] += 1
            if job.deadline is not None:
                self._timed.add(job)

    def find(self, job_id: UUID) -> ActiveJob | None:
        return self._jobs.get(job_id)

    def ended(self, job: ActiveJob) -> int:
        """Note that the handler returned; the place is free once the server knows the outcome.

        Returns: how many others still run.
        """
        with self._lock:
            if job.is_running:
                job.is_running = False
                self.running -= 1
                if job.deadline is not None:
                    self._timed.discard(job)
                if job.is_settled:
                    self._remove(job)
            return self.running

    def settled(self, jobs: Iterable[ActiveJob]) -> None:
        """Note that the server knows the outcomes; each place is free once its handler returned."""
        with self._lock:
            for job in jobs:
                job.is_settled = True
                if not job.is_running:
                    self._remove(job)

    def _remove(self, job: ActiveJob) -> None:
        if self._jobs.get(job.context.id) is job:
            del self._jobs[job.context.id]
            if job.handler is not None and job.handler.concurrency is not None:
                self._by_type[job.handler.type] -= 1

    def all(self) -> list[ActiveJob]:
        with self._lock:
            return list(self._jobs.values())

    def unsettled(self) -> list[ActiveJob]:
        return [job for job in self.all() if not job.is_settled]

    def held_ids(self) -> list[str]:
        """The jobs that a heartbeat reports: those reserved for this worker (§4.2)."""
        return [str(job.id) for job in self.unsettled()]

    def running_since(self, moment: float) -> int:
        """How many running handlers had begun, or could have, by `moment`."""
        if not self.running:
            return 0
        return sum(job.is_running and job.since <= moment for job in self.all())

    def is_full(self, handler: Handler) -> bool:
        """Whether no more of this type may run here."""
        limit = handler.concurrency
        return limit is not None and self._by_type[handler.type] >= limit

    def full_types(self, handlers: Iterable[Handler]) -> set[str]:
        return {handler.type for handler in handlers if self.is_full(handler)}

    def overdue(self) -> list[ActiveJob]:
        """Jobs whose time is up."""
        if not self._timed:
            return []
        now = time.monotonic()
        return [job for job in self._waiting() if job.deadline is not None and job.deadline <= now]

    def next_deadline(self) -> float | None:
        return min((job.deadline or 0.0 for job in self._waiting()), default=None)

    def _waiting(self) -> list[ActiveJob]:
        if not self._timed:
            return []
        with self._lock:
            return [job for job in self._timed if not job.is_decided]
