"""What a heartbeat is, and what is asked of the store that writes it down."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from jobs.spec.identifiers import parse_uuid

from ..lifecycle import WorkerState


@dataclass(slots=True)
class Description:
    """What a worker says of itself (§3.1, §4.2); None where it said nothing."""

    hostname: str | None = None
    pid: int | None = None
    queues: list[str] | None = None
    concurrency: int | None = None
    labels: list[str] | None = None
    job_types: list[str] | None = None
    """What it can run."""
    project: str | None = None
    """Whose it is, which its key says."""
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


SETTLED = frozenset({"job_types", "project", "capabilities", "details", "specs"})
"""What a worker says when it arrives; no later heartbeat changes it."""


@dataclass(slots=True)
class Heartbeat:
    """A heartbeat as received (§4.2)."""

    worker_id: str
    state: WorkerState | None = None
    """What the worker says it is; None leaves what it said before."""
    active_job_ids: Collection[str] | None = None
    """The jobs it runs, as it spelled them; None if it did not say."""
    description: Description | None = None
    requested: timedelta | None = None
    """The visibility extension it asks for, where a job's own is not longer; None means the own."""
    sequence: int | None = None
    """Its number; one lower than seen before came late and changes nothing (§10.3)."""

    _job_ids: dict[str, UUID | None] | None = field(default=None, init=False)

    def job_ids(self) -> dict[str, UUID | None]:
        """What it calls its jobs → their ids; None for what can be no job of ours."""
        if self._job_ids is None:
            self._job_ids = {text: parse_uuid(text) for text in self.active_job_ids or ()}
        return self._job_ids


@dataclass(slots=True)
class Written:
    """What a heartbeat led to."""

    desired_state: WorkerState
    extended: set[UUID] | None
    """None: all that it named."""
    fell_quiet: bool = False


class HeartbeatStore(Protocol):
    """How heartbeats are written."""

    def beat(self, heartbeat: Heartbeat) -> Written | None:
        """Record a heartbeat of a live worker and extend the jobs it holds.

        None if no such worker is live, or if the heartbeat came too late.
        """
