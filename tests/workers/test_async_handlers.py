"""Async handlers inside synchronous middleware: the middleware waits for them in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

import jobs
from jobs.engine import Completion, Failure
from jobs.models import Job
from jobs.spec.identifiers import uuid7
from jobs.store.database import connection
from jobs.testing import run_jobs
from tests.processes import eventually
from workers.runtime import blocking, handler
from workers.runtime.active import ActiveJob
from workers.runtime.context import JobContext
from workers.runtime.handling import Handler
from workers.runtime.pool import EventLoop

MANY = 60
"""More than the threads of a loop's usual executor."""


def outer(context: Any, next: Callable[[], Any]) -> Any:
    context.metadata["threads"] = [threading.current_thread().name]
    return next()


def inner(context: Any, next: Callable[[], Any]) -> Any:
    context.metadata["threads"].append(threading.current_thread().name)
    return next()


async def between(context: Any, next: Callable[[], Any]) -> Any:
    return await next()


@pytest.fixture(autouse=True)
def own_threads(monkeypatch):
    """A thread keeps its connections, which a later test may not use."""
    monkeypatch.setattr(blocking, "blocking", blocking.BlockingThreads())


@pytest.fixture
def ended() -> dict[Any, Any]:
    return {}


@pytest.fixture
def loop(ended) -> Iterator[EventLoop]:
    made = EventLoop(lambda job, report: ended.update({job.context: report}))
    yield made
    made.stop()


def job(function: Callable[..., Any], number: int = 0) -> ActiveJob:
    context = JobContext(
        id=uuid7(),
        type="a",
        queue="default",
        args=[number],
        meta={},
        attempt=1,
        max_attempts=1,
    )
    return ActiveJob(context, Handler("a", function), time.monotonic())


def meeting() -> Callable[..., Any]:
    """A handler that ends when all have begun."""
    begun = count(1)
    together = asyncio.Event()

    async def run(context: Any, number: int) -> int:
        if next(begun) == MANY:
            together.set()
        await together.wait()
        return await asyncio.to_thread(lambda: number)

    return run


@pytest.mark.parametrize("chain", [[outer, inner], [outer, between, inner]])
def test_however_many_jobs_there_are_none_waits_for_a_thread_of_another(
    loop, ended, settings, chain
):
    settings.OJS = settings.OJS | {"EXECUTION_MIDDLEWARE": chain}
    run = meeting()

    loop.submit([job(run, number) for number in range(MANY)])

    eventually(lambda: len(ended) == MANY)
    assert sorted(report.result for report in ended.values()) == list(range(MANY))


def test_synchronous_middleware_of_a_job_shares_a_thread(loop, ended, settings):
    settings.OJS = settings.OJS | {"EXECUTION_MIDDLEWARE": [outer, inner]}

    async def run(context: Any, number: int) -> None:
        pass

    loop.submit([job(run)])

    eventually(lambda: len(ended) == 1)
    (context,) = ended
    first, second = context.metadata["threads"]
    assert first == second


def test_a_handler_that_is_interrupted_cleans_up_before_its_middleware_ends(loop, ended, settings):
    told = []

    def watching(context: Any, next: Callable[[], Any]) -> Any:
        try:
            return next()
        finally:
            told.append("middleware")

    settings.OJS = settings.OJS | {"EXECUTION_MIDDLEWARE": [watching]}
    begun = threading.Event()

    async def run(context: Any, number: int) -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("handler")

    one = job(run)
    loop.submit([one])
    assert begun.wait(60)
    one.context.cancel("timeout")
    loop.interrupt(one)

    eventually(lambda: len(ended) == 1)
    assert isinstance(ended[one.context], Failure)
    assert told == ["handler", "middleware"]


def test_the_loop_is_closed_when_the_worker_ends(ended):
    loop = EventLoop(lambda job, report: ended.update({job.context: report}))
    seen: list[asyncio.AbstractEventLoop] = []

    async def run(context: Any, number: int) -> None:
        seen.append(asyncio.get_running_loop())

    loop.submit([job(run)])
    eventually(lambda: len(ended) == 1)

    loop.stop()

    eventually(lambda: seen[0].is_closed())
    loop.interrupt(job(run))


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_connection_that_was_lost_fails_no_second_job(loop, ended, settings, monkeypatch):
    """Neither one that the handler used inside of middleware, nor that of a checkpoint."""
    monkeypatch.setitem(connection().settings_dict, "CONN_MAX_AGE", None)
    settings.OJS = settings.OJS | {"EXECUTION_MIDDLEWARE": [outer]}
    sessions: list[int] = []

    def session() -> int:
        with connection().cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            return int(cursor.fetchone()[0])

    async def run(context: Any, number: int) -> int:
        await Job.objects.acount()
        sessions.append(await blocking.in_thread(session)())
        return number

    for round in range(3):
        loop.submit([job(run, number) for number in range(3)])
        eventually(lambda round=round: len(ended) == 3 * (round + 1))
        with connection().cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                " AND backend_type = 'client backend'"
            )

    assert all(isinstance(report, Completion) for report in ended.values()), ended
    assert sessions


@handler("test.async.making")
async def make_another(context: Any, number: int) -> str:
    made = await jobs.aenqueue("made", [number])
    assert made is not None
    return str(made.id)


@pytest.mark.django_db
def test_in_tests_such_a_handler_uses_the_connection_of_the_test(settings):
    settings.OJS = settings.OJS | {"EXECUTION_MIDDLEWARE": [outer, between, inner]}
    jobs.enqueue("test.async.making", [1])

    run_jobs(max_jobs=1)

    assert Job.objects.filter(type="made").count() == 1
