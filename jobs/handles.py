"""Handles: jobs and workflows as Python code sees them.

    job = jobs.enqueue("report.build", [2026])
    job = jobs.wait(job.id, timeout=30)
    print(job.state, job.result)

A handle shows the state as last read; `refresh()` reads it again. Its methods change the job in
the caller's transaction, like `jobs.enqueue()`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.models import F, QuerySet

from . import engine
from .errors import InvalidRequest, InvalidTransition, JobNotFound, WaitTimeout, WorkflowNotFound
from .models import Job, Workflow
from .options import JSON, JobState, Period, WorkflowStateName
from .payloads.chain import open_all, open_args, open_error, opened
from .payloads.codecs import CodecError
from .payloads.external import PayloadChecksumMismatch
from .place import Place, current
from .spec.envelope import due_at
from .spec.fields import refuse
from .spec.identifiers import parse_uuid
from .spec.lifecycle import State
from .spec.members import Choice, Text
from .spec.validation import QUEUE_LENGTH, QUEUE_PATTERN, NewJob
from .store import awaited
from .store.expressions import JSONArrayHas

if TYPE_CHECKING:
    from .composition import Target

MANY = 100
MOST = 2**31 - 1
"""More than any database has; a limit beyond the numbers of PostgreSQL would be an error."""
QUEUE = Text(pattern=QUEUE_PATTERN, longest=QUEUE_LENGTH)
STATE = Choice({str(state): state for state in State})


class WaitsForever(RuntimeError):
    """A wait in a transaction that would never see the job end."""


@dataclass(frozen=True, slots=True)
class AttemptError:
    """A failed attempt of a job (OJS core §8)."""

    attempt: int
    type: str
    """The exception's name: `ValueError`, `shop.errors.CardDeclined`."""
    message: str
    code: str
    backtrace: list[str] | None
    occurred_at: datetime
    worker_id: str


def _attempt_error(row: Any) -> AttemptError:
    return _error_of(row, *open_error(row.message, row.backtrace, row.details))


def _error_of(row: Any, message: str, backtrace: list[str] | None) -> AttemptError:
    return AttemptError(
        attempt=row.attempt,
        type=row.type,
        message=message,
        code=row.code,
        backtrace=backtrace,
        occurred_at=row.occurred_at,
        worker_id=row.worker_id,
    )


