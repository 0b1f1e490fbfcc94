"""What refers to a job goes with it, and no foreign key is needed for that."""

from __future__ import annotations

import pytest
from django.test.utils import CaptureQueriesContext

from jobs.engine import Line, retention, write_lines
from jobs.models import Dependency, Job, JobError, JobLog, ProgressReport
from jobs.store import locks, references
from jobs.store.database import atomic
from jobs.store.locks import Busy
from tests.database import another_connection, connection, migrate
from tests.factories import JobErrorFactory, JobFactory, WorkerFactory, ago

REFERRING = (JobError, JobLog, ProgressReport, Dependency)
KEYS = """
    SELECT conname
      FROM pg_constraint
     WHERE contype = 'f' AND confrelid = 'ojs_jobs_job'::regclass
"""
WAITS_FOR_IT, IT_WAITS_FOR = "waits for it", "it waits for"


def finished_job_with_all_that_can_refer_to_it() -> Job:
    now = ago(0)
    job = JobFactory(type="this", completed=True)
    JobErrorFactory(job=job)
    JobLog.objects.create(job=job, kind="log", message="Half of it.", attempt=1)
    ProgressReport.objects.create(job=job, attempt=1, value=0.5, updated_at=now, told_at=now)
    Dependency.objects.create(waiter=JobFactory(type=WAITS_FOR_IT), predecessor=job)
    Dependency.objects.create(waiter=job, predecessor=JobFactory(type=IT_WAITS_FOR))
    return job


def delete(job: Job) -> None:
    with atomic():
        retention.erase([job.pk])


def delete_what_is_old(job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(finished_at=ago(10**8))
    retention.prune_jobs()


def left() -> list[int]:
    return [model.objects.count() for model in REFERRING]


def keys() -> set[str]:
    with connection.cursor() as cursor:
        cursor.execute(KEYS)
        return {name for (name,) in cursor.fetchall()}


def add_keys(action: str) -> None:
    """The foreign keys of an earlier release."""
    with connection.cursor() as cursor:
        for field in references.references(Job):
            table = field.model._meta.db_table
            cursor.execute(
                f"ALTER TABLE {table} ADD CONSTRAINT {table}_{field.column}"
                f" FOREIGN KEY ({field.column}) REFERENCES ojs_jobs_job (id) {action}"
                " DEFERRABLE INITIALLY DEFERRED"
            )


@pytest.mark.parametrize("delete", [delete, delete_what_is_old])
def test_whatever_refers_to_a_deleted_job_is_deleted_and_nothing_else(db, delete):
    other = finished_job_with_all_that_can_refer_to_it()
    job = finished_job_with_all_that_can_refer_to_it()
    assert left() == [2, 2, 2, 4]

    delete(job)

    assert left() == [1, 1, 1, 2]
    assert set(Dependency.objects.filter(waiter=other).values_list("waiter", flat=True)) == {
        other.pk
    }
    assert set(Job.objects.values_list("type", flat=True)) == {"this", WAITS_FOR_IT, IT_WAITS_FOR}


def test_every_field_that_refers_to_a_job_is_known(db):
    known = {(field.model, field.name) for field in references.references(Job)}

    assert known == {
        (JobError, "job"),
        (JobLog, "job"),
        (ProgressReport, "job"),
        (Dependency, "waiter"),
        (Dependency, "predecessor"),
    }


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("action", ["", "ON DELETE CASCADE"])
@pytest.mark.parametrize("delete", [delete, delete_what_is_old])
def test_with_the_keys_of_an_earlier_release_it_is_deleted_as_well(at_the_newest, action, delete):
    migrate("0035_cascades")
    add_keys(action)
    job = finished_job_with_all_that_can_refer_to_it()

    delete(job)
    assert left() == [0, 0, 0, 0]

    migrate("0036_no_keys_to_jobs")
    assert keys() == set()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_migration_that_was_interrupted_goes_on(at_the_newest, monkeypatch):
    migrate("0035_cascades")
    add_keys("ON DELETE CASCADE")
    alter, done = references.alter, []

    def die_once(database: object, statement: str) -> None:
        alter(database, statement)
        done.append(statement)
        if len(done) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(references, "alter", die_once)
    with pytest.raises(KeyboardInterrupt):
        migrate("0036_no_keys_to_jobs")
    assert len(keys()) == 3
    migrate("0036_no_keys_to_jobs")

    assert keys() == set()


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_migration_waits_until_nobody_else_uses_the_tables_and_holds_nobody_up(
    at_the_newest, monkeypatch
):
    migrate("0035_cascades")
    add_keys("ON DELETE CASCADE")
    with another_connection() as other:
        other.execute("LOCK TABLE ojs_jobs_job IN ROW EXCLUSIVE MODE")  # as every writer does
        pauses = []

        def pause() -> None:
            pauses.append(1)
            if len(pauses) == 2:
                other.rollback()

        monkeypatch.setattr(locks, "_pause", pause)
        monkeypatch.setattr(locks, "LOCK_TIMEOUT", "10ms")
        migrate("0036_no_keys_to_jobs")
        assert len(pauses) == 2

        migrate("0035_cascades")
        add_keys("ON DELETE CASCADE")
        other.execute("LOCK TABLE ojs_jobs_job IN ROW EXCLUSIVE MODE")
        monkeypatch.setattr(locks, "TRIES", 2)
        monkeypatch.setattr(locks, "_pause", lambda: None)
        with pytest.raises(Busy):
            migrate("0036_no_keys_to_jobs")
        other.rollback()


@pytest.mark.postgres
def test_the_job_of_a_log_line_is_locked_so_that_none_outlives_it(db):
    worker = WorkerFactory()
    job = JobFactory(active=True, reserved_by=worker.pk)

    with CaptureQueriesContext(connection) as queries:
        assert write_lines(worker.pk, [Line(job.pk, "Half of it.")]) == 1

    read = next(query["sql"] for query in queries if 'FROM "ojs_jobs_job"' in query["sql"])
    assert read.endswith("FOR UPDATE")
