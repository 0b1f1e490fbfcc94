"""Interface between the engine and its stores, which write rows, whatever the database.

The engine decides what happens to jobs; a store writes it. Every verb, events included, is one
transaction or part of the caller's, and returns what happened. `tests/contract` runs the same
scenarios on every store and compares their rows and events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from ..spec.batches import shared_targets
from ..spec.lifecycle import State
from ..spec.reports import Completion
from ..spec.validation import NewJob
from .claimed import ClaimedJob

BATCH_SIZE = 1000
"""Most jobs that a sweep changes in one batch."""
HEAD_START = timedelta(milliseconds=250)
"""How long a due job is left to fetches, which take it without promotion, before it is promoted."""
Versions = Mapping[str, Sequence[int | None]]
"""Job type → bounds of the versions a worker accepts: lower inclusive, upper exclusive."""


class Admission(NamedTuple):
    """A gate's decision about a worker."""

    room: int | None
    """How many more jobs it may have; None if the worker decides."""
    able: Sequence[str]
    """Its abilities, for jobs that need them."""
    versions: Versions


@dataclass(frozen=True, slots=True)
class Gate:
    """The check a worker must pass, made by the claim itself after it has waited for any lock.

    This app does not know which worker that is or what it holds.
    """

    sql: str
    """A SELECT of one row, as `OPEN` is, in the notation of the SQL files: `room`, `able` (a JSON
    array) and `versions` (a JSON object, null for most). It may use :'worker_id'."""
    admit: Callable[[str], Admission] | None = None
    """The same for the worker with this id, where a claim takes several statements."""

    @property
    def again(self) -> Gate:
        """The gate for a later statement of a claim, which already knows the worker's versions.

        It is passed by each statement that chooses jobs, or after they are chosen: the worker may
        have become quiet since the statement before.
        """
        return self if self.admit is None else _again(self)


@cache
def _again(gate: Gate) -> Gate:
    return replace(
        gate, sql=f"SELECT room, able, NULL::jsonb AS versions FROM (\n{gate.sql}) AS gate"
    )


OPEN = Gate("SELECT NULL::integer AS room, :'able'::jsonb AS able, NULL::jsonb AS versions")


ANY_REGISTRY = "*"
"""In place of a token: whatever the schema registry has become."""


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """A fetch's request; `engine.claim` describes each field."""

    queues: list[str]
    worker_id: str
    count: int
    types: Sequence[str] | None
    """Job types the worker can run; None means any."""
    period: timedelta
    """For jobs that set none themselves."""
    able: Sequence[str]
    versions: Versions
    project: str
    asks_limits: bool = True
    """Whether queues may have limits; False skips the check."""
    gate: Gate = OPEN
    pool: str | None = None
    """The worker pool; empty for none, None if the worker's labels say it."""

    @property
    def is_plain(self) -> bool:
        """Whether it asks for one job, and only the gate says anything about the worker."""
        return self.count == 1 and self.pool is None and not self.able and not self.versions

    def admitted(self, admission: Admission) -> ClaimRequest:
        """Return the request narrowed to what the gate admits now."""
        count = self.count
        if admission.room is not None:
            count = max(0, min(count, admission.room))
        able, versions = admission.able, admission.versions
        return replace(self, count=count, able=able, versions=versions, gate=self.gate.again)

    def through_gate(self) -> ClaimRequest:
        """Apply the gate to the worker's current state; call it when all locks are held."""
        return self if self.gate.admit is None else self.admitted(self.gate.admit(self.worker_id))


class Claimed(NamedTuple):
    """The result of a claim."""

    jobs: list[ClaimedJob]
    is_limited: bool = False
    """Nothing was claimed, because a queue or the pool has limits: jobs are claimed under locks."""
    pool: str | None = None
    """Then: the pool of the request, or of the worker."""


class Completed(NamedTuple):
    """A job that an ACK completed."""

    place: int
    """The index of the completion, from 0."""
    attempt: int | None
    """None: it can be completed, but was left because other jobs wait for it."""
    max_attempts: int | None
    at: datetime | None


class Move(NamedTuple):
    """What becomes of an active job whose attempt failed, or whose worker gave it back."""

    job_id: UUID
    state: State
    """`retryable`, `available` or `discarded`."""
    at: datetime
    """When it may be fetched again, or when it ended."""
    retry_delay: timedelta | None = None
    released: bool = False
    """The next FETCH uses the number of this attempt again."""
    dead_letter: bool = False
    unfenced: bool = False
    """Its sender did not say which worker it was."""


