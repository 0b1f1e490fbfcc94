"""What refers to a job goes with it: by PostgreSQL's foreign keys, or before it."""

from __future__ import annotations

import pytest
from django.test.utils import CaptureQueriesContext

from jobs.engine import retention
from jobs.models import Dependency, Job, JobError, JobLog, ProgressReport
from jobs.store import cascades
from jobs.store.database import atomic
from jobs.store.locks import Busy
from tests.database import another_connection, connection, migrate
from tests.factories import JobErrorFactory, JobFactory, ago

REFERRING = (JobError, JobLog, ProgressReport, Dependency)
KEYS = """
    SELECT conrelid::regclass::text, confdeltype, convalidated, condeferred
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


def left() -> list[int]:
    return [model.objects.count() for model in REFERRING]


def keys() -> list[tuple]:
    with connection.cursor() as cursor:
        cursor.execute(KEYS)
        return list(cursor.fetchall())


def test_whatever_refers_to_a_deleted_job_is_deleted_and_nothing_else(db):
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
    known = {(field.model, field.name) for field in cascades.references(Job)}

    assert known == {
        (JobError, "job"),
        (JobLog, "job"),
        (ProgressReport, "job"),
        (Dependency, "waiter"),
        (Dependency, "predecessor"),
    }


@pytest.mark.postgres
def test_postgresql_deletes_it_without_a_statement_for_each_table(db):
    job = finished_job_with_all_that_can_refer_to_it()

    with CaptureQueriesContext(connection) as queries:
        delete(job)

    deletions = [query["sql"] for query in queries if query["sql"].startswith("DELETE")]
    assert not [sql for sql in deletions for model in REFERRING if model._meta.db_table in sql]
    assert left() == [0, 0, 0, 0]


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_with_the_keys_of_an_earlier_release_it_is_deleted_as_well(at_the_newest):
    migrate("0034_vacuum_pace")
    assert {(action, valid) for _, action, valid, _ in keys()} == {("a", True)}
    job = finished_job_with_all_that_can_refer_to_it()

    delete(job)
    assert left() == [0, 0, 0, 0]

    migrate("0035_cascades")
    assert len(keys()) == 5
    assert {key[1:] for key in keys()} == {("c", True, True)}


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_not_there_can_still_not_be_referred_to(at_the_newest):
    from django.db import IntegrityError

    job = finished_job_with_all_that_can_refer_to_it()
    delete(job)

    with pytest.raises(IntegrityError):
        JobErrorFactory(job=Job(pk=job.pk))


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("step", ["NOT VALID", "VALIDATE", "DROP"])
def test_a_migration_that_was_interrupted_goes_on(at_the_newest, monkeypatch, step):
    migrate("0034_vacuum_pace")
    finished_job_with_all_that_can_refer_to_it()
    do, done = cascades._do, []

    def die_once(database: object, statement: str) -> None:
        do(database, statement)
        if step in statement:
            done.append(statement)
            if len(done) == 2:  # one key is done, the others are not
                raise KeyboardInterrupt

    monkeypatch.setattr(cascades, "_do", die_once)
    with pytest.raises(KeyboardInterrupt):
        migrate("0035_cascades")
    migrate("0035_cascades")

    assert {key[1:] for key in keys()} == {("c", True, True)}


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_migration_waits_until_nobody_else_uses_the_tables_and_holds_nobody_up(
    at_the_newest, monkeypatch
):
    migrate("0034_vacuum_pace")
    with another_connection() as other:
        other.execute("LOCK TABLE ojs_jobs_job IN ROW EXCLUSIVE MODE")  # as every writer does
        pauses = []

        def pause() -> None:
            pauses.append(1)
            if len(pauses) == 2:
                other.rollback()

        monkeypatch.setattr(cascades, "_pause", pause)
        monkeypatch.setattr(cascades, "LOCK_TIMEOUT", "10ms")
        migrate("0035_cascades")
        assert len(pauses) == 2

        migrate("0034_vacuum_pace")
        other.execute("LOCK TABLE ojs_jobs_job IN ROW EXCLUSIVE MODE")
        monkeypatch.setattr(cascades, "TRIES", 2)
        monkeypatch.setattr(cascades, "_pause", lambda: None)
        with pytest.raises(Busy):
            migrate("0035_cascades")
        other.rollback()
