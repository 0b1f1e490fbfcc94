"""Tools for the tests of a site that enqueues jobs (OJS testing).

* `fake()`: jobs are kept in memory and not run; the site's databases are not touched.
* `inline()`: the same, but each job runs as soon as it is enqueued; its errors are raised there.
* neither: jobs go to the database, inside the test's transaction.

`run_jobs()` runs waiting jobs, in memory or in the database. The assertions check the jobs of the
innermost `fake()` or `inline()`, else those in the database. Modes are never guessed (§4.3). A
thread has modes of its own; one that entered none takes part in those of the test that started it.

    with testing.fake():
        sign_up("user@example.com")
        testing.assert_enqueued("email.send", args=["user@example.com"], queue="mail")

In memory means an SQLite database for each mode, on which the server's engine works: states,
retries, expiry, unique jobs and rate limits behave as in production. Differences from production
(§8): nothing happens until the test triggers it; `inline()` ignores delays and limits, and runs a
workflow to its end before it raises the first error; schedules, the configuration of queues and
workflows of other clients are in the site's database, which the modes do not query.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, Unpack
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db.models import F

from .. import engine, place
from ..composition import Target
from ..engine import ClaimedJob
from ..handles import JobHandle, type_of
from ..models import Job, Workflow
from ..payloads.chain import open_args
from ..spec.lifecycle import State
from ..spec.timestamps import parse_timestamp
from .found import Criteria, FoundJob
from .injection import fail_all, fail_next, forget_failures
from .session import WAITING, WORKER, Session, TestJob, execute, sweep

FAILED = (State.RETRYABLE, State.DISCARDED)
DEADLINES = ("scheduled_at", "expires_at", "deadline")


@contextlib.contextmanager
def fake() -> Iterator[Session]:
    """Keep the jobs enqueued inside in memory, unrun (§5.1)."""
    with _active(Session()) as session:
        yield session


@contextlib.contextmanager
def inline() -> Iterator[Session]:
    """Run each job enqueued inside at once; exceptions of its handler propagate (§5.2)."""
    with _active(Session(runs_inline=True)) as session:
        yield session


@contextlib.contextmanager
def _active(session: Session) -> Iterator[Session]:
    with session.begun():
        place.enter(session)
        try:
            yield session
        finally:
            place.leave(session)
            forget_failures()


def _place() -> Callable[[], AbstractContextManager[None]]:
    """Return the context for the engine: the jobs of the innermost mode, else the database's."""
    return place.current().inside


def _session() -> Session | None:
    found = place.current()
    return found if isinstance(found, Session) else None


# Jobs enqueued, and their outcomes (§6)


def all_enqueued(
    type: Target | None = None,
    *,
    args: Sequence[object] | None = None,
    queue: str | None = None,
    meta: Mapping[str, object] | None = None,
) -> list[FoundJob]:
    """Return the jobs enqueued so far, oldest first; `meta` may be a subset of theirs.

    As in all the assertions, `type` may be a handler or a Django task.
    """
    kind = None if type is None else type_of(type)
    wanted = None if args is None else _listed(args)
    return [
        job
        for job in _all()
        if (kind is None or job.type == kind)
        and (args is None or open_args(job.args, job.meta) == wanted)
        and (queue is None or job.queue == queue)
        and (meta is None or meta.items() <= job.meta.items())
    ]


def _listed(value: Any) -> Any:
    """Return the value as after a round trip through JSON: tuples become lists."""
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {name: _listed(item) for name, item in value.items()}
    return value


def assert_enqueued(
    type: Target, *, count: int | None = None, **criteria: Unpack[Criteria]
) -> None:
    """Assert that at least one such job was enqueued, or exactly `count` (§6.1)."""
    _check("enqueued", type, count, criteria, lambda job: True)


def refute_enqueued(type: Target, **criteria: Unpack[Criteria]) -> None:
    _check("enqueued", type, 0, criteria, lambda job: True)


