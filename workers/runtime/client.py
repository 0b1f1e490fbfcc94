"""How a worker process reaches its server: the six verbs, in process or over HTTP (see `http`).

Whatever makes a request fail that may succeed a moment later is `Unavailable`; everything else a
server says is an answer.
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
from jobs.store.trouble import is_transient
from jobs.store.watchdog import bounded
from workers import protocol
from workers.lifecycle import WorkerState
from workers.protocol import Description

from .context import JobContext, Progress
from .wake_event import WakeEvent

CONFLICT = 409
"""The job is not, or no longer, this worker's."""


class Unavailable(Exception):
    """The server cannot be reached, or is not able to answer now: try again."""


class Refused(Exception):
    """The server answered, and will answer the same again: a wrong key, a bad request."""

    def __init__(self, message: str, status: int = 0, state: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.state = state
        """The state the job is in, where that is the reason."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a registration is answered with (§3.3)."""

    heartbeat_interval: float = 5.0
    heartbeat_timeout: float = 30.0


@dataclass(slots=True)
class Answer:
    """What a heartbeat is answered with (§4.4)."""

    state: WorkerState | None
    jobs_lost: list[str] = field(default_factory=list)
    is_known: bool = True
    """False if the server has forgotten this worker: register again (§10.4)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What a FETCH asks for (§6.2)."""

    queues: Sequence[str]
    count: int
    types: Sequence[str] | None = None


Report = Completion | Failure


@dataclass(slots=True)
class Exchange:
    """What reports and a fetch brought."""

    jobs: list[JobContext] = field(default_factory=list)
    refused: list[tuple[UUID, str, str]] = field(default_factory=list)
    """Job, reason, and the state the job is in instead."""
    too_large: dict[UUID, str] = field(default_factory=dict)
    """Why the server does not take a job's result; the job is this worker's still."""


class Client(Protocol):
    """What `WorkerProcess` needs of a server."""

    worker_id: str
    is_local: bool
    """In the site's own database: handlers may complete their job in their own transaction."""

    def register(self, description: Description) -> Terms: ...

    def beat(
        self, state: WorkerState, active: Collection[str], description: Description, sequence: int
    ) -> Answer: ...

    def exchange(self, reports: Sequence[Report], request: Request | None) -> Exchange:
        """Settle jobs and fetch others, in one go where that is possible."""

    def wait(
        self, request: Request | None, wake_event: WakeEvent, timeout: float
    ) -> list[JobContext]:
        """Fetch as soon as there is something; also return when the bell rings or time is up.

        Args:
            request: None while a fetch is under way.
        """

    def stop_waiting(self) -> list[JobContext]:
        """Give up a wait that is under way; return what it brought all the same."""

    @property
    def is_waiting(self) -> bool:
        """A fetch is under way already: no other may be sent."""

    def save_checkpoint(self, job_id: UUID, attempt: int, state: Any) -> None:
        """Keep a state for the job's next attempt (OJS durable execution §4.1)."""

    def report_progress(self, progress: Progress) -> None:
        """Tell how far a job has come (OJS progress §6.1)."""

    def deregister(self) -> None: ...

    def recover(self) -> None:
        """Make ready for another try after `Unavailable`."""

    def release(self) -> None:
        """Give back what this thread holds of connections."""


@contextlib.contextmanager
def database_trouble() -> Iterator[None]:
    drop_if_dead(connection())
    try:
        with bounded("This worker"):
            yield
    except Error as problem:
        raised = Unavailable if is_transient(problem) else Refused
        raise raised(str(problem).strip()) from problem
    except OJSError as refusal:
        raise refused(refusal) from refusal


def refused(refusal: OJSError) -> Refused:
    status = CONFLICT if isinstance(refusal, Conflict) else 400
    return Refused(refusal.message, status, refusal.details.get("current_state", ""))


class LocalClient:
    """A worker in a Django site: `workers.protocol`, called directly.

    Every thread has a connection of its own, as always in Django; those of the fetch loop and of
    the heartbeat are kept for as long as they work.
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
        # One commit for all of it: that is what the disk is asked for.
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
            # Its heartbeats are its signs of life. In a transaction that has locked jobs, its own
            # row would be locked too late.
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
            # Looked for once more: what came before the subscription is not announced to it.
            jobs = protocol.fetch(**self._asked(request))
            if not jobs:
                with wake_event.relayed_to(waiter.ring):
                    waiter.wait(timeout)
        return [self._context(job) for job in jobs]

    def stop_waiting(self) -> list[JobContext]:
        return []

    def save_checkpoint(self, job_id: UUID, attempt: int, state: Any) -> None:
        # In the handler's thread, and so in its transaction. The engine's own refusals say it
        # all; an error of the database is one the handler's transaction will see as well.
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
