"""Contract between heartbeats and the store that writes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from jobs.spec.identifiers import parse_uuid

from ..lifecycle import WorkerState


@dataclass(slots=True)
class Description:
    """How a worker describes itself (§3.1, §4.2); None for what it did not send."""

    hostname: str | None = None
    pid: int | None = None
    queues: list[str] | None = None
    concurrency: int | None = None
    labels: list[str] | None = None
    job_types: list[str] | None = None
    """What it can run."""
    project: str | None = None
    """The project of its key."""
    started_at: datetime | None = None
    protocol: str | None = None
    version: str | None = None
    heartbeat_timeout: timedelta | None = None
    capabilities: list[str] | None = None
    details: dict[str, Any] | None = None
    specs: dict[str, str] | None = None
    job_versions: dict[str, list[int | None]] | None = None
    """Job type → bounds of the versions it takes (OJS job versioning §8.1)."""

    def given(self) -> dict[str, Any]:
        pairs = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in pairs if value is not None}


SAME_START = timedelta(seconds=1)
"""Start times that differ by no more are the same: some clients cut them to whole seconds."""

SETTLED = frozenset({"job_types", "project", "capabilities", "details", "specs"})
"""Set when a worker arrives; later heartbeats do not change it."""


@dataclass(slots=True)
class Heartbeat:
    """A heartbeat as received (§4.2)."""

    worker_id: str
    state: WorkerState | None = None
    """The state the worker reports; None keeps the one reported before."""
    active_job_ids: Collection[str] | None = None
    """The jobs it runs, as the worker spelled them; None if it sent no list."""
    description: Description | None = None
    requested: timedelta | None = None
    """The requested visibility extension; a job's own timeout applies if longer, or if None."""
    sequence: int | None = None
    """Its number; one lower than a number already seen is late, and a mere sign of life (§10.3)."""
    project: str = ""
    """The worker's project; empty means any."""
    registered_at: datetime | None = None
    """When the worker registered on the open connection that the heartbeat came on, if it did."""

    _job_ids: dict[str, UUID | None] | None = field(default=None, init=False)

    def job_ids(self) -> dict[str, UUID | None]:
        """Map the reported job ids to UUIDs; None for one that cannot be a job of this server."""
        if self._job_ids is None:
            self._job_ids = {text: parse_uuid(text) for text in self.active_job_ids or ()}
        return self._job_ids


@dataclass(slots=True)
class Written:
    """The effect of a heartbeat."""

    desired_state: WorkerState
    extended: set[UUID] | None
    """None means all the jobs that it named."""
    fell_quiet: bool = False


class HeartbeatStore(Protocol):
    """Writes heartbeats."""

    def beat(self, heartbeat: Heartbeat) -> Written | None:
        """Record a heartbeat of a live worker and extend the jobs it holds.

        None if no such worker is live, or if the heartbeat came too late or is another process's:
        its host, pid or start time differ from those that the worker is known to have.
        """

    def beat_all(self, heartbeats: Sequence[Heartbeat]) -> list[Written | None]:
        """Record heartbeats of different workers at once; None for each that is left to `beat`."""
