"""What the engine asks of a store: how rows are written, whatever the database.

The engine decides what happens to jobs; a store writes it. Every verb is one transaction, or a part
of the caller's, together with its events, and says what happened. `tests/contract` runs the same
scenarios on every store and compares their rows and events.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from ..spec.batches import shared_targets
from ..spec.lifecycle import State
from ..spec.reports import Completion
from ..spec.validation import NewJob
from .claimed import ClaimedJob

BATCH_SIZE = 1000
"""Most jobs that a sweep changes at once."""
HEAD_START = timedelta(milliseconds=250)
"""How long a due job is left to the fetches that take it themselves, before it is promoted."""
Versions = Mapping[str, Sequence[int | None]]
"""Job type → bounds of the versions a worker takes: the least one, and the least one too high."""


class Admission(NamedTuple):
    """What a gate says of a worker."""

    room: int | None
    """How many more jobs it may have; None where it decides for itself."""
    able: Sequence[str]
    """What it can do, for jobs that need it."""
    versions: Versions


@dataclass(frozen=True, slots=True)
class Gate:
    """What a worker must pass, asked by the claim itself: after it has waited for any lock.

    Which worker that is and what it holds is not this app's to know.
    """

    sql: str
    """A SELECT of one row, as `OPEN` is, in the notation of the SQL files: `room`, `able` (a JSON
    array) and `versions` (a JSON object, null for most). It may use :'worker_id'."""
    admit: Callable[[str], Admission] | None = None
    """The same of the worker with this id, where a claim takes several statements."""


OPEN = Gate("SELECT NULL::integer AS room, :'able'::jsonb AS able, NULL::jsonb AS versions")


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a fetch asks for; `engine.claim` says more of each."""

    queues: list[str]
    worker_id: str
    count: int
    types: Sequence[str] | None
    """What the worker can run; None means anything."""
    period: timedelta
    """The reservation of jobs that name none of their own."""
    able: Sequence[str]
    versions: Versions
    project: str
    asks_limits: bool = True
    """Some of the queues may have limits; False spares the look."""
    gate: Gate = OPEN

    def admitted(self, admission: Admission) -> ClaimRequest:
        """What is left of it for a worker that passes the gate so."""
        count = self.count
        if admission.room is not None:
            count = max(0, min(count, admission.room))
        able, versions = admission.able, admission.versions
        return replace(self, count=count, able=able, versions=versions, gate=OPEN)

    def through_gate(self) -> ClaimRequest:
        """The same for its worker as it is now; call it when all locks are held."""
        return self if self.gate.admit is None else self.admitted(self.gate.admit(self.worker_id))


class Claimed(NamedTuple):
    """What a claim took."""

    jobs: list[ClaimedJob]
    is_limited: bool = False
    """Nothing was, because a queue among them has limits: these are claimed under its lock."""


class Completed(NamedTuple):
    """A job that an ACK completed."""

    place: int
    """Which one of the completions, from 0."""
    attempt: int | None
    """None: it can be completed, and is left, for others wait for it."""
    max_attempts: int | None
    at: datetime | None


@dataclass(frozen=True)
class Cause:
    """Why a reservation was taken back; `type` is a word of OJS worker protocol, Appendix B."""

    type: str
    message: str


VISIBILITY_TIMEOUT = Cause(
    "visibility_timeout", "The visibility timeout passed without ACK, FAIL or heartbeat."
)
WORKER_DEATH = Cause("worker_death", "The worker that held the job was declared dead.")


class Reclaimed(NamedTuple):
    """What taking reservations back came to."""

    number: int
    """Of jobs."""
    discarded: list[UUID]
    """Those without an attempt left."""
    ended: list[UUID]
    """Of these, those that something follows."""
    begun: list[UUID]
    """Those that wait again, and had a time to be started in."""


class Store(Protocol):
    """How rows are written."""

    def insert(self, new: Sequence[NewJob], *, asks_queues: bool) -> int:
        """Store the jobs, stamp them, and return how many could be.

        None of them during maintenance, or where a queue among them has rules for new jobs; not
        those whose id is taken.

        Args:
            asks_queues: False where maintenance and the queues have agreed.
        """

    def lock_keys(self, keys: Collection[int]) -> None:
        """Hold these keys, signed numbers of 64 bits, until the transaction ends."""

    def claim(self, request: ClaimRequest) -> Claimed:
        """Reserve available jobs, then due ones, queue by queue (OJS worker protocol §6.3)."""

    def admit(self, request: ClaimRequest) -> tuple[datetime, ClaimRequest]:
        """Return the time, and the request as its gate has it now."""

    def claim_chosen(
        self, ids: Sequence[UUID], request: ClaimRequest, at: datetime | None = None
    ) -> list[ClaimedJob]:
        """Reserve exactly these jobs, which the caller has locked; they start now, or `at`."""

    def complete(
        self, completions: Sequence[Completion], *, followed: bool = False
    ) -> list[Completed]:
        """Complete the jobs, each in hand of its sender; no two of them are about one job.

        Args:
            followed: those that others wait for, too.
        """

    def complete_and_claim(
        self, completions: Sequence[Completion], request: ClaimRequest
    ) -> tuple[list[Completed], Claimed]:
        """Do both in one transaction, and one round trip where that is possible."""

    def extend(
        self,
        job_ids: Collection[UUID],
        *,
        worker_id: str,
        requested: timedelta | None,
        at_least: timedelta | None,
    ) -> set[UUID]:
        """Restart the reservations that the worker holds; return which (§5.4)."""

    def reclaim(
        self,
        cause: Cause,
        *,
        workers: Collection[str] | None,
        details: Mapping[str, dict[str, Any] | None],
    ) -> Reclaimed:
        """Take back a batch of reservations, of these workers, or else of which the time is over.

        Args:
            details: what the error says besides, by the id of the job's worker.
        """

    def promote(self, head_start: timedelta) -> int:
        """Make a batch of jobs available that were due so long ago; return how many there were."""

    def save_checkpoint(
        self, job_id: UUID, state: str, now: datetime, *, worker_id: str | None, attempt: int | None
    ) -> int | None:
        """Keep `state` (JSON) and return its number; None if the sender does not hold the job."""


def stamp(new: Sequence[NewJob], now: datetime) -> None:
    """Write on the jobs what only the server knows."""
    for job in shared_targets(new):
        job.created_at = job.enqueued_at = now
        if job.pending:
            job.state = State.PENDING
        elif job.scheduled_at is not None and job.scheduled_at > now:
            job.state = State.SCHEDULED
        else:
            job.state = State.AVAILABLE
