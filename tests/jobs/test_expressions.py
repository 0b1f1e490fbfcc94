"""SQL that Django lacks, the same on both databases."""

from __future__ import annotations

import pytest
from django.db.models import Q
from django.test.utils import CaptureQueriesContext

from jobs.models import Dependency, Event, Job, JobError
from jobs.store.database import alias
from jobs.store.expressions import Among
from tests.database import connection
from tests.factories import JobErrorFactory, JobFactory, ago


def test_among_finds_the_rows_with_these_ids_and_no_others(db):
    wanted, other = JobFactory.create_batch(2), JobFactory()

    found = Job.objects.filter(Among("pk", [job.pk for job in wanted]))

    assert set(found) == set(wanted)
    assert Job.objects.exclude(Among("pk", [job.pk for job in wanted])).get() == other


def test_among_follows_a_foreign_key_and_combines(db):
    errors = [JobErrorFactory(), JobErrorFactory()]
    edge = Dependency.objects.create(
        waiter=JobFactory(), predecessor=errors[0].job, position=0, condition=Dependency.SUCCESS
    )

    jobs = {error.job_id for error in errors[:1]}  # any collection will do

    assert JobError.objects.filter(Among("job", jobs)).get() == errors[0]
    assert Dependency.objects.get(Q(Among("predecessor", jobs)) | Q(Among("waiter", jobs))) == edge


def test_among_takes_numbers(db):
    events = [
        Event.objects.create(type="job.enqueued", subject=str(n), time=ago(n)) for n in range(3)
    ]

    Event.objects.filter(Among("pk", [event.pk for event in events[:2]])).delete()

    assert Event.objects.get() == events[2]


def test_among_no_ids_is_no_row_and_no_query(db):
    JobFactory()

    with CaptureQueriesContext(connection) as queries:
        assert not Job.objects.filter(Among("pk", [])).exists()
        assert Job.objects.filter(Among("pk", [])).update(queue="other") == 0

    assert not len(queries)


@pytest.mark.postgres
def test_on_postgresql_the_ids_are_one_parameter(db):
    jobs = Job.objects.filter(Among("pk", [JobFactory().pk, JobFactory().pk]))

    _, parameters = jobs.query.get_compiler(alias()).as_sql()

    assert len(parameters) == 1