class JobHandle:
    """A job, as it was when it was last read."""

    __slots__ = ("_place", "_row")

    def __init__(self, row: Job | NewJob, place: Place) -> None:
        self._row: Any = row
        self._place = place

    def __repr__(self) -> str:
        return f"<JobHandle {self.type} {self.id}: {self.state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> UUID:
        found: UUID = self._row.id
        return found

    @property
    def pk(self) -> UUID:
        """The same as `id`: a handle can be used where a `Job` is expected in a query."""
        return self.id

    @property
    def type(self) -> str:
        found: str = self._row.type
        return found

    @property
    def queue(self) -> str:
        found: str = self._row.queue
        return found

    @property
    def args(self) -> list[JSON]:
        """In clear, if this process has the keys of a job with encoded arguments."""
        found: list[JSON] = open_args(self._row.args, self._row.meta)
        return found

    @property
    def meta(self) -> dict[str, JSON]:
        found: dict[str, JSON] = self._row.meta
        return found

    @property
    def tags(self) -> list[str]:
        return list(self._row.tags or ())

    @property
    def priority(self) -> int:
        found: int = self._row.priority
        return found

    @property
    def state(self) -> JobState:
        """OJS core §6: `available`, `active`, `completed`, …"""
        found: JobState = self._row.state
        return found

    @property
    def is_finished(self) -> bool:
        """Whether it is completed, cancelled or discarded."""
        return self._row.finished_at is not None

    @property
    def attempt(self) -> int:
        """Number of the current or the last attempt; 0 before the first."""
        found: int = self._row.attempt
        return found

    @property
    def max_attempts(self) -> int:
        found: int = self._row.max_attempts
        return found

    @property
    def result(self) -> JSON:
        """The return value of its handler; None until it completes and once the result expires."""
        found: JSON = opened(self._row.result)
        return found

    @property
    def errors(self) -> list[AttemptError]:
        """Its failed attempts, oldest first."""
        if not isinstance(self._row, Job):
            return []
        return [_attempt_error(error) for error in self._row.errors.all()]

    @property
    def progress(self) -> float | None:
        """From 0 to 1, as its worker last reported for this attempt; None without a report."""
        report = self._report()
        value: float | None = None if report is None else report.value
        return value

    @property
    def progress_data(self) -> dict[str, JSON]:
        """Its worker's data besides the number; the message, if any, is `message`."""
        report = self._report()
        data: dict[str, JSON] = {} if report is None else dict(report.data or {})
        return data

    @property
    def created_at(self) -> datetime:
        found: datetime = self._row.created_at
        return found

    @property
    def scheduled_at(self) -> datetime | None:
        """When it, or its next attempt, is due; None if it was run before that."""
        return due_at(self._row)

    @property
    def expires_at(self) -> datetime | None:
        found: datetime | None = self._row.expires_at
        return found

    @property
    def started_at(self) -> datetime | None:
        found: datetime | None = self._row.started_at
        return found

    @property
    def finished_at(self) -> datetime | None:
        found: datetime | None = self._row.finished_at
        return found

    @property
    def workflow_id(self) -> UUID | None:
        """The workflow it is a member of."""
        found: UUID | None = self._row.workflow_id
        return found

    @property
    def existing(self) -> JobHandle | None:
        """The existing job, if a unique policy ignored the new one."""
        found = getattr(self._row, "existing", None)
        return None if found is None else JobHandle(found, self._place)

    def _report(self) -> Any:
        if not isinstance(self._row, Job):
            return None
        report = getattr(self._row, "progress_report", None)
        return report if report is not None and report.attempt == self.attempt else None

    def refresh(self) -> JobHandle:
        """Read the job again; return this handle.

        Raises:
            JobNotFound: it has been deleted.
        """
        with self._place.inside():
            self._row = _read(self.id)
        return self

    async def arefresh(self) -> JobHandle:
        """`refresh()` for async code."""
        return await sync_to_async(self.refresh)()

    def cancel(self, *, reason: str = "") -> JobHandle:
        """Cancel the job, even a running one; return this handle, read again (OJS core §7.6).

        Raises:
            JobNotFound: it has been deleted.
            InvalidTransition: it has ended already.
        """
        with self._place.inside():
            engine.cancel(self.id, reason=reason)
        return self.refresh()

    async def acancel(self, *, reason: str = "") -> JobHandle:
        """`cancel()` for async code."""
        return await sync_to_async(self.cancel)(reason=reason)

    def retry(self) -> JobHandle:
        """Give a discarded or cancelled job fresh attempts; return this handle, read again.

        Raises:
            JobNotFound: it has been deleted.
            InvalidTransition: it is in another state, or was cancelled with its workflow.
        """
        with self._place.inside():
            engine.retry_finished(self.id)
        return self.refresh()

    async def aretry(self) -> JobHandle:
        """`retry()` for async code."""
        return await sync_to_async(self.retry)()

    def run_now(self) -> JobHandle:
        """End the wait of a scheduled, retryable or pending job; return this handle, read again.

        It is available at once. An available job is left as it is.

        Raises:
            JobNotFound: it has been deleted.
            InvalidTransition: it is active or has ended, or it waits for other jobs.
        """
        with self._place.inside():
            moved = engine.run_now([self.id])
        self.refresh()
        if not moved and self.state != "available":
            raise InvalidTransition(
                f"Cannot run job in state '{self.state}' now"
                + (": it waits for other jobs." if self.state == "pending" else "."),
                job_id=str(self.id),
                current_state=str(self.state),
            )
        return self

    async def arun_now(self) -> JobHandle:
        """`run_now()` for async code."""
        return await sync_to_async(self.run_now)()

    def wait(self, *, timeout: Period | None = None) -> JobHandle:
        """Wait until it has ended; return this handle, read again. See `jobs.wait()`."""
        self._row = _wait(self._place, _JobEnd(self.id), timeout)
        return self

    async def wait_async(self, *, timeout: Period | None = None) -> JobHandle:
        """`wait()` for async code."""
        self._row = await _wait_async(self._place, _JobEnd(self.id), timeout)
        return self


