"""Plans of the hot statements on PostgreSQL, with a big table.

A fetch reads the available jobs of a queue in their order and no further, an ack finds its job by
primary key whatever else is active, and no sweep reads the whole table. The table has 100,000
finished, 10,000 waiting and 2,000 active jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from jobs import engine
from jobs.engine import queue_marks
from jobs.models import DeadJob, Job, Queue, Tenant
from jobs.record import dashboard
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import WAITING, State
from jobs.store.database import compiled
from jobs.store.postgres import heads
from tests.database import alias, connection, rolled_back
from tests.factories import JobFactory, WorkerFactory
from workers import protocol

pytestmark = [pytest.mark.postgres, pytest.mark.django_db]

FILL = """
    INSERT INTO ojs_jobs_job
           (id, type, queue, args, meta, priority, state, attempt, attempt_counted, max_attempts,
            reserved_by, reserved_for, reserved_until, started_at, timeout, finished_by,
            finished_at, unfenced, scheduled_at, expires_at, created_at, enqueued_at, tags,
            attributes, dead_letter)
    SELECT gen_random_uuid(), 'email.send', 'queue-' || n %% 5, '[]', '{}', 0, state, 1, false, 3,
           CASE state WHEN 'active' THEN 'worker-' || n %% 200 ELSE '' END,
           CASE state WHEN 'active' THEN interval '30 min' END,
           CASE state WHEN 'active' THEN now() + interval '30 min' END,
           CASE state WHEN 'active' THEN now() END,
           CASE state WHEN 'active' THEN interval '1 hour' END,
           '', CASE WHEN state IN ('completed', 'discarded') THEN now() - n * interval '1 s' END,
           false, CASE WHEN state IN ('scheduled', 'retryable') THEN now() + interval '1 h' END,
           CASE WHEN n %% 100 = 0 THEN now() + interval '1 day' END,
           now(), now() - n * interval '1 ms', '[]', '{}', state = 'discarded'
      FROM (SELECT n, CASE WHEN n <= 99000 THEN 'completed'
                           WHEN n <= 100000 THEN 'discarded'
                           WHEN n <= 104000 THEN 'available'
                           WHEN n <= 107000 THEN 'scheduled'
                           WHEN n <= 110000 THEN 'retryable'
                           ELSE 'active' END AS state
              FROM generate_series(1, 112000) AS n) AS rows
