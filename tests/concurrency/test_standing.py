"""A fetch that waited for a lock checks the worker after the wait, not before."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connections

from jobs.models import Queue
from tests.database import alias, atomic, connection
from tests.factories import JobFactory, WorkerFactory
from workers import protocol
from workers.lifecycle import WorkerState
from workers.models import Worker

from .threads import while_it_waits

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

sqlite = pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite's one lock")


def as_it_begins(change: Callable[[], Any], act: Callable[[], Any]) -> Any:
    """Make `change`, commit it once `act` begins a transaction, and return the result of `act`."""
    begins = threading.Event()

    def note(execute: Any, statement: str, *rest: Any) -> Any:
        if statement.startswith("BEGIN"):
            begins.set()
        return execute(statement, *rest)

    def acted() -> Any:
        try:
            with connections[alias()].execute_wrapper(note):
                return act()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with atomic():
            change()
            acting = pool.submit(acted)
            assert begins.wait(30), "it never begins a transaction"
        return acting.result()


def quieted() -> None:
    Worker.objects.filter(pk="w").direct(WorkerState.QUIET)


def lent() -> None:
    JobFactory(active=True, queue="other", reserved_by="w")


def capped() -> None:
    JobFactory(active=True, queue="default")
    Queue.objects.filter(pk="default").update(concurrency=1)


@sqlite
@pytest.mark.parametrize("change", [quieted, lent, capped], ids=lambda change: change.__name__)
def test_a_fetch_that_waited_for_the_one_lock_of_sqlite_goes_by_what_it_finds_then(change):
    WorkerFactory(worker_id="w", concurrency=1)
    Queue.objects.create(name="default")
    JobFactory(queue="default")

    assert as_it_begins(change, lambda: protocol.fetch(["default"], worker_id="w")) == []


@pytest.mark.postgres
@pytest.mark.parametrize("change", [quieted, lent], ids=lambda change: change.__name__)
def test_a_fetch_that_waited_at_a_limited_queue_goes_by_what_it_finds_then(change):
    WorkerFactory(worker_id="w", concurrency=1)
    queues = Queue.objects.filter(pk=Queue.objects.create(name="default", concurrency=5).pk)
    JobFactory(queue="default")

    def meanwhile() -> None:
        list(queues.select_for_update())
        change()

    assert while_it_waits(meanwhile, lambda: protocol.fetch(["default"], worker_id="w")) == []