class Contents:
    """What a job is about: in clear, or as it is stored where this process cannot decode it.

    Use it to show many jobs: one that cannot be decoded does not hide the others.
    """

    def __init__(self, job: JobHandle) -> None:
        self._job = job
        self._row = job._row
        self.unreadable: dict[str, str] = {}
        """Why something is shown as it is stored, by what it is: `args`, `result`, `errors`."""

    @property
    def args(self) -> list[JSON]:
        found: list[JSON] = self._read("args", lambda: self._job.args, self._row.args)
        return found

    @property
    def result(self) -> JSON:
        found: JSON = self._read("result", lambda: self._job.result, self._row.result)
        return found

    @property
    def errors(self) -> list[AttemptError]:
        rows = self._row.errors.all() if isinstance(self._row, Job) else []
        return [
            self._read(
                "errors",
                partial(_attempt_error, row),
                _error_of(row, row.message, row.backtrace),
            )
            for row in rows
        ]

    def _read(self, name: str, read: Callable[[], Any], stored: Any) -> Any:
        # Codecs, keys and storages are the site's, and raise whatever they raise.
        try:
            return read()
        except Exception as problem:
            reason = " ".join(str(problem).split())
            if not isinstance(problem, CodecError | PayloadChecksumMismatch):
                reason = f"{type(problem).__name__}: {reason}"
            self.unreadable[name] = reason
            return stored


class Handles(Sequence["JobHandle | None"]):
    """The handles of a batch, each created on first access, and the same from then on."""

    __slots__ = ("_jobs", "_made", "_place", "_places")

    def __init__(self, jobs: Sequence[NewJob | None], place: Place) -> None:
        self._jobs = jobs
        self._place = place
        self._places = range(len(jobs))
        """The indices of the batch's jobs that are in it; a slice has some of them."""
        self._made: dict[int, JobHandle] = {}

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> JobHandle | None: ...
    @overload
    def __getitem__(self, index: slice) -> Handles: ...
    def __getitem__(self, index: int | slice) -> JobHandle | Handles | None:
        if isinstance(index, slice):
            part = Handles(self._jobs, self._place)
            part._places, part._made = self._places[index], self._made
            return part
        return self._handle(self._places[index])

    def __iter__(self) -> Iterator[JobHandle | None]:
        return map(self._handle, self._places)

    def _handle(self, index: int) -> JobHandle | None:
        found = self._made.get(index)
        if found is None:
            job = self._jobs[index]
            if job is None:
                return None
            # Of two threads, both get the same one.
            found = self._made.setdefault(index, JobHandle(job, self._place))
            if self._place.runs_at_once and job.existing is None:
                with contextlib.suppress(JobNotFound):  # it was cleared
                    found.refresh()
        return found

    def __repr__(self) -> str:
        return f"<Handles of {len(self)} jobs>"


