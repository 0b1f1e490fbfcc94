"""Options of a worker process."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

from django.utils import timezone

import jobs
from jobs.spec.identifiers import uuid7
from workers.protocol import Description

from . import handlers


def new_worker_id() -> str:
    """Return an id that is unique for each process (§3.1)."""
    return f"worker_{uuid7()}"


@dataclass(frozen=True, eq=False)
class Options:
    """The options of `runjobworker`, as they apply to one process."""

    queues: Sequence[str] = ("default",)
    concurrency: int = 10
    labels: Sequence[str] = ()
    grace_period: float = 25.0
    burst: bool = False
    """End when there is nothing left to do."""
    known_types: bool = False
    """Fetch only types that have a handler here, and leave the others to other workers."""
    max_memory: int = 0
    """Megabytes above which the process drains and ends; 0 for no limit."""
    poll_interval: float = 1.0
    """Seconds between two fetches if the server cannot hold a fetch until there is work."""
    release: str = ""
    """The version of the site's code; a new one is marked in the charts as a deployment."""
    supervised: bool = False
    """Started by a supervisor: end when it is gone."""
    started_at: datetime = field(default_factory=timezone.now)

    def __post_init__(self) -> None:
        for name in ("queues", "labels"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a list of names, not {getattr(self, name)!r}.")

    @cache  # noqa: B019 (there is one for each process, and it lives as long)
    def description(self) -> Description:
        """How the worker describes itself, at registration and in each heartbeat (§3.1, §4.2)."""
        return Description(
            hostname=socket.gethostname(),
            pid=os.getpid(),
            queues=list(self.queues),
            concurrency=self.concurrency,
            labels=list(self.labels),
            started_at=self.started_at,
            version=self.release or f"django-ojs/{jobs.__version__}",
            # Sent even if empty: the ranges that an earlier process declared no longer apply.
            job_versions={name: list(taken) for name, taken in handlers.versions().items()},
        )