@dataclass(frozen=True)
class Cause:
    """Why a job was reclaimed; `type` is an error type of OJS worker protocol, Appendix B."""

    type: str
    message: str


VISIBILITY_TIMEOUT = Cause(
    "visibility_timeout", "The visibility timeout passed without ACK, FAIL or heartbeat."
)
WORKER_DEATH = Cause(
    "worker_death", "The worker that held the job died, or left without settling it."
)


class Reclaimed(NamedTuple):
    """The result of reclaiming jobs."""

    number: int
    """How many jobs."""
    discarded: list[UUID]
    """Jobs without an attempt left."""
    returned: list[UUID]
    """The others, which are available again."""
    ended: list[UUID]
    """Those of the discarded jobs that have dependents or a workflow."""
    begun: list[UUID]
    """Jobs that wait again, and had a deadline to start by."""
    followed: list[UUID]
    """Jobs that wait again, and have dependents or a workflow."""


class Store(Protocol):
    """How rows are written."""

    def insert(
        self, new: Sequence[NewJob], *, asks_queues: bool, registry: str = ANY_REGISTRY
    ) -> int:
        """Store and stamp the jobs; return how many were stored.

        None during maintenance, or if one of the queues is guarded, or if the schema registry has
        changed; and no job whose id is taken.

        Args:
            asks_queues: False if maintenance and the queues have already been checked.
            registry: the token of the schema registry by which the jobs were checked; empty: that
                of a registry without schemas.
        """

    def lock_keys(self, keys: Collection[int]) -> None:
        """Lock these keys, signed 64-bit numbers, until the transaction ends."""

    def claim(self, request: ClaimRequest) -> Claimed:
        """Reserve available jobs, then due ones, queue by queue (OJS worker protocol §6.3)."""

    def claim_each(self, requests: Sequence[ClaimRequest]) -> list[Claimed]:
        """`claim` for requests that arrived at the same time, in as few transactions as possible.

        Which of them gets which job is open.
        """

    def admit(self, request: ClaimRequest) -> tuple[datetime, ClaimRequest]:
        """Return the time, and the request as its gate admits it now."""

    def claim_chosen(
        self, ids: Sequence[UUID], request: ClaimRequest, at: datetime | None = None
    ) -> list[ClaimedJob]:
        """Reserve exactly these jobs, which the caller has locked; they start now, or `at`.

        None if the gate admits the worker no longer.
        """

    def complete(
        self, completions: Sequence[Completion], *, followed: bool = False
    ) -> list[Completed]:
        """Complete jobs held by their senders; no two completions are about the same job.

        Args:
            followed: include jobs that others wait for.
        """

    def complete_and_claim(
        self, completions: Sequence[Completion], request: ClaimRequest
    ) -> tuple[list[Completed], Claimed]:
        """Do both in one transaction, and one round trip where that is possible."""

    def lock_to_fail(self, ids: Collection[UUID]) -> list[Any]:
        """Lock these jobs in the caller's transaction, and return those that exist.

        See `JobQuerySet.to_fail`.
        """

    def move_failed(self, moves: Sequence[Move]) -> None:
        """Move jobs that the caller has locked; those that are not active stay as they are."""

    def extend(
        self,
        job_ids: Collection[UUID],
        *,
        worker_id: str,
        requested: timedelta | None,
        at_least: timedelta | None,
    ) -> set[UUID]:
        """Restart the reservations that the worker holds; return the job ids (§5.4)."""

    def reclaim(
        self,
        cause: Cause,
        *,
        workers: Collection[str] | None,
        details: Mapping[str, dict[str, Any] | None],
        project: str,
    ) -> Reclaimed:
        """Reclaim a batch of jobs: of these workers, or else those whose reservation has expired.

        Args:
            details: additional details of the error, by the id of the job's worker.
            project: with workers, only jobs of this project or of none; empty means any project.
        """

    def promote(self, head_start: timedelta) -> int:
        """Promote a batch of jobs due for at least `head_start`; return how many there were."""

    def save_checkpoint(
        self, job_id: UUID, state: str, now: datetime, *, worker_id: str | None, attempt: int | None
    ) -> int | None:
        """Keep `state` (JSON) and return its number; None if the sender does not hold the job."""


def stamp(new: Sequence[NewJob], now: datetime) -> None:
    """Set the fields of the jobs that only the server knows."""
    for job in shared_targets(new):
        job.created_at = job.enqueued_at = now
        if job.pending:
            job.state = State.PENDING
        elif job.scheduled_at is not None and job.scheduled_at > now:
            job.state = State.SCHEDULED
        else:
            job.state = State.AVAILABLE