class WorkflowHandle:
    """A chain, group, batch, graph or saga, as it was when it was last read."""

    __slots__ = ("_place", "_row")

    def __init__(self, row: Workflow, place: Place) -> None:
        self._row = row
        self._place = place

    def __repr__(self) -> str:
        return f"<WorkflowHandle {self.type} {self.name!r} {self.id}: {self.state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> UUID:
        found: UUID = self._row.pk
        return found

    @property
    def pk(self) -> UUID:
        return self.id

    @property
    def type(self) -> str:
        """`chain`, `group`, `batch`, `dag` or `saga`."""
        return str(self._row.type)

    @property
    def name(self) -> str:
        return str(self._row.name)

    @property
    def state(self) -> WorkflowStateName:
        """OJS workflows §8.1, §14.4."""
        found: Any = self._row.state
        state: WorkflowStateName = found
        return state

    @property
    def is_finished(self) -> bool:
        """Whether it is completed, failed, cancelled or compensated."""
        return bool(self._row.is_terminal)

    @property
    def errors(self) -> list[JSON]:
        """Why it failed: at most a hundred errors of its jobs (OJS workflows §9.6)."""
        return list((self._row.problem or {}).get("errors", ()))

    @property
    def created_at(self) -> datetime:
        found: datetime = self._row.created_at
        return found

    @property
    def finished_at(self) -> datetime | None:
        found: datetime | None = self._row.finished_at
        return found

    def jobs(self) -> list[JobHandle]:
        """Return its jobs that exist so far, including those of nested workflows, callbacks and
        compensations.

        A step of a chain is created when its turn comes.
        """
        with self._place.inside():
            inside = [item.pk for item in engine.workflow_members(self._row)]
            # SQLite would put callbacks and compensations, which have no index, first.
            place = F("workflow_index").asc(nulls_last=True)
            rows = _jobs().filter(workflow__in=inside).order_by("workflow", place, "pk")
            return [JobHandle(row, self._place) for row in rows]

    async def ajobs(self) -> list[JobHandle]:
        """`jobs()` for async code."""
        return await sync_to_async(self.jobs)()

    def results(self) -> list[JSON]:
        """Return the results of its nodes so far, in their order; a nested workflow's is a list.

        For a failed job: `{"state": …, "error": {…}}` (OJS workflows §7).
        """
        with self._place.inside():
            found: list[JSON] = open_all(engine.results_of_workflow(self._row))
            return found

    async def aresults(self) -> list[JSON]:
        """`results()` for async code."""
        return await sync_to_async(self.results)()

    def refresh(self) -> WorkflowHandle:
        """Read the workflow again; return this handle.

        Raises:
            WorkflowNotFound: it has been deleted.
        """
        with self._place.inside():
            self._row = _read_workflow(self.id)
        return self

    async def arefresh(self) -> WorkflowHandle:
        """`refresh()` for async code."""
        return await sync_to_async(self.refresh)()

    def cancel(self) -> WorkflowHandle:
        """Cancel it: jobs not yet started never run, active ones may finish (OJS workflows §11.3).

        Raises:
            WorkflowNotFound: it has been deleted.
            Conflict: it has ended already.
        """
        with self._place.inside():
            engine.cancel_workflow(self.id)
        return self.refresh()

    async def acancel(self) -> WorkflowHandle:
        """`cancel()` for async code."""
        return await sync_to_async(self.cancel)()

    def wait(self, *, timeout: Period | None = None) -> WorkflowHandle:
        """Wait until the whole has ended; return this handle, read again. See `jobs.wait()`."""
        self._row = _wait(self._place, _WorkflowEnd(self.id), timeout)
        return self

    async def wait_async(self, *, timeout: Period | None = None) -> WorkflowHandle:
        """`wait()` for async code."""
        self._row = await _wait_async(self._place, _WorkflowEnd(self.id), timeout)
        return self


# Read


def get(job_id: JobHandle | UUID | str) -> JobHandle:
    """Return a handle on the job with this id, or a new one on that of a handle.

    Raises:
        JobNotFound: there is none.
    """
    place = current()
    with place.inside():
        return JobHandle(_read(identified(job_id)), place)


async def aget(job_id: JobHandle | UUID | str) -> JobHandle:
    """`get()` for async code."""
    return await sync_to_async(get)(job_id)


def find(
    *,
    type: Target | None = None,
    queue: str | None = None,
    tag: str | None = None,
    state: JobState | None = None,
    limit: int = MANY,
) -> list[JobHandle]:
    """Return the newest jobs that match all arguments, newest first.

    Args:
        type: a job type, a handler or a Django task.
        limit: the maximum number of jobs.

    Raises:
        InvalidRequest: there is no such state, or no queue can have that name.
    """
    if limit < 0:
        raise InvalidRequest("The 'limit' must not be negative.", field="limit")
    place = current()
    with place.inside():
        rows = matching(type=type, queue=queue, tag=tag, state=state)
        return [JobHandle(row, place) for row in rows.order_by("-pk")[: min(limit, MOST)]]