"""


def insert(first: int, last: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL.replace("(1, 112000)", f"({first}, {last})"), [])


def fill(first: int, last: int) -> None:
    insert(first, last)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE ojs_jobs_job")


@pytest.fixture(scope="module")
def big_table(django_db_setup, django_db_blocker):
    """Filled once for all tests of this file, which only request plans."""
    with django_db_blocker.unblock():
        with rolled_back():
            fill(1, 112_000)
            yield
        connection.close()


def plan(statement: str, parameters: Any) -> str:
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (COSTS off) " + statement, parameters)
        return "\n".join(row[0] for row in cursor.fetchall())


def plan_of(action: Callable[[], Any], beginning: str) -> str:
    """Run `action`; return the plan of its statement that begins with `beginning`."""
    seen: list[tuple[str, Any]] = []

    def watch(execute, sql, parameters, many, context):
        seen.append((sql, parameters))
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(watch):
        action()
    ((sql, parameters),) = [each for each in seen if each[0].strip().startswith(beginning)]
    return plan(sql, parameters)


def indexes(found: str) -> set[str]:
    """The indexes of the job table in a plan; the table itself if it is read completely."""
    read = set(re.findall(r"(?:using|on) (ojs_job_\w+|ojs_jobs_job_pkey)", found))
    return read | set(re.findall(r"Seq Scan on (ojs_jobs_job)\b", found))


def acks(count: int) -> list[engine.Completion]:
    return [engine.Completion(uuid7(), worker_id="worker-1") for _ in range(count)]


# First, before the big table exists.
def test_one_ack_does_not_read_a_small_table_either():
    """A planner that expects a hundred acks finds it cheaper to read all jobs."""
    fill(111_000, 113_000)

    found = plan_of(lambda: engine.complete(acks(1)), "WITH done")

    assert indexes(found) == {"ojs_jobs_job_pkey"}


@pytest.mark.parametrize("types", [None, ["email.send", "report.build"]])
@pytest.mark.parametrize("limit", [1, 50])
def test_a_fetch_reads_available_and_due_jobs_in_order_from_their_indexes(big_table, types, limit):
    queues = ["queue-1", "queue-2"]

    found = plan_of(lambda: engine.claim(queues, count=limit, types=types), "WITH gate")

    # Which of the two indexes on due jobs is used depends on their number.
    due = {"ojs_job_due", "ojs_job_due_queue"}
    assert indexes(found) - due == {"ojs_job_fetchable", "ojs_jobs_job_pkey"}
    assert indexes(found) & due
    in_order(found)


@pytest.mark.parametrize("limit", [1, 50])
def test_what_a_fetch_asks_of_its_worker_changes_nothing_of_that(big_table, limit):
    worker = WorkerFactory(concurrency=100)

    found = plan_of(
        lambda: protocol.fetch(["queue-1", "queue-2"], worker_id=worker.pk, count=limit),
        "WITH gate",
    )

    due = {"ojs_job_due", "ojs_job_due_queue"}
    held = "ojs_job_held"
    assert indexes(found) - due == {"ojs_job_fetchable", "ojs_jobs_job_pkey", held}
    in_order(found)


@pytest.mark.parametrize("number", [2, 32])
def test_fetches_of_several_workers_read_no_more_than_that(big_table, number):
    names = [WorkerFactory(concurrency=100).pk for _ in range(number)]
    asked = [protocol.Fetch.of(["queue-1", "queue-2"], "", worker_id=name) for name in names]

    found = plan_of(lambda: protocol.fetch_each(asked), "WITH asking")

    due = {"ojs_job_due", "ojs_job_due_queue"}
    assert indexes(found) - due == {"ojs_job_fetchable", "ojs_jobs_job_pkey", "ojs_job_held"}
    in_order(found)


@pytest.mark.parametrize("number", [1, 3])
def test_fetches_that_begin_further_on_read_in_order_too(big_table, number, monkeypatch):
    """After a look at where each queue begins: each part of it is a range of the index."""
    monkeypatch.setattr(heads, "_known", {})
    monkeypatch.setattr(heads, "MANY", 0)
    names = [WorkerFactory(concurrency=100).pk for _ in range(number)]
    asked = [protocol.Fetch.of(["queue-1", "queue-2"], "", worker_id=name) for name in names]
    heads.notice(["queue-1", "queue-2"])

    look = plan_of(lambda: heads.heads(["queue-1"]), "WITH wanted")
    beginning = "WITH asking" if number > 1 else "WITH gate"
    found = plan_of(lambda: protocol.fetch_each(asked), beginning)

    assert indexes(look) == {"ojs_job_fetchable"} and "Sort" not in look
    due = {"ojs_job_due", "ojs_job_due_queue"}
    assert indexes(found) - due == {"ojs_job_fetchable", "ojs_jobs_job_pkey", "ojs_job_held"}
    in_order(found)
    conditions = [line for line in found.splitlines() if "Index Cond" in line]
    assert sum("enqueued_at >=" in line for line in conditions) == 3


def test_a_shared_queue_is_read_tenant_by_tenant(big_table):
    """However many jobs one of them has, each costs two probes, and its jobs come in order."""
    engine.queues.configure("queue-1", {"tenant_fairness": {"strategy": "fair-share"}})
    Job.objects.filter(state=State.AVAILABLE).update(project="noisy")
    JobFactory(queue="queue-1", project="quiet")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE ojs_jobs_job")
    seen: list[tuple[str, Any]] = []

    def watch(execute, sql, parameters, many, context):
        seen.append((sql, parameters))
        return execute(sql, parameters, many, context)

    with connection.execute_wrapper(watch):
        taken = engine.claim(["queue-1"], count=2)

    assert len(taken) == 2
    (tenants,) = [each for each in seen if "WITH RECURSIVE tenant" in each[0]]
    heads = [each for each in seen if "FOR UPDATE" in each[0] and '"project" =' in each[0]]
    assert len(heads) == 2
    for statement in (tenants, *heads):
        found = plan(*statement)
        assert indexes(found) == {"ojs_job_project"}
        assert "Sort" not in found


def test_queues_that_lack_a_mark_are_found_by_probes_of_indexes(big_table):
    """However many jobs wait in each of them."""
    with rolled_back():
        Tenant.objects.bulk_create(
            Tenant(name=f"tenant-{number}", max_concurrency=1) for number in range(50)
        )
        waiting = Job.objects.filter(state=State.AVAILABLE)
        waiting.filter(queue="queue-1").update(project="tenant-1")
        waiting.filter(queue="queue-2").update(rate_key="k")
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE ojs_jobs_job, ojs_jobs_tenant")

        found = plan(queue_marks.UNMARKED, ())
        marked = queue_marks.mend()

    assert indexes(found) == {"ojs_job_fetchable", "ojs_job_project"}
    assert "Bitmap" not in found and "Sort" not in found
    assert marked == 5


def in_order(found: str) -> None:
    """The index yields rows in order: sorting them would mean reading a whole queue."""
    available = found[found.index("CTE available") : found.index("CTE next")]
    assert "Sort" not in available


@pytest.mark.parametrize("count", [1, 100])
def test_an_ack_finds_its_jobs_by_primary_key_and_nothing_else(big_table, count):
    found = plan_of(lambda: engine.complete(acks(count)), "WITH done")

    assert indexes(found) == {"ojs_jobs_job_pkey"}


def test_promotion_finds_what_is_due_by_its_index(big_table):
    found = plan_of(engine.promote_due, "WITH due")

    assert indexes(found) <= {"ojs_job_due", "ojs_jobs_job_pkey"}


CHORES = {
    "what a worker holds": (Job.objects.held_by("worker-1"), "ojs_job_held"),
    "expired reservations": (Job.objects.overdue(), "ojs_job_held"),
    "overrun jobs": (Job.objects.overrun(), "ojs_job_held"),
    "due jobs": (Job.objects.due().order_by("scheduled_at")[:1000], "ojs_job_due"),
    "jobs that were not fetched in time": (
        Job.objects.filter(state__in=sorted(WAITING), expires_at__lte=Now()),
        "ojs_job_expires",
    ),
    "finished jobs past their keep": (
        Job.objects.filter(
            finished_at__isnull=False,
            state=State.COMPLETED,
            finished_at__lte=Now() - timedelta(days=7),
        ).order_by("finished_at")[:1000],
        "ojs_job_finished",
    ),
    "the dead letter": (
        Job.objects.dead().order_by("-finished_at", "-pk")[:50],
        "ojs_job_dead",
    ),
    "its page": (DeadJob.objects.order_by("-finished_at", "-pk")[:50], "ojs_job_dead"),
    "its page of one type": (
        DeadJob.objects.filter(type="mail.send").order_by("-finished_at", "-pk")[:50],
        "ojs_job_dead_type",
    ),
    "its page of one queue": (
        DeadJob.objects.filter(queue="queue-1").order_by("-finished_at", "-pk")[:50],
        "ojs_job_dead_queue",
    ),
}


@pytest.mark.parametrize("name", list(CHORES))
def test_no_sweep_reads_the_whole_table(big_table, name):
    jobs, index = CHORES[name]

    found = plan(*compiled(jobs))

    assert indexes(found) == {index}
    assert "Sort" not in found


def test_a_page_of_the_dead_letter_is_read_in_order_from_however_worn_an_index(big_table):
    """Where many dead jobs have come and gone, another index of the dead letter may be smaller."""
    with rolled_back():
        for _ in range(20):
            insert(99_001, 100_000)
        most = Job.objects.dead().order_by("pk").values("pk")[:20_000]
        Job.objects.filter(pk__in=most)._raw_delete(alias())
        with connection.cursor() as cursor:
            cursor.execute("REINDEX INDEX ojs_job_dead_type")
            cursor.execute("ANALYZE ojs_jobs_job")

        found = plan(*compiled(DeadJob.objects.order_by("-finished_at", "-pk")[:50]))

    assert indexes(found) == {"ojs_job_dead"}
    assert "Sort" not in found


def test_counts_above_a_list_and_depths_of_queues_are_read_from_indexes(big_table):
    Queue.objects.bulk_create(Queue(name=f"queue-{number}") for number in range(5))
    names = [f"queue-{number}" for number in range(5)]

    counts = plan_of(dashboard.state_counts, "SELECT (SELECT count(*)")
    depths = plan_of(lambda: dashboard.depths(names), "SELECT queue.name")
    Queue.objects.all().delete()

    assert indexes(counts) == {
        "ojs_job_due",
        "ojs_job_fetchable",
        "ojs_job_finished",
        "ojs_job_pending",
        "ojs_job_held",
    }
    assert indexes(depths) == {"ojs_job_due", "ojs_job_fetchable", "ojs_job_held"}
    assert "Sort Key: ojs_jobs_job.rate_key" not in depths


def test_the_next_job_of_a_queue_and_the_projects_that_wait_are_read_from_its_first_jobs(big_table):
    Queue.objects.create(name="queue-1")

    next_job = plan_of(lambda: dashboard.next_of("queue-1"), "SELECT")
    projects = plan_of(lambda: dashboard.waiting_by_project(["queue-1"]), "SELECT queue.name")
    Queue.objects.all().delete()

    assert indexes(next_job) == {"ojs_job_fetchable", "ojs_jobs_job_pkey"}
    assert indexes(projects) == {"ojs_job_fetchable"}
    assert "Sort Key: u0.rate_key" not in next_job
    assert "Sort Key: job.rate_key" not in projects


def test_what_a_purge_would_delete_is_counted_in_indexes(big_table):
    names = ["q1", "q2", "q3"]

    found = plan_of(lambda: dashboard.waiting(names, most=50_000), "SELECT name")

    assert "Seq Scan on ojs_jobs_job" not in found
    # Which of the two indexes of due jobs depends on how many are in other queues.
    due = indexes(found) - {"ojs_job_fetchable", "ojs_job_pending"}
    assert due and due <= {"ojs_job_due", "ojs_job_due_queue"}


def test_the_children_of_a_job_are_found_by_their_index(big_table):
    found = plan_of(lambda: list(engine.children_of([str(uuid7()), str(uuid7())])), "SELECT")

    assert indexes(found) == {"ojs_job_parent"}


def test_the_first_children_of_a_job_are_found_without_looking_at_others(big_table):
    found = plan_of(lambda: list(engine.children_of([str(uuid7())])[:21]), "SELECT")

    assert indexes(found) == {"ojs_job_parent"} and "Sort" not in found


NOT_HEAP_ONLY = """
    SELECT sum(pg_stat_get_xact_tuples_updated(oid) - pg_stat_get_xact_tuples_hot_updated(oid))
      FROM pg_class
     WHERE relname IN ('ojs_jobs_job', 'ojs_workers_worker')
"""


def test_a_heartbeat_touches_no_column_of_an_index():
    """Otherwise PostgreSQL would rewrite all indexes for each job of each heartbeat."""
    with connection.cursor() as cursor:
        # Pages that other tests have filled have no room for heap-only updates.
        cursor.execute("TRUNCATE ojs_jobs_job, ojs_workers_worker CASCADE")
    WorkerFactory(worker_id="w")
    ids = [str(job.pk) for job in JobFactory.create_batch(3, active=True, reserved_by="w")]
    with connection.cursor() as cursor:
        cursor.execute(NOT_HEAP_ONLY)
        before = cursor.fetchone()

        protocol.beat("w", active_job_ids=ids)

        cursor.execute(NOT_HEAP_ONLY)
        assert cursor.fetchone() == before
