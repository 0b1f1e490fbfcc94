"""A table that grows in seconds does not keep the plans made when it was small (PostgreSQL)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jobs import enqueue_many
from jobs.store import planner
from jobs.store.database import run
from tests.database import another_connection, connection
from workers import protocol
from workers.chores import reaper

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

TABLE = "ojs_jobs_job"
PAGES = "SELECT relpages FROM pg_class WHERE oid = %s::regclass"
ACK = "SELECT name FROM pg_prepared_statements WHERE statement LIKE '%AS done (id, worker_id%'"
SMALL = "the plan reads the whole table"
LARGE = "the plan looks jobs up"


@pytest.fixture(autouse=True)
def a_small_table() -> Iterator[None]:
    """A table without rows that was analyzed, and a session that has planned nothing yet."""
    do("TRUNCATE ojs_jobs_job CASCADE")
    do("ANALYZE ojs_jobs_job")
    connection.close()
    yield
    connection.close()


def do(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def pages() -> int:
    (found,) = run(PAGES, [TABLE])
    return int(found[0])


def grow(jobs: int = 3_000) -> None:
    for _ in range(jobs // 1_000):
        enqueue_many([{"type": "burst", "args": [n]} for n in range(1_000)])


def plan_of_the_ack() -> str:
    """The plan that this session has made of the ACK of ten jobs."""
    with connection.cursor() as cursor:
        cursor.execute(ACK)
        ((name,),) = cursor.fetchall()
    with connection.connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN EXECUTE {name} ('[]', false, true)")
        lines = "\n".join(line for (line,) in cursor.fetchall())
    return SMALL if "Seq Scan on ojs_jobs_job" in lines else LARGE


def work(count: int = 10) -> None:
    jobs = protocol.fetch(["default"], worker_id="w", count=count)
    protocol.ack([protocol.Completion(job.id, "w", job.attempt) for job in jobs])


def test_sessions_that_planned_for_an_empty_table_plan_again_once_it_has_grown():
    enqueue_many([{"type": "first"}] * 10)
    work()
    assert plan_of_the_ack() == SMALL
    grow()
    work()
    assert plan_of_the_ack() == SMALL, "so far, nothing has told the session"

    reaper.sweep(only=["grown-tables"])

    assert plan_of_the_ack() == LARGE


def test_a_table_is_analyzed_once_for_each_time_that_it_has_grown_fourfold():
    grow()

    assert planner.analyze_grown() >= 1
    analyzed = pages()
    assert analyzed > planner.FEW
    assert planner.analyze_grown() == 0
    grow(1_000)
    assert planner.analyze_grown() == 0, "not yet four times as large"
    assert pages() == analyzed


def test_a_few_jobs_are_not_worth_it():
    enqueue_many([{"type": "few"}] * 20)

    assert planner.analyze_grown() == 0


def test_a_table_that_is_being_vacuumed_is_left_for_the_next_time():
    grow()
    with another_connection() as vacuum:
        vacuum.execute("LOCK TABLE ojs_jobs_job IN SHARE UPDATE EXCLUSIVE MODE")

        planner.analyze_grown()

        assert pages() == 0

    planner.analyze_grown()
    assert pages() > 0


def test_the_portable_store_has_no_plans_to_keep(settings: Any):
    settings.OJS = settings.OJS | {"STORE": "portable"}
    grow()

    assert planner.analyze_grown() == 0
