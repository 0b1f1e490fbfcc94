"""What a handler leaves in its thread does not reach the next job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.cache import caches
from django.db import transaction
from django.utils import timezone, translation

from jobs.engine import Completion
from jobs.models import Queue
from jobs.spec.identifiers import uuid7
from tests.database import alias, atomic, connection
from tests.processes import eventually
from workers.runtime import blocking
from workers.runtime.active import ActiveJob
from workers.runtime.context import JobContext
from workers.runtime.handling import Handler
from workers.runtime.pool import EventLoop, Threads

variable = ContextVar("variable", default="unset")


@pytest.fixture(autouse=True)
def lasting_connections(monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 600)
    monkeypatch.setattr(blocking, "blocking", blocking.BlockingThreads())


@pytest.fixture
def run() -> Iterator[Callable[..., Any]]:
    """Runs a handler after the others, in their thread; returns its result."""
    reports: dict[Any, Any] = {}

    def done(job: ActiveJob, report: Any) -> None:
        job.is_running = False
        reports[job] = report

    threads, loop = Threads(1, done), EventLoop(done)

    def run(function: Callable[..., Any], type: str = "test.job") -> Any:
        context = JobContext(
            id=uuid7(),
            type=type,
            queue="default",
            args=[],
            meta={},
            attempt=1,
            max_attempts=1,
        )
        job = ActiveJob(context, Handler(type, function), time.monotonic())
        (loop if job.handler.is_async else threads).submit([job])
        eventually(lambda: job in reports)
        assert isinstance(reports[job], Completion), reports[job]
        return reports[job].result

    yield run
    run(sync_to_async(lambda context: connection.close()))
    threads.stop()
    threads.join(60)
    loop.stop()


def begin(context: Any = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    Queue.objects.create(name="never")


def begin_and_fail_a_statement(context: Any) -> None:
    begin()
    with pytest.raises(Exception, match="nowhere"), connection.cursor() as cursor:
        cursor.execute("SELECT * FROM nowhere")


def enter_atomic(context: Any) -> None:
    atomic().__enter__()
    Queue.objects.create(name="never")


def turn_autocommit_off(context: Any) -> None:
    transaction.set_autocommit(False, using=alias())
    Queue.objects.create(name="never")


async def begin_async(context: Any) -> None:
    await sync_to_async(begin)()


async def begin_in_thread(context: Any) -> None:
    await blocking.in_thread(begin)()


WAYS = [
    begin,
    begin_and_fail_a_statement,
    enter_atomic,
    turn_autocommit_off,
    begin_async,
    begin_in_thread,
]


def create(context: Any) -> None:
    Queue.objects.create(name="plain")


def create_atomically(context: Any) -> None:
    with atomic():
        Queue.objects.create(name="atomic")


async def create_async(context: Any) -> None:
    await Queue.objects.acreate(name="async")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("leave_open", WAYS)
def test_a_transaction_that_a_handler_leaves_open_takes_no_later_work_with_it(
    run, caplog, leave_open
):
    run(leave_open, type="test.leaving")
    for work in (create, create_atomically, create_async):
        run(work, type="test.later")

    assert set(Queue.objects.values_list("name", flat=True)) == {"plain", "atomic", "async"}
    (warning,) = [record for record in caplog.records if "was left open" in record.message]
    assert warning.job_type == "test.leaving"
    assert f"in the database '{alias()}'" in warning.message


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_has_ended_keeps_its_connection_and_is_no_reason_for_a_warning(
    run, caplog
):
    def used(context: Any) -> int:
        with connection.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("COMMIT")
        with atomic():
            Queue.objects.count()
        return id(connection.connection)

    assert run(used) == run(used)
    assert "left open" not in caplog.text


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_language_time_zone_and_variables_of_a_job_are_not_those_of_the_next(run, is_async):
    def change(context: Any) -> None:
        translation.activate("de")
        timezone.activate("Asia/Tokyo")
        variable.set("set")

    def look(context: Any) -> list[str]:
        return [
            translation.get_language(),
            timezone.get_current_timezone_name(),
            variable.get(),
        ]

    before = look(None)

    run(sync_to_async(change) if is_async else change)

    assert run(sync_to_async(look) if is_async else look) == before


def test_the_jobs_of_a_thread_share_its_caches(run):
    """Each would connect to the cache's server anew."""

    def cache(context: Any) -> list[int]:
        return [threading.get_ident(), id(caches["default"])]

    assert run(cache) == run(cache)
