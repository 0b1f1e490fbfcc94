"""Unique jobs among those that a test keeps in memory: the policies of the database (`testing`)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from .engine.unique import Conflicts
from .lifecycle import State
from .unique_policy import UniquePolicy
from .validation import NewJob


class ConflictsInMemory(Conflicts):
    """Conflicts with jobs of a list, at `now`."""

    def __init__(self, new: Sequence[NewJob], jobs: Sequence[Any], now: datetime) -> None:
        super().__init__(new)
        self.jobs = jobs
        self.now = now

    def lock(self, policies: Sequence[UniquePolicy]) -> None:
        """Nobody else is there."""

    def stored(self, policy: UniquePolicy) -> list[Any]:
        since = None if policy.period is None else self.now - policy.period
        return [
            job
            for job in reversed(self.jobs)
            if job.unique is not None
            and job.unique.key == policy.key
            and job.state in policy.states
            and (since is None or job.created_at > since)
        ]

    def cancel(self, job_ids: Collection[UUID], *, reason: str) -> None:
        for job in self.jobs:
            if job.id in job_ids:
                job.state = State.CANCELLED
