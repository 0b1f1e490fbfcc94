"""Claims stay quick while a transaction keeps what was claimed from being removed (PostgreSQL)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models.functions import Now

from jobs import engine
from jobs.models import Job
from jobs.store.postgres import heads
from tests.database import alias, another_connection, connection
from tests.factories import JobFactory, WorkerFactory
from workers import protocol

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

READ = "SELECT pg_stat_get_xact_tuples_returned('ojs_job_fetchable'::regclass)"


@pytest.fixture(autouse=True)
def a_transaction_is_idle(monkeypatch) -> Iterator[Any]:
    """It might still see every job of the test available."""
    monkeypatch.setattr(heads, "MANY", 20)
    monkeypatch.setattr(heads, "MARGIN", heads.MARGIN * 0)
    monkeypatch.setattr(heads, "_known", {})
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE ojs_jobs_job CASCADE")
        cursor.execute("SET enable_seqscan = off; SET enable_bitmapscan = off")
    with another_connection() as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1 FROM ojs_jobs_job")
        yield other
    connection.close()


def claim(*queues: str, count: int = 10, **options: Any) -> list[str]:
    return [job.type for job in engine.claim(list(queues) or ["default"], count=count, **options)]


def entries_of(action: Any) -> int:
    """How many entries of the index were read."""
    with transaction.atomic(using=alias()), connection.cursor() as cursor:
        cursor.execute(READ)
        ((before,),) = cursor.fetchall()
        action()
        cursor.execute(READ)
        ((after,),) = cursor.fetchall()
    return int(after - before)


def use_up(number: int = 100, **job: Any) -> None:
    """Jobs that are claimed, and leave dead entries."""
    JobFactory.create_batch(number, **job)
    while claim(job.get("queue", "default"), count=50):
        pass


def look_from_the_beginning() -> None:
    for known in heads._known.values():
        known.whole_at = 0.0


def look() -> None:
    """Look from the beginning now, and then no more."""
    heads.notice(["default"])
    look_from_the_beginning()
    heads.heads(["default"])
    look_no_more()


def look_no_more() -> None:
    for known in heads._known.values():
        known.whole_at = known.step_at = float("inf")


def test_a_claim_that_has_read_much_lets_the_next_begin_where_the_queue_begins():
    use_up()
    JobFactory.create_batch(3)
    look()

    assert entries_of(lambda: claim(count=1)) < 10


def test_the_jobs_come_in_their_order_whatever_the_urgency():
    use_up()
    for priority in (0, 5, -5, 0):
        JobFactory(type=f"p{priority}", priority=priority)
    look()

    assert claim() == ["p5", "p0", "p0", "p-5"]


def test_more_and_less_urgent_jobs_that_come_later_are_found():
    use_up(priority=3)
    assert heads._known
    for priority in (-5, 3, 0, 5):
        JobFactory(type=f"p{priority}", priority=priority)
        look_no_more()

    assert claim() == ["p5", "p3", "p0", "p-5"]


def test_a_less_urgent_backlog_is_not_passed_over():
    """What is behind the first job has not been looked at."""
    JobFactory(type="old", priority=-5)
    JobFactory.create_batch(100, priority=5)
    for _ in range(2):
        claim(count=50)
    JobFactory(type="urgent", priority=5)
    look()

    assert claim() == ["urgent", "old"]


def test_a_job_committed_late_is_found_when_the_queue_is_looked_at_from_its_beginning():
    use_up()
    late = JobFactory(type="late")
    claim("elsewhere")
    Job.objects.filter(pk=late.pk).update(enqueued_at=Now() - timedelta(hours=1))
    look_no_more()
    assert claim() == []

    look_from_the_beginning()

    assert claim() == ["late"]


def test_a_job_that_few_workers_can_run_waits_for_them_at_the_head():
    use_up()
    JobFactory(type="choosy", needs=["gpu"])
    use_up()
    assert heads._known

    assert claim(able=["gpu"]) == ["choosy"]


def test_each_queue_begins_where_it_begins():
    use_up(queue="one")
    JobFactory(type="first", queue="one")
    JobFactory(type="second", queue="two")

    assert claim("two", "one") == ["second", "first"]


def test_fetches_of_several_workers_at_once_begin_there_too():
    names = [WorkerFactory().pk for _ in range(3)]
    use_up()
    JobFactory.create_batch(5)
    look()
    asked = [protocol.Fetch.of(["default"], "", worker_id=name) for name in names]
    got: list[Any] = []

    entries = entries_of(lambda: got.extend(protocol.fetch_each(asked)))

    assert [len(jobs) for jobs in got] == [1, 1, 1]
    assert entries < 20


def test_a_project_does_not_pass_over_the_jobs_of_others():
    use_up(project="acme")
    JobFactory(type="theirs", project="other")
    JobFactory(type="ours", project="acme")

    assert claim(project="acme") == ["ours"]
    assert claim(project="other") == ["theirs"]


def test_when_the_transaction_has_ended_claims_begin_at_the_beginning_again(a_transaction_is_idle):
    use_up()
    assert heads._known
    a_transaction_is_idle.rollback()
    for _ in range(2):  # the first look marks the dead entries
        use_up(1)
        look_from_the_beginning()
        claim()

    assert not heads._known


def test_a_queue_without_dead_entries_is_not_looked_at():
    JobFactory.create_batch(15)

    assert len(claim(count=15)) == 15
    assert not heads._known
