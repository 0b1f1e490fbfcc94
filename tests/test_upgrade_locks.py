"""An upgrade beside running servers: no statement keeps them from writing for long."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from django.db import IntegrityError

from jobs.models import Job
from jobs.store.indexes import AddIndexConcurrently
from tests import processes
from tests.database import atomic, connection, migrate
from tests.factories import JobFactory

ROWS = 50_000
CONDITIONS = """
    SELECT conname, convalidated
      FROM pg_constraint
     WHERE contype = 'c' AND conrelid = ANY(%s::regclass[])
"""
IN_USE = ("ojs_jobs_job", "ojs_jobs_event")
STATES = {"ojs_job_active_is_reserved", "ojs_job_terminal_is_finished"}


def conditions(*tables: str) -> dict[str, bool]:
    """The conditions of these tables → whether they hold for the rows from before, too."""
    with connection.cursor() as cursor:
        cursor.execute(CONDITIONS, [list(tables)])
        return dict(cursor.fetchall())


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.one_database
@pytest.mark.django_db(transaction=True)
def test_no_migration_reads_or_rewrites_a_large_table_that_it_has_locked(database_url, tmp_path):
    """Such a lock lasts as long as the table is large: seconds for ten million jobs.

    All others last as long as it takes to change the catalog.
    """
    with processes.empty_database(database_url) as url:
        done = subprocess.run(
            [sys.executable, "-m", "tests.upgrade_locks", str(ROWS)],
            cwd=processes.ROOT,
            env=processes.environment(url),
            capture_output=True,
            text=True,
            timeout=4 * processes.PATIENCE,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    locked = [json.loads(line) for line in done.stdout.splitlines()]

    assert "ojs_jobs_job" in {line["table"] for line in locked}, "nothing was seen"
    assert [line for line in locked if line["rows"] or line["rewritten"]] == []


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_an_upgrade_replaces_the_longer_conditions_even_if_it_was_interrupted(at_the_newest):
    migrate("0037_pending_release")
    with connection.cursor() as cursor:
        for name in STATES:
            cursor.execute(f"ALTER TABLE ojs_jobs_job DROP CONSTRAINT {name}")
            cursor.execute(
                f"ALTER TABLE ojs_jobs_job ADD CONSTRAINT {name} CHECK (attempt >= 0) NOT VALID"
            )
        for table in IN_USE:
            cursor.execute(f"ALTER TABLE {table} ADD CHECK (attempt >= 0)")
    assert set(conditions(*IN_USE)) > STATES

    migrate("0038_plain_conditions")

    assert conditions(*IN_USE) == dict.fromkeys(STATES, True)
    job = JobFactory()
    with pytest.raises(IntegrityError), atomic():
        Job.objects.filter(pk=job.pk).update(state="completed")


@pytest.mark.postgres
@pytest.mark.django_db
def test_nothing_is_asked_of_a_worker_each_time_it_is_written():
    assert conditions("ojs_workers_worker") == {}


@pytest.mark.django_db(transaction=True)
def test_an_index_that_is_there_already_is_left_alone():
    (index,) = (index for index in Job._meta.indexes if index.name == "ojs_job_pending")

    make(index)

    assert is_valid(index.name)


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_an_index_whose_build_was_interrupted_is_made_anew():
    (index,) = (index for index in Job._meta.indexes if index.name == "ojs_job_pending")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'ojs_job_pending'::regclass"
        )
    assert not is_valid(index.name)

    make(index)

    assert is_valid(index.name)


def make(index):
    from django.db.migrations.state import ProjectState

    state = ProjectState.from_apps(Job._meta.apps)
    with connection.schema_editor(atomic=False) as editor:
        AddIndexConcurrently("job", index).database_forwards("ojs_jobs", editor, state, state)


def is_valid(name):
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("SELECT count(*) FROM sqlite_master WHERE name = %s", [name])
        else:
            cursor.execute(
                "SELECT count(*) FROM pg_index WHERE indexrelid = %s::regclass AND indisvalid",
                [name],
            )
        return bool(cursor.fetchone()[0])
