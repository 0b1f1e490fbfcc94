"""The portable store and that for Citus, on PostgreSQL: where its own statements are refused."""

from __future__ import annotations

import re
import threading
from datetime import timedelta

import pytest
from django.core.checks import run_checks
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import engine
from jobs.engine import Completion
from jobs.models import Event, Job, JobError
from jobs.record import events
from jobs.spec.validation import new_job
from jobs.store import event_order, wakeup
from tests.database import another_connection, connection
from tests.factories import JobFactory, WorkerFactory, ago
from tests.processes import PATIENCE
from workers.chores.reaper import declare_dead_workers

TRIGGER = "ALTER TABLE ojs_jobs_event {} TRIGGER ojs_jobs_event_writer"


STORES = ["portable", pytest.param("citus", marks=pytest.mark.postgres)]


@pytest.fixture(autouse=True, params=STORES)
def store(settings, request):
    settings.OJS = {"STORE": request.param, "WAIT_POLL_INTERVAL": 10 * PATIENCE}


def found(settings, choice):
    settings.OJS = {"STORE": choice}
    return [problem.msg for problem in run_checks() if problem.id == "ojs.E030"]


def test_a_store_that_does_not_exist_is_reported(settings):
    (message,) = found(settings, "oracle")

    assert "'auto', 'postgresql', 'citus', 'portable'" in message


@pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite")
@pytest.mark.parametrize("store", ["postgresql", "citus"])
def test_a_store_for_postgresql_is_refused_on_sqlite(settings, store):
    (message,) = found(settings, store)

    assert "not PostgreSQL" in message


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres
def test_another_process_hears_of_a_job():
    with another_connection(autocommit=True) as other:
        ((channel,),) = other.execute(f"SELECT {wakeup.CHANNEL}").fetchall()
        other.execute(f"LISTEN {channel}")
        other.execute(wakeup.LISTEN, ["another:1"])

        engine.enqueue([new_job({"type": "email.send", "args": []}, timezone.now())])

        (heard,) = other.notifies(timeout=PATIENCE, stop_after=1)
        other.execute(wakeup.FORGET, ["another:1"])
    assert (heard.channel, heard.payload) == ("ojs_jobs", "default")


@pytest.mark.django_db
@pytest.mark.postgres
def test_an_insert_reads_a_table_and_calls_only_what_is_immutable():
    """Else Citus copies the rows to the node, which takes a commit of two phases."""
    with CaptureQueriesContext(connection) as queries:
        jobs = [new_job({"type": "a", "args": [n]}, timezone.now()) for n in range(3)]
        engine.enqueue(jobs)
        engine.claim(["default"], worker_id="w", count=2)
        engine.complete([Completion(job.id, "w") for job in jobs])

    inserts = [each["sql"] for each in queries if "INSERT" in each["sql"]]
    # One row of values goes to the node as it is.
    selecting = [insert for insert in inserts if "VALUES" not in insert]
    assert len(selecting) == 4
    for insert in selecting:
        assert re.search(r"FROM \(SELECT count\(\*\) FROM \(SELECT 1 FROM \"ojs_jobs_", insert)
        called = set(re.findall(r"\b([a-z_]+)\((?!\d+\))", re.sub("'[^']*'", "", insert)))
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT proname, min(provolatile), max(provolatile) FROM pg_proc"
                " WHERE proname = ANY(%s) GROUP BY proname",
                [list(called)],
            )
            found = cursor.fetchall()
        assert {name for name, *_ in found} >= {"count", "unnest"}
        assert {kind for _, *kinds in found for kind in kinds} == {"i"}, found


