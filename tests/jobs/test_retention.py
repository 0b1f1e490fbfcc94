"""Retention: what is deleted, when, and what is never deleted (dead letter §5, §8)."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.test.utils import CaptureQueriesContext

from jobs import engine
from jobs.engine import retention
from jobs.models import Event, Job, JobError, RefusedFinish
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from tests.database import another_connection, connection
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, ago

DAY = 86_400


def prune() -> int:
    """Prune until nothing is left to prune, as the reaper does; return how many were deleted."""
    total = 0
    while count := engine.prune_jobs():
        total += count
    return total


@pytest.mark.parametrize(
    ("trait", "days"), [("completed", 7), ("cancelled", 7), ("discarded", 30), ("dead", 180)]
)
def test_finished_jobs_are_kept_for_as_long_as_the_defaults_say(db, trait, days):
    kept = JobFactory(**{trait: True}, finished_at=ago(days * DAY - 60))
    JobFactory(**{trait: True}, finished_at=ago(days * DAY + 60))

    assert prune() == 1
    assert list(Job.objects.all()) == [kept]


def test_a_job_whose_workflow_was_deleted_keeps_no_other_from_being_reclaimed(db):
    orphan, other = (
        JobFactory(active=True, attempt=3, max_attempts=3, reserved_until=ago(1), followed=True)
        for _ in range(2)
    )
    Job.objects.filter(pk=orphan.pk).update(workflow=uuid7(), workflow_index=0)

    engine.expire()

    states = Job.objects.filter(pk__in=[orphan.pk, other.pk]).values_list("state", flat=True)
    assert set(states) == {State.DISCARDED}


def test_each_kind_has_a_keep_of_its_own(db, settings):
    settings.OJS = {
        "COMPLETED_RETENTION": 10,
        "CANCELLED_RETENTION": 20,
        "DISCARDED_RETENTION": 30,
        "DEAD_LETTER_RETENTION": 40,
    }
    for trait in ("completed", "cancelled", "discarded", "dead"):
        for age in (15, 25, 35):
            JobFactory(**{trait: True}, type=f"{trait} {age}", finished_at=ago(age))

    prune()

    assert set(Job.objects.values_list("type", flat=True)) == {
        "cancelled 15",
        "discarded 15",
        "discarded 25",
        "dead 15",
        "dead 25",
        "dead 35",
    }


def test_unfinished_jobs_are_kept_for_ever(db):
    ancient = {"created_at": ago(1000 * DAY), "enqueued_at": ago(1000 * DAY)}
    for trait in ({}, {"scheduled": True}, {"pending": True}, {"retryable": True}):
        JobFactory(**trait, **ancient)
    JobFactory(active=True, started_at=ago(1000 * DAY), **ancient)

    assert prune() == 0
    assert Job.objects.count() == 5


def test_the_dead_letter_outgrows_its_limit_and_loses_the_oldest(db, settings):
    settings.OJS = {"DEAD_LETTER_MAX": 3}
    for age in range(5):
        JobFactory(dead=True, type=f"dead {age}", finished_at=ago(age * 60 + 1))
    JobFactory(discarded=True, type="discarded", finished_at=ago(DAY))

    assert prune() == 2

    assert set(Job.objects.values_list("type", flat=True)) == {
        "dead 0",
        "dead 1",
        "dead 2",
        "discarded",
    }


def test_a_deleted_jobs_errors_go_with_it(db):
    old, new = JobFactory(dead=True, finished_at=ago(200 * DAY)), JobFactory(dead=True)
    JobErrorFactory.create_batch(3, job=old)
    JobErrorFactory(job=new)

    prune()

    assert [error.job for error in JobError.objects.all()] == [new]


def test_a_batch_is_bounded(db):
    Job.objects.bulk_create(
        Job(
            created_at=ago(9 * DAY),
            enqueued_at=ago(9 * DAY),
            state=State.COMPLETED,
            finished_at=ago(8 * DAY),
        )
        for _ in range(1001)
    )

    assert [engine.prune_jobs(), engine.prune_jobs(), engine.prune_jobs()] == [1000, 1, 0]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="about locks of rows")
def test_retention_waits_for_nobody(transactional_db):
    """Whoever has locked a job may be about to retry it."""
    locked, *_ = [
        JobFactory(dead=True, dead_letter=False, finished_at=ago(days * DAY))
        for days in (402, 401, 400)
    ]

    with another_connection() as operator:
        operator.execute("SELECT 1 FROM ojs_jobs_job WHERE id = %s FOR UPDATE", [locked.pk])
        assert prune() == 2
        assert Job.objects.get() == locked

    assert prune() == 1


@pytest.mark.parametrize(
    ("delete", "add"),
    [
        (engine.prune_jobs, lambda age: JobFactory(completed=True, finished_at=ago(age))),
        (engine.prune_jobs, lambda age: JobFactory(dead=True, finished_at=ago(age))),
        (
            engine.prune_results,
            lambda age: JobFactory(
                completed=True,
                finished_at=ago(age),
                result=1,
                result_ttl=timedelta(days=300),
            ),
        ),
    ],
    ids=["jobs", "dead", "results"],
)
def test_a_pass_goes_on_where_it_was_and_the_next_one_begins_anew(db, monkeypatch, delete, add):
    monkeypatch.setattr(retention, "BATCH_SIZE", 2)
    monkeypatch.setattr(retention, "SHARE", 0)
    for age in range(400, 404):
        add(age * DAY)

    with engine.in_one_pass():
        first = delete()
        add(500 * DAY)  # its transaction took long
        assert [first, delete(), delete()] == [2, 2, 0]
    with engine.in_one_pass():
        assert [delete(), delete()] == [1, 0]


def test_the_longer_a_look_at_the_oldest_takes_the_later_the_next_one_is(db, monkeypatch):
    clock = [0.0]
    delete = retention._delete_oldest

    def slowly(jobs, by):
        clock[0] += 2
        return delete(jobs, by)

    def prune_in_one_pass() -> int:
        with engine.in_one_pass():
            return prune()

    monkeypatch.setattr(retention, "_delete_oldest", slowly)
    monkeypatch.setattr(retention.time, "monotonic", lambda: clock[0])
    for age in (402, 401):
        JobFactory(completed=True, finished_at=ago(age * DAY))
    assert prune_in_one_pass() == 2
    late = JobFactory(completed=True, finished_at=ago(403 * DAY))  # its transaction took long
    JobFactory(completed=True, finished_at=ago(400 * DAY))

    assert prune_in_one_pass() == 1
    assert Job.objects.get() == late

    clock[0] += retention.SHARE * 2
    assert prune_in_one_pass() == 1


def test_a_pass_looks_once_for_what_is_not_there(db):
    JobFactory(completed=True, finished_at=ago(400 * DAY))
    JobFactory.create_batch(3, dead=True, finished_at=ago(400 * DAY))

    with engine.in_one_pass(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(retention, "BATCH_SIZE", 2)
        looked_for = looks(patch)
        assert [engine.prune_jobs() for _ in range(4)] == [1, 2, 1, 0]

    assert looked_for == ["completed", "cancelled", "discarded", "dead", "dead"]


def looks(patch: pytest.MonkeyPatch) -> list[str]:
    """The states of finished jobs that are looked for from now on, one for each query."""
    found = []
    batch = retention._batch

    def noted(rows, by, kind, *take):
        if retention._ended.get().get(kind) is not retention.NOTHING_LEFT:
            found.append(str(kind))
        return batch(rows, by, kind, *take)

    patch.setattr(retention, "_batch", noted)
    return found


@pytest.mark.parametrize(
    ("name", "period"), [("short", "PT1H"), ("others", "P365D")], ids=["shorter", "longer"]
)
def test_a_queue_with_its_own_retention_is_not_looked_for_among_all_jobs_each_time(
    db, name, period
):
    """Neither its jobs among all others, nor others among those that it keeps for longer."""
    QueueFactory(
        name="short" if name == "short" else "long", config={"retention": {"completed": period}}
    )
    edge = 3600 if name == "short" else 7 * DAY
    old = {"completed": True, "queue": name}
    JobFactory(**old, finished_at=ago(edge + 1))
    assert prune() == 1

    JobFactory(**old, finished_at=ago(edge + 240))
    assert prune() == 1, "its transaction may have been open until now"
    JobFactory(**old, finished_at=ago(edge + 2 * 3600))
    assert prune() == 0, "what was looked at is not read again"
    retention.forget_looks()
    assert prune() == 1, "but once in an hour, and by each new process"


def test_a_pass_looks_for_the_jobs_of_a_queue_through_so_many_of_all_and_the_next_goes_on(
    db, monkeypatch
):
    monkeypatch.setattr(retention, "WINDOW", 3)
    for name in ("short", "brief"):
        QueueFactory(name=name, config={"retention": {"completed": "PT1H"}})
    finished_at_once = ago(5 * 3600)
    for _ in range(5):
        JobFactory(completed=True, queue="others", finished_at=finished_at_once)
    for hours, queue in ((4, "short"), (3.5, "brief"), (3, "brief"), (2, "others"), (1.5, "short")):
        JobFactory(completed=True, queue=queue, finished_at=ago(hours * 3600))

    def passes() -> int:
        with engine.in_one_pass():
            return prune()

    assert [passes() for _ in range(4)] == [0, 3, 1, 0]
    assert Job.objects.filter(queue="others").count() == 6


def test_a_pass_goes_on_among_the_same_while_there_are_more_than_a_batch(db, monkeypatch):
    monkeypatch.setattr(retention, "BATCH_SIZE", 2)
    QueueFactory(name="short", config={"retention": {"completed": "PT1H"}})
    JobFactory.create_batch(5, completed=True, queue="short", finished_at=ago(5 * 3600))

    with engine.in_one_pass(), CaptureQueriesContext(connection) as made:
        assert [engine.prune_jobs() for _ in range(4)] == [2, 2, 1, 0]

    ends = [query["sql"] for query in made if f"OFFSET {retention.WINDOW}" in query["sql"]]
    assert len(ends) == 1, "the end of the window is looked for once"


def test_an_hour_later_a_queue_is_looked_for_from_the_oldest_on(db, monkeypatch):
    time = [0.0]
    monkeypatch.setattr(retention.time, "monotonic", lambda: time[0])
    QueueFactory(name="short", config={"retention": {"completed": "PT1H"}})
    assert prune() == 0
    JobFactory(completed=True, queue="short", finished_at=ago(5 * 3600))
    assert prune() == 0

    time[0] += retention.ALL_AGAIN

    assert [engine.prune_jobs(), engine.prune_jobs()] == [0, 1]


def test_events_and_refused_finishes_are_kept_for_a_week(db):
    for days in (6, 8):
        Event.objects.create(type="job.enqueued", subject=f"{days} days", time=ago(days * DAY))
        RefusedFinish.objects.create(
            job_id=uuid7(),
            operation="ack",
            worker_id=f"{days} days",
            state=State.COMPLETED,
            refused_at=ago(days * DAY),
        )

    assert engine.prune_events() == 2

    assert [event.subject for event in Event.objects.all()] == ["6 days"]
    assert [refusal.worker_id for refusal in RefusedFinish.objects.all()] == ["6 days"]
    assert engine.prune_events() == 0


@pytest.mark.skipif(connection.vendor == "postgresql", reason="about other databases")
def test_only_postgresql_has_partitions_of_events(db):
    with pytest.raises(
        CommandError, match=r"^Only PostgreSQL can partition the record of events\.$"
    ):
        call_command("partitionevents")

    assert engine.event_partitions.make_ahead() == 0
