"""Looks for work that are repeated several times a second (`jobs.store.looks`)."""

from __future__ import annotations

import pytest

from jobs.models import Job
from jobs.store import looks
from jobs.store.choice import is_portable
from jobs.store.database import connection
from tests.factories import JobFactory
from workers.chores import reaper

pytestmark = pytest.mark.django_db


def of_the_type():
    return Job.objects.filter(type__startswith="100%").order_by("created_at")


def test_a_look_finds_what_came_after_the_last_one():
    assert not looks.finds(of_the_type)
    JobFactory(type="100")
    assert not looks.finds(of_the_type)
    job = JobFactory(type="100%.sure")
    assert looks.finds(of_the_type)
    job.delete()
    assert not looks.finds(of_the_type)


def test_its_query_is_built_once():
    built = []

    def query():
        built.append(1)
        return Job.objects.overdue()

    for _ in range(3):
        looks.finds(query)

    assert built == [1]


def test_a_round_in_which_nothing_is_due_only_looks():
    """Once for each chore that a round runs: no transaction begins, and no row is locked."""
    # Whether a table has grown depends on the tests before.
    chores = {chore.name for chore in reaper.CHORES if chore.every is None} - {"grown-tables"}
    statements = []

    def note(execute, sql, params, many, context):
        statements.append(sql)
        return execute(sql, params, many, context)

    with connection().execute_wrapper(note):
        reaper.sweep(chores)

    assert 10 < len(statements) <= 20
    assert not [text for text in statements if text.startswith(("SAVEPOINT", "BEGIN", "UPDATE"))]
    locking = [text for text in statements if "FOR UPDATE" in text]
    assert len(locking) == (0 if is_portable() else 1), "the promotion's own"