def assert_performed(
    type: Target, *, count: int | None = None, **criteria: Unpack[Criteria]
) -> None:
    """Assert that such a job was run, whatever its outcome (§6.2)."""
    _check("performed", type, count, criteria, lambda job: job.attempt > 0)


def refute_performed(type: Target, **criteria: Unpack[Criteria]) -> None:
    _check("performed", type, 0, criteria, lambda job: job.attempt > 0)


def assert_completed(
    type: Target, *, count: int | None = None, **criteria: Unpack[Criteria]
) -> None:
    _check("completed", type, count, criteria, lambda job: job.state == State.COMPLETED)


def assert_failed(type: Target, *, count: int | None = None, **criteria: Unpack[Criteria]) -> None:
    """Assert that such a job failed: it is retryable or discarded."""
    _check("failed", type, count, criteria, lambda job: job.attempt > 0 and job.state in FAILED)


def assert_job_state(job_id: JobHandle | UUID | str, expected: str) -> None:
    """Assert that the job with this id is in that state (§6.3)."""
    job = get_job(job_id)
    if job is None:
        raise AssertionError(f"There is no job {job_id}.")
    assert job.state == expected, f"Job {job.id} is {job.state}, not {expected}."


def get_job(job_id: JobHandle | UUID | str) -> FoundJob | None:
    """Return the job with this id, or None."""
    wanted = str(job_id.id if isinstance(job_id, JobHandle) else job_id)
    return next((job for job in _all() if str(job.id) == wanted), None)


def assert_workflow_created(
    type: str,
    *,
    name: str | None = None,
    step_count: int | None = None,
    step_types: Sequence[str] | None = None,
    count: int | None = None,
) -> None:
    """Assert that at least one such workflow was created, or exactly `count` (§6.4).

    A workflow made in Python is where the innermost mode keeps its jobs. One that a client creates
    over HTTP is in the database, whatever the mode.
    """
    inside = _place()
    with inside():
        flows = Workflow.objects.filter(parent__isnull=True).order_by("id")
        made = [(workflow, _step_types(workflow)) for workflow in flows]
    found = [
        workflow
        for workflow, types in made
        if workflow.type == type
        and (name is None or workflow.name == name)
        and (step_count is None or workflow.size == step_count)
        and (step_types is None or types == list(step_types))
    ]
    if len(found) == count or (count is None and found):
        return
    there = "\n".join(f"  {flow.type} {flow.name!r} of {types}" for flow, types in made)
    number = "at least one" if count is None else count
    raise AssertionError(
        f"Expected {number} such workflow(s) of type {type!r}; found {len(found)}. All workflows:\n"
        f"{there or '  none'}"
    )


def _step_types(workflow: Workflow) -> list[str]:
    """Return the job types of its steps; a nested workflow is listed by its own type."""
    if workflow.steps:
        return [step["type"] for step in workflow.steps[: workflow.size]]
    jobs = workflow.jobs.filter(workflow_index__isnull=False)
    nodes = [*jobs.values_list("workflow_index", "type")]
    nodes += workflow.children.filter(index__isnull=False).values_list("index", "type")
    return [type for _, type in sorted(nodes)]


def clear_all() -> None:
    """Delete all jobs and workflows, in the database if no mode is active."""
    inside = _place()
    with inside():
        Job.objects.all().delete()
        Workflow.objects.all().delete()


def _all() -> list[Any]:
    session = _session()
    return session.jobs if session else list(Job.objects.order_by("id"))


def _check(
    what: str,
    type: Target,
    count: int | None,
    criteria: Criteria,
    holds: Callable[[Any], bool],
) -> None:
    found = sum(holds(job) for job in all_enqueued(type, **criteria))
    if found == count or (count is None and found):
        return
    wanted = ", ".join(
        [repr(type_of(type)), *(f"{name}={value!r}" for name, value in criteria.items())]
    )
    number = "at least one" if count is None else count
    there = "\n".join(
        f"  {job.type} args={job.args!r} queue={job.queue!r} meta={job.meta!r} {job.state}"
        for job in _all()
    )
    raise AssertionError(
        f"Expected {number} {what} job(s) of {wanted}; found {found}. All jobs:\n"
        f"{there or '  none'}"
    )


