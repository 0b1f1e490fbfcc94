"""Watches jobs for all requests that wait for them on an event loop, with one query at a time.

PostgreSQL also notifies the process when a job that it waits for ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any
from uuid import UUID

from ..models import Job, ProgressReport
from ..store import awaited
from ..store.database import alias
from .loop import Loop
from .poll import Poll
from .verbs import VerbResponse
from .waiting import Answer, Answering, Look, Waiting, first_of

EVERY = 0.1
"""Seconds between two queries."""
ANYWAY = 5.0
"""Seconds after which waiting requests query for themselves, in case this query fails."""
AT_ONCE = 1000
"""Jobs per query."""

State = tuple[Any, ...]
"""What is compared: changes with the job's state and with each report of progress."""


class Watched:
    """One job, and the event that is set when it changes."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        self.known: State | None = None
        self.changed = asyncio.Event()


class JobWatch(Poll[Watched]):
    """All the jobs that this process watches."""

    every = EVERY
    subject = "Jobs that are waited for"

    @contextlib.contextmanager
    def watching(self, job_id: UUID) -> Iterator[asyncio.Event]:
        """Yield an event that is set when the job may have changed; clear it before querying."""
        watched = Watched(job_id)
        with self.joined(watched):
            yield watched.changed

    async def look(self, members: Collection[Watched]) -> None:
        ids = list({one.job_id for one in members})
        states: dict[UUID, State] = {}
        for start in range(0, len(ids), AT_ONCE):
            states |= await self._loop.in_thread(_states, ids[start : start + AT_ONCE])
        for one in members:
            state = states.get(one.job_id, ())
            # Unknown at first: it may have changed since the waiting requests queried it.
            if one.known != state:
                one.changed.set()
            one.known = state


def _states(ids: Collection[UUID]) -> dict[UUID, State]:
    jobs = Job.objects.using(alias()).filter(pk__in=ids).values_list("pk", "state")
    reports = ProgressReport.objects.using(alias()).filter(job__in=ids)
    reported = dict(reports.values_list("job_id", "updated_at"))
    return {pk: (state, reported.get(pk)) for pk, state in jobs}


class EndWatch(JobWatch):
    """The jobs that this process waits for to end."""

    @property
    def every(self) -> float:  # type: ignore[override]
        return awaited.pause()


class WaitingForJob(Waiting[Answer]):
    """Waits for a job to end; on an event loop, queries it only when it may have ended."""

    _changed: asyncio.Event

    def __init__(
        self,
        job_id: UUID,
        look: Look,
        seconds: float,
        otherwise: Callable[[], VerbResponse],
    ) -> None:
        super().__init__(look, seconds, otherwise)
        self._job_id = job_id

    async def on_loop(self, loop: Loop, answer: Answering[Answer]) -> Answer:
        with loop.shared(EndWatch).watching(self._job_id) as self._changed:
            name = awaited.job_name(self._job_id)
            wait = awaited.Wait(
                name, self._job_id, partial(_set, asyncio.get_running_loop(), self._changed)
            )
            self.look = partial(_look, self.look, wait)
            try:
                return await super().on_loop(loop, answer)
            finally:
                wait.close()

    async def sleep(self, loop: Loop, longest: float) -> None:
        await first_of(self._changed, loop.ending, seconds=min(longest, ANYWAY))
        self._changed.clear()


def _look(look: Look, wait: awaited.Wait) -> VerbResponse | None:
    """Query the job, and subscribe to its end if it has not ended yet; runs in a thread."""
    found = look()
    if found is None and wait.sign():
        # It may have ended between the query and the subscription.
        found = look()
    return found


def _set(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(changed.set)
