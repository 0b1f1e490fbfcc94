"""Connects a worker process to its server: the six verbs, in process or over HTTP (see `http`).

A failure that may go away a moment later is `Unavailable`; anything else is the server's answer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

import orjson
from django.db import Error, connections

from jobs import engine
from jobs.conf import ojs_settings
from jobs.engine import ClaimedJob, Completion, Failure, Outcome
from jobs.errors import Conflict, OJSError, ResultTooLarge
from jobs.spec.envelope import claimed_envelope
from jobs.store import wakeup
from jobs.store.database import atomic, connection, drop_if_dead
from jobs.store.trouble import described, is_transient
from jobs.store.watchdog import bounded
from workers import protocol
from workers.lifecycle import WorkerState
from workers.protocol import Description

from .context import JobContext, Progress
from .wake_event import WakeEvent

CONFLICT = 409
"""The job is not, or no longer, this worker's."""


class Unavailable(Exception):
    """The server cannot be reached, or cannot respond now: try again."""


class Refused(Exception):
    """The server answered, and will give the same answer again: a wrong key, a bad request."""

    def __init__(self, message: str, status: int = 0, state: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.state = state
        """The job's state, if that is the reason."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The reply to a registration (§3.3)."""

    heartbeat_interval: float = 5.0
    heartbeat_timeout: float = 30.0


@dataclass(slots=True)
class Answer:
    """The reply to a heartbeat (§4.4)."""

    state: WorkerState | None
    jobs_lost: list[str] = field(default_factory=list)
    is_known: bool = True
    """False if the server has forgotten this worker: register again (§10.4)."""


@dataclass(frozen=True, slots=True)
class Request:
    """The parameters of a FETCH (§6.2)."""

    queues: Sequence[str]
    count: int
    types: Sequence[str] | None = None


Report = Completion | Failure


@dataclass(slots=True)
class Exchange:
    """The results of reports and a fetch."""

    jobs: list[JobContext] = field(default_factory=list)
    refused: list[tuple[UUID, str, str]] = field(default_factory=list)
    """Job, reason, and the state the job is in instead."""
    too_large: dict[UUID, str] = field(default_factory=dict)
    """Why the server rejects a job's result; the worker still holds the job."""


class Client(Protocol):
    """What `WorkerProcess` needs from a server."""

    worker_id: str
    is_local: bool
    """The server is the site's own database: handlers may complete jobs in their transaction."""

    def register(self, description: Description) -> Terms: ...

    def beat(
        self, state: WorkerState, active: Collection[str], description: Description, sequence: int
    ) -> Answer: ...

    def exchange(self, reports: Sequence[Report], request: Request | None) -> Exchange:
        """Settle jobs and fetch others, in one request if possible."""

    def wait(
        self, request: Request | None, wake_event: WakeEvent, timeout: float
    ) -> list[JobContext]:
        """Fetch as soon as there is work; also return when the wake event rings or time is up.

        Args:
            request: None while a fetch is under way.
        """

    def stop_waiting(self) -> list[JobContext]:
        """Give up a wait that is under way; return the jobs that it still brought."""

    @property
    def is_waiting(self) -> bool:
        """Whether a fetch is under way: no other may be sent."""

    def save_checkpoint(self, job_id: UUID, attempt: int, state: Any) -> None:
        """Store a state for the job's next attempt (OJS durable execution §4.1)."""

    def report_progress(self, progress: Progress) -> None:
        """Report a job's progress (OJS progress §6.1)."""

    def deregister(self) -> None: ...

    def recover(self) -> None:
        """Prepare for another try after `Unavailable`."""

    def release(self) -> None:
        """Release this thread's connections."""


@contextlib.contextmanager
def database_trouble() -> Iterator[None]:
    drop_if_dead(connection())
    try:
        with bounded("This worker"):
            yield
    except Error as problem:
        if is_transient(problem):
            raise Unavailable(described(problem)) from problem
        raise Refused(str(problem).strip()) from problem
    except OJSError as refusal:
        raise refused(refusal) from refusal


def refused(refusal: OJSError) -> Refused:
    status = CONFLICT if isinstance(refusal, Conflict) else 400
    return Refused(refusal.message, status, refusal.details.get("current_state", ""))


class LocalClient:
    """A worker in a Django site: `workers.protocol`, called directly.

    Every thread has its own connection, as always in Django; those of the fetch loop and of the
    heartbeat are kept as long as they work.
    """

    is_local = True
    is_waiting = False

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id

    def register(self, description: Description) -> Terms:
        with database_trouble():
            protocol.register(self.worker_id, description)
        return Terms(
            ojs_settings.HEARTBEAT_INTERVAL.total_seconds(),
            ojs_settings.HEARTBEAT_TIMEOUT.total_seconds(),
        )

    def beat(
        self, state: WorkerState, active: Collection[str], description: Description, sequence: int
    ) -> Answer:
        with database_trouble():
            reply = protocol.beat(
                self.worker_id,
                state=state,
                active_job_ids=active,
                description=description,
                sequence=sequence,
            )
        if reply.stale:
            return Answer(None)
        return Answer(reply.state, reply.jobs_lost)

    def exchange(self, reports: Sequence[Report], request: Request | None) -> Exchange:
        completions = [report for report in reports if isinstance(report, Completion)]
        failures = [report for report in reports if isinstance(report, Failure)]
        outcomes: list[Outcome] = []
        jobs: list[ClaimedJob] = []
        # One commit for all of it: commits are what the disk has to wait for.
        several = failures and (completions or request)
        together = atomic() if several else contextlib.nullcontext()
        with database_trouble(), together:
            if failures:
                outcomes += protocol.fail(failures, discover=False)
            if completions and request is not None:
                settled, jobs = protocol.exchange(completions, **self._asked(request))
                outcomes += settled
            elif completions:
                outcomes += protocol.ack(completions, discover=False)
            elif request is not None:
                jobs = protocol.fetch(**self._asked(request))
        done = Exchange([self._context(job) for job in jobs])
        for outcome in outcomes:
            if isinstance(outcome.error, ResultTooLarge):
                done.too_large[outcome.job_id] = str(outcome.error)
            elif outcome.error is not None:
                state = outcome.error.details.get("current_state", "")
                done.refused.append((outcome.job_id, str(outcome.error), state))
        return done

    def _asked(self, request: Request) -> dict[str, Any]:
        return {
            "queues": request.queues,
            "worker_id": self.worker_id,
            "count": request.count,
            "types": request.types,
            "is_ours": True,
            # Its heartbeats are its signs of life. In a transaction that has locked jobs, it is too
            # late to lock the worker's row.
            "discover": False,
        }

    def _context(self, job: ClaimedJob) -> JobContext:
        args, meta = orjson.loads(orjson.dumps([job.args, job.meta]))
        return JobContext(
            id=job.id,
            type=job.type,
            queue=job.queue,
            args=args,
            meta=meta,
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            worker_id=self.worker_id,
            timeout=job.timeout,
            grace_period=(job.attributes or {}).get("grace_period"),
            checkpoint=None
            if job.checkpoint is None
            else orjson.loads(orjson.dumps(job.checkpoint)),
            document=lambda: orjson.loads(orjson.dumps(claimed_envelope(job), default=str)),
        )

    def wait(
        self, request: Request | None, wake_event: WakeEvent, timeout: float
    ) -> list[JobContext]:
        assert request is not None
        with database_trouble(), wakeup.subscription(request.queues) as waiter:
            # Fetch once more: work from before the subscription is not announced.
            jobs = protocol.fetch(**self._asked(request))
            if not jobs:
                with wake_event.relayed_to(waiter.ring):
                    waiter.wait(timeout)
        return [self._context(job) for job in jobs]

    def stop_waiting(self) -> list[JobContext]:
        return []

    def save_checkpoint(self, job_id: UUID, attempt: int, state: Any) -> None:
        # Runs in the handler's thread, and so in its transaction. The engine's errors explain
        # themselves; the handler's transaction will see a database error as well.
        try:
            engine.save_checkpoint(job_id, state, worker_id=self.worker_id, attempt=attempt)
        except OJSError as refusal:
            raise refused(refusal) from refusal

    def report_progress(self, progress: Progress) -> None:
        with database_trouble():
            engine.report_progress(
                progress.job_id,
                value=progress.value,
                data=progress.data,
                worker_id=self.worker_id,
                attempt=progress.attempt,
            )

    def deregister(self) -> None:
        with database_trouble():
            protocol.deregister(self.worker_id)

    def recover(self) -> None:
        # It may have died with its server.
        if not connection().in_atomic_block:
            connection().close()

    def release(self) -> None:
        connections.close_all()
