"""SQL that Django lacks, the same on both databases."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import BigIntegerField, DateTimeField, DurationField, F, Q
from django.test.utils import CaptureQueriesContext

from jobs.models import Dependency, Event, Job, JobError
from jobs.store.database import alias
from jobs.store.expressions import Among, Each, TextAt
from tests.database import connection
from tests.factories import JobErrorFactory, JobFactory, WorkerFactory, ago
from workers.models import Worker


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


def test_texts_may_contain_what_an_array_is_written_with(db):
    subjects = ["plain", "a,b", 'say "so"', "back\\slash", "NULL", "{x}", ""]
    for subject in [*subjects, "a", "b", "x"]:
        Event.objects.create(type="job.started", subject=subject, time=ago(0))

    found = Event.objects.filter(Among("subject", subjects)).order_by("pk")

    assert list(found.values_list("subject", flat=True)) == subjects


def test_a_text_that_is_too_long_is_not_the_one_that_fits(db):
    Event.objects.create(type="job.started", subject="x" * 255, time=ago(0))

    assert not Event.objects.filter(Among("subject", ["x" * 256])).exists()
    assert Event.objects.filter(Among("subject", ["x" * 255])).exists()


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


def test_each_row_gets_its_own_moment_and_period(db):
    first, second, other = JobFactory.create_batch(3)
    moments = {first.pk: ago(1), second.pk: ago(0) + timedelta(days=40, microseconds=1)}
    periods = {first.pk: timedelta(microseconds=1), second.pk: timedelta(days=2, seconds=0.5)}

    Job.objects.exclude(pk=other.pk).update(
        scheduled_at=Each(moments, DateTimeField()), retry_delay=Each(periods, DurationField())
    )

    found = {job.pk: (job.scheduled_at, job.retry_delay) for job in Job.objects.all()}
    assert found == {
        first.pk: (moments[first.pk], periods[first.pk]),
        second.pk: (moments[second.pk], periods[second.pk]),
        other.pk: (other.scheduled_at, other.retry_delay),
    }


def test_each_row_gets_its_own_number_whatever_its_key_is(db):
    names = ["plain", 'say "so".x', "back\\slash", "$", "ümlaut", "it's"]
    for name in names:
        WorkerFactory(worker_id=name, jobs_done=2**40)

    numbers = {name: number for number, name in enumerate(names)}
    Worker.objects.update(jobs_done=F("jobs_done") + Each(numbers, BigIntegerField()))

    found = dict(Worker.objects.values_list("pk", "jobs_done"))
    assert found == {name: 2**40 + number for name, number in numbers.items()}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (["0"], "plain"),
        (["1", "0"], "a member"),
        (["1", "a,b"], "1.5"),
        (["1", 'say "so"'], "true"),
        (["1", "back\\slash"], "deep"),
        (["1", "{x}", "1"], "2"),
        (["1", "$.y"], None),
        (["1", "nothing"], None),
        (["0", "0"], None),
        (["9"], None),
        (["2147483648"], None),
    ],
)
def test_a_text_is_read_from_a_path_of_names_and_indexes(db, path, found):
    odd = {"0": "a member", "a,b": 1.5, 'say "so"': True, "back\\slash": "deep"}
    JobFactory(args=["plain", odd | {"{x}": [1, 2], "nothing": None}])

    assert Job.objects.values_list(TextAt("args", path), flat=True).get() == found