def matching(
    *,
    type: Target | None = None,
    queue: str | None = None,
    tag: str | None = None,
    state: str | None = None,
) -> QuerySet[Job]:
    """Return the rows of the jobs that match all arguments.

    Raises:
        InvalidRequest: there is no such state, or no queue can have that name.
    """
    if queue is not None:
        QUEUE.check(queue, "queue")
    if state is not None:
        STATE.check(str(state), "state")
    kind = None if type is None else type_of(type)
    wanted = {"type": kind, "queue": queue, "state": state}
    given = {name: value for name, value in wanted.items() if value is not None}
    rows = _jobs().filter(**given)
    return rows if tag is None else rows.filter(JSONArrayHas("tags", tag))


async def afind(
    *,
    type: Target | None = None,
    queue: str | None = None,
    tag: str | None = None,
    state: JobState | None = None,
    limit: int = MANY,
) -> list[JobHandle]:
    """`find()` for async code."""
    return await sync_to_async(find)(type=type, queue=queue, tag=tag, state=state, limit=limit)


def get_workflow(workflow_id: WorkflowHandle | UUID | str) -> WorkflowHandle:
    """Return a handle on the workflow with this id, or a new one on that of a handle.

    Raises:
        WorkflowNotFound: there is none.
    """
    given = workflow_id.id if isinstance(workflow_id, WorkflowHandle) else workflow_id
    identifier = parse_uuid(str(given))
    if identifier is None:
        raise WorkflowNotFound(given)
    place = current()
    with place.inside():
        return WorkflowHandle(_read_workflow(identifier), place)


async def aget_workflow(workflow_id: WorkflowHandle | UUID | str) -> WorkflowHandle:
    """`get_workflow()` for async code."""
    return await sync_to_async(get_workflow)(workflow_id)


# Wait


def wait(job_id: JobHandle | UUID | str, *, timeout: Period | None = None) -> JobHandle:
    """Wait until a job has ended, whatever its outcome, and return a new handle on it.

    On PostgreSQL the wait is woken when the job ends; on other databases, in a transaction and
    behind a pooler that drops notifications, it polls. It blocks its thread, but does not hold a
    pooled connection.

    Args:
        timeout: seconds or a timedelta; None waits as long as it takes.

    Raises:
        JobNotFound: there is no such job, or it was deleted meanwhile.
        WaitTimeout: it has not ended in that time.
        WaitsForever: the current transaction would never see it end, because it enqueued the job
            itself and workers get it only after the commit; on SQLite, or with a stricter isolation
            level than the default, in any transaction.
    """
    place = current()
    return JobHandle(_wait(place, _JobEnd(identified(job_id)), timeout), place)


async def wait_async(job_id: JobHandle | UUID | str, *, timeout: Period | None = None) -> JobHandle:
    """`wait()` for async code: holds neither a thread nor a connection between two queries."""
    place = current()
    return JobHandle(await _wait_async(place, _JobEnd(identified(job_id)), timeout), place)