@pytest.mark.django_db(transaction=True)
@pytest.mark.postgres
def test_two_workers_never_get_the_same_job():
    JobFactory.create_batch(8)
    together, got = threading.Barrier(2), []

    def fetch(worker_id):
        together.wait(PATIENCE)
        for _ in range(4):
            got.extend(job.id for job in engine.claim(["default"], worker_id=worker_id, count=2))
        connection.close()

    workers = [threading.Thread(target=fetch, args=[name]) for name in ("w-1", "w-2")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    assert len(got) == len(set(got)) == 8
    assert Job.objects.active().count() == 8


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["citus"], indirect=True)
def test_no_statement_for_citus_is_one_that_it_refuses(db):
    """A row inserted beside an updated one; a function of the clock where a column is updated."""
    due = JobFactory(scheduled=True, scheduled_at=ago(1), visibility_timeout=timedelta(seconds=9))
    job = new_job({"type": "email.send", "args": []}, timezone.now())

    with CaptureQueriesContext(connection) as made:
        engine.enqueue([job])
        for pool in ("", "fast"):
            claimed = engine.claim(["default"], worker_id="w-1", count=2, pool=pool)
            engine.complete([Completion(each.id, worker_id="w-1") for each in claimed])

    assert Job.objects.filter(state="completed").count() == 2
    assert Job.objects.get(pk=due.pk).started_at is not None
    for statement in (query["sql"] for query in made):
        assert not ("UPDATE ojs_jobs_job" in statement and "INSERT" in statement)
        assert not ("UPDATE ojs_jobs_job" in statement and "statement_timestamp" in statement)
        assert not ("INTO ojs_jobs_job" in statement and "pg_notify" in statement)


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["citus"], indirect=True)
def test_dead_workers_are_declared_by_a_statement_that_citus_takes(db):
    """No function of the clock, or of the time zone, in a CASE or with a column."""
    WorkerFactory(silent=True)

    with CaptureQueriesContext(connection) as made:
        assert declare_dead_workers() == 1

    (update,) = (query["sql"] for query in made if query["sql"].startswith("UPDATE"))
    changes, where = update.split(" WHERE ", 1)
    assert "TIMESTAMP()" not in changes
    assert '(STATEMENT_TIMESTAMP() - "ojs_workers_worker"."last_heartbeat_at")' in where
    assert where.count("STATEMENT_TIMESTAMP") == 1


@pytest.mark.postgres
def test_nothing_is_prepared_because_citus_refuses_some_of_that(transactional_db):
    job = JobFactory(active=True, reserved_by="worker-1", reserved_until=ago(1))
    before = prepared()

    assert engine.expire() == 1

    assert JobError.objects.get().job_id == job.pk
    assert prepared() == before


def prepared():
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM pg_prepared_statements")
        return set(cursor.fetchall())


def test_a_list_of_acks_takes_as_many_statements_as_two(db):
    def ack(count: int) -> int:
        jobs = JobFactory.create_batch(count, active=True, reserved_by="worker-1")
        with CaptureQueriesContext(connection) as statements:
            engine.complete([Completion(job.pk, worker_id="worker-1") for job in jobs])
        assert Job.objects.active().count() == 0
        return len(statements)

    ack(1)  # the first statement of a connection may ask more
    assert ack(20) == ack(2)


@pytest.fixture
def no_trigger(transactional_db):
    """As in a table that Citus distributed."""
    with connection.cursor() as cursor:
        cursor.execute(TRIGGER.format("DISABLE"))
    yield
    with connection.cursor() as cursor:
        cursor.execute(TRIGGER.format("ENABLE"))


@pytest.mark.postgres
def test_without_the_trigger_no_event_is_skipped_either(no_trigger, monkeypatch):
    """One that is written first and committed last is not overtaken by a reader."""
    monkeypatch.setattr(event_order, "_has_trigger", lambda alias: False)
    JobFactory()
    events.record([events.queue_event("queue.paused", "before")])
    written, may_commit = threading.Event(), threading.Event()

    def slow():
        from tests.database import atomic

        with atomic():
            events.record([events.queue_event("queue.paused", "slow")])
            written.set()
            may_commit.wait(PATIENCE)
        connection.close()

    writer = threading.Thread(target=slow)
    writer.start()
    assert written.wait(PATIENCE)
    events.record([events.queue_event("queue.paused", "quick")])

    seen = list(events.settled().values_list("subject", flat=True))
    may_commit.set()
    writer.join()

    assert seen == ["before"]
    assert list(events.settled().values_list("subject", flat=True)) == ["before", "slow", "quick"]
    assert Event.objects.count() == 3