# Running jobs (§7.1)


def run_jobs(
    queue: str | None = None, *, max_jobs: int | None = None, with_scheduled: bool = False
) -> int:
    """Run available jobs, and those they enqueue in turn; return how many were run.

    They are claimed, run and reported as by a worker with all abilities: queue by queue in name
    order, by priority and age in each. Errors of handlers become failed jobs.

    Args:
        with_scheduled: also run jobs that are scheduled or wait for a retry, as if they were due.
    """
    # Once for all jobs: a handler may enter another mode.
    inside = _place()
    count = 0
    while max_jobs is None or count < max_jobs:
        with inside():
            if not count:
                sweep()
            claimed = _claim_next(queue, with_scheduled)
        if not claimed:
            break
        execute(claimed[0], inside)
        count += 1
    return count


drain = run_jobs


def advance_time(by: timedelta | None = None, **parts: float) -> None:
    """Let time pass for the jobs: `advance_time(hours=24)`. Delays and deadlines get shorter, and
    cron jobs enqueue what falls due (outside `fake()`).

    Nothing else is affected: Django and the database keep their clocks.
    """
    by = by if by is not None else timedelta(**parts)
    if not isinstance(by, timedelta):
        raise TypeError(f"advance_time() takes a timedelta, or parts such as hours=24; not {by!r}.")
    session = _session()
    if session is not None:
        session.advance(by)
        return
    for name in DEADLINES:
        jobs = Job.objects.filter(**{f"{name}__isnull": False})
        jobs.update(**{name: F(name) - by})
    engine.let_time_pass(by)
    sweep()


def freeze_time(moment: datetime | str) -> None:
    """Stop the clock of `fake()` or `inline()` at a moment: `freeze_time("2026-02-13T10:00:00Z")`.

    Delays, expiry and backoff are counted from it; `advance_time()` moves it forward. It runs again
    when the mode ends. Django keeps its own clock.

    Raises:
        RuntimeError: neither is active. Jobs in the database use the database's clock; let time
            pass for them with `advance_time()`.
    """
    session = _session()
    if session is None:
        raise RuntimeError("freeze_time() is for fake() and inline(): use advance_time() here.")
    session.freeze(parse_timestamp(moment) if isinstance(moment, str) else moment)


async def arun_jobs(
    queue: str | None = None, *, max_jobs: int | None = None, with_scheduled: bool = False
) -> int:
    """`run_jobs()` for async tests."""
    return await sync_to_async(run_jobs)(queue, max_jobs=max_jobs, with_scheduled=with_scheduled)


def _claim_next(queue: str | None, with_scheduled: bool) -> list[ClaimedJob]:
    """Claim the next job."""
    jobs = Job.objects.filter(finished_at__isnull=True)
    if queue is not None:
        jobs = jobs.filter(queue=queue)
    if with_scheduled:
        waiting = list(jobs.filter(state__in=WAITING).values_list("pk", flat=True))
        if waiting:
            engine.run_now(waiting)
    queues = sorted(jobs.order_by().values_list("queue", flat=True).distinct())
    needs = jobs.filter(needs__isnull=False).values_list("needs", flat=True)
    able = {need for some in needs for need in some or ()}
    return engine.claim(queues, worker_id=WORKER, able=sorted(able)) if queues else []


__all__ = [
    "TestJob",
    "advance_time",
    "all_enqueued",
    "arun_jobs",
    "assert_completed",
    "assert_enqueued",
    "assert_failed",
    "assert_job_state",
    "assert_performed",
    "assert_workflow_created",
    "clear_all",
    "drain",
    "fail_all",
    "fail_next",
    "fake",
    "forget_failures",
    "freeze_time",
    "get_job",
    "inline",
    "refute_enqueued",
    "refute_performed",
    "run_jobs",
]