class _JobEnd:
    """Waits for the end of a job."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id: UUID | None = job_id
        self._id = job_id
        self.name = awaited.job_name(job_id)

    def look(self) -> Any:
        """Return the row if it has ended, else None."""
        row = _read(self._id)
        return row if row.finished_at is not None else None

    def is_hidden(self) -> bool:
        return awaited.cannot_see_the_end(self._id)

    def __str__(self) -> str:
        return f"Job {self._id}"


class _WorkflowEnd:
    """Waits for the end of a workflow."""

    job_id: UUID | None = None

    def __init__(self, workflow_id: UUID) -> None:
        self._id = workflow_id
        self.name = awaited.workflow_name(workflow_id)

    def look(self) -> Any:
        row = _read_workflow(self._id)
        return row if row.is_terminal else None

    def is_hidden(self) -> bool:
        jobs = Job.objects.filter(workflow__root_id=self._id, finished_at__isnull=True)
        first = jobs.order_by("pk").values_list("pk", flat=True).first()
        return first is not None and awaited.cannot_see_the_end(first)

    def __str__(self) -> str:
        return f"Workflow {self._id}"


def _deadline(timeout: Period | None) -> float | None:
    if timeout is None:
        return None
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    return time.monotonic() + max(0.0, seconds)


def _first_look(place: Place, end: _JobEnd | _WorkflowEnd, sign: Callable[[], object]) -> Any:
    """Query once; return the row if it has ended, else None.

    Raises:
        WaitTimeout, WaitsForever: it cannot end while the caller waits.
    """
    with place.inside():
        found = end.look()
        if found is not None:
            return found
        if place.is_memory:
            raise WaitTimeout(
                f"{end} has not ended, and in a mode of jobs.testing nothing runs meanwhile: "
                "call jobs.testing.run_jobs() first."
            )
        if end.is_hidden():
            raise WaitsForever(
                f"{end} cannot end as long as this transaction is open, or this transaction would "
                "not see it: wait after the commit. In a test within a transaction, call "
                "jobs.testing.run_jobs() first."
            )
        sign()
        # It may have ended before the wait was announced.
        return end.look()


def _pause(pause: float, deadline: float | None, end: _JobEnd | _WorkflowEnd) -> float:
    """
    Raises:
        WaitTimeout: the time is up.
    """
    if deadline is None:
        return pause
    left = deadline - time.monotonic()
    if left <= 0:
        raise WaitTimeout(f"{end} has not ended in time.")
    return min(pause, left)


def _wait(place: Place, end: _JobEnd | _WorkflowEnd, timeout: Period | None) -> Any:
    deadline = _deadline(timeout)
    with awaited.waiting(end.name, end.job_id) as (line, bell):
        found = _first_look(place, end, line.sign)
        while found is None:
            seconds = _pause(line.pause(), deadline, end)
            line.rest()
            bell.wait(seconds)
            bell.clear()
            line.sign()
            found = end.look()
        return found


async def _wait_async(place: Place, end: _JobEnd | _WorkflowEnd, timeout: Period | None) -> Any:
    deadline = _deadline(timeout)
    loop, bell = asyncio.get_running_loop(), asyncio.Event()

    def ring() -> None:
        # The loop may have ended meanwhile.
        if not loop.is_closed():
            loop.call_soon_threadsafe(bell.set)

    line = awaited.Wait(end.name, end.job_id, ring)

    def look() -> tuple[Any, float]:
        line.sign()
        found = end.look()
        pause = line.pause()
        line.rest()
        return found, pause

    def first_look() -> tuple[Any, float]:
        return _first_look(place, end, line.sign), 0.0 if place.is_memory else line.pause()

    try:
        found, pause = await sync_to_async(first_look)()
        while found is None:
            seconds = _pause(pause, deadline, end)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(bell.wait(), seconds)
            bell.clear()
            found, pause = await sync_to_async(look)()
        return found
    finally:
        line.close()


def identified(job_id: JobHandle | UUID | str) -> UUID:
    """Return the id of a job that is given by its handle or its id.

    Raises:
        JobNotFound: it is not an id.
    """
    if isinstance(job_id, JobHandle):
        return job_id.id
    identifier = job_id if isinstance(job_id, UUID) else parse_uuid(str(job_id))
    if identifier is None:
        raise JobNotFound(job_id)
    return identifier


def type_of(target: Any) -> str:
    """Return the type of the jobs of a handler or a Django task; a type is returned as it is.

    Raises:
        InvalidRequest: it is something else.
    """
    if isinstance(target, str):
        return target
    if hasattr(target, "job_document"):
        found: str = target.type
        return found
    if hasattr(target, "module_path") and hasattr(target.get_backend(), "type_of"):
        found = target.get_backend().type_of(target)
        return found
    raise refuse(
        "type", f"The 'type' is a job type, a handler or a task of OJSBackend, not {target!r}."
    )


def _jobs() -> QuerySet[Job]:
    return Job.objects.select_related("progress_report").prefetch_related("errors")


def _read(job_id: UUID) -> Job:
    row = _jobs().filter(pk=job_id).first()
    if row is None:
        raise JobNotFound(job_id)
    return row


def _read_workflow(workflow_id: UUID) -> Workflow:
    row = Workflow.objects.filter(pk=workflow_id).first()
    if row is None:
        raise WorkflowNotFound(workflow_id)
    return row
