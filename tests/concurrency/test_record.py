"""The cursor of the record of events skips nothing, in whatever order its writers commit."""

from __future__ import annotations

import random
import threading
from contextlib import ExitStack

import psycopg
import pytest
from django.db import connections

from jobs.models import Event
from jobs.record import events
from tests.database import another_connection

pytestmark = pytest.mark.postgres

INSERT = """
    INSERT INTO ojs_jobs_event (type, subject, queue, job_type, worker_id, time)
    SELECT 'job.started', 'x', '', '', '', now() FROM generate_series(1, %s)
"""
EARLY = "SELECT pg_current_xact_id()"
"""Assigns the transaction's number long before its first event."""


class Reader:
    def __init__(self) -> None:
        self.seen: list[int] = []
        self._cursor = events.Cursor(0, 0)

    def read_on(self) -> None:
        page = events.after(events.settled(), self._cursor).order_by("id")
        self.seen += page.values_list("id", flat=True)[:100]
        if self.seen:
            self._cursor = events.Cursor(0, self.seen[-1])

    def read_to_the_end(self) -> None:
        before = -1
        while before != len(self.seen):
            before = len(self.seen)
            self.read_on()


def committed() -> list[int]:
    return list(Event.objects.order_by("id").values_list("id", flat=True))


@pytest.mark.parametrize("seed", range(6))
def test_transactions_that_end_in_any_order(transactional_db, seed):
    """Single steps of eight writers and a reader, in random order."""
    lot = random.Random(seed)
    reader = Reader()
    with ExitStack() as stack:
        writers = [stack.enter_context(another_connection()) for _ in range(8)]
        for _ in range(400):
            writer = lot.choice(writers)
            match lot.choice(("early", "write", "write", "part", "commit", "roll back", "read")):
                case "early":
                    writer.execute(EARLY)
                case "write":
                    writer.execute(INSERT, [lot.randint(0, 3)])
                case "part":
                    with writer.transaction() as part:
                        writer.execute(INSERT, [1])
                        if lot.random() < 0.5:
                            raise psycopg.Rollback(part)
                case "commit":
                    writer.commit()
                case "roll back":
                    writer.rollback()
                case "read":
                    reader.read_on()
    reader.read_to_the_end()

    assert len(committed()) > 50
    assert reader.seen == committed()


def test_writers_at_full_speed(transactional_db):
    """Several writing threads and a concurrent reader."""
    reader = Reader()
    over = threading.Event()
    problems: list[BaseException] = []

    def write(seed: int) -> None:
        lot = random.Random(seed)
        try:
            with another_connection() as writer:
                for _ in range(300):
                    if lot.random() < 0.3:
                        writer.execute(EARLY)
                    for _ in range(lot.randint(1, 3)):
                        writer.execute(INSERT, [lot.randint(0, 3)])
                    if lot.random() < 0.2:
                        writer.rollback()
                    else:
                        writer.commit()
        except BaseException as problem:
            problems.append(problem)

    def read() -> None:
        try:
            while not over.is_set():
                reader.read_on()
        except BaseException as problem:
            problems.append(problem)
        finally:
            connections.close_all()

    reading = threading.Thread(target=read)
    writing = [threading.Thread(target=write, args=[seed]) for seed in range(6)]
    for thread in (reading, *writing):
        thread.start()
    for thread in writing:
        thread.join()
    over.set()
    reading.join()
    reader.read_to_the_end()

    assert not problems
    assert reader.seen == committed()
