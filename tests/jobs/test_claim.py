"""FETCH: which jobs a worker gets, in which order, and the effects on them (worker §6)."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs import engine
from jobs.http.renderers import dumps
from jobs.models import Checkpoint, Event, Job, Queue
from jobs.signals import jobs_claimed
from jobs.spec.envelope import claimed_envelope, envelope
from jobs.spec.identifiers import first_id
from jobs.spec.lifecycle import State
from jobs.spec.timestamps import format_timestamp
from tests.database import atomic, connection
from tests.factories import JobErrorFactory, JobFactory, QueueFactory, ago, ahead

MINUTE = timedelta(minutes=1)


def claim(*queues: str, **options):
    options.setdefault("worker_id", "worker-1")
    return engine.claim(list(queues or ["default"]), **options)


def names(claimed) -> list[str]:
    return [job.type for job in claimed]


def length_of_reservation(job: Job) -> timedelta:
    return job.reserved_until - job.started_at


# Which, and in which order (core §7.2, worker §6.3)


def test_the_oldest_job_comes_first(db):
    JobFactory(type="young", enqueued_at=ago(1))
    JobFactory(type="old", enqueued_at=ago(60))
    JobFactory(type="middle", enqueued_at=ago(30))

    assert names(claim(count=3)) == ["old", "middle", "young"]


def test_age_is_by_the_databases_clock_whatever_the_ids_say(api):
    """An id may come from a client whose clock is wrong."""
    pushed = [api.pushed(id=str(first_id(moment))) for moment in (ahead(3600), ago(3600), ago(0))]

    assert [str(job.id) for job in claim(count=3)] == pushed


def test_a_higher_priority_comes_before_age(db):
    JobFactory(type="old", enqueued_at=ago(60))
    JobFactory(type="low", priority=-1, enqueued_at=ago(90))
    JobFactory(type="high", priority=10, enqueued_at=ago(1))
    JobFactory(type="high and old", priority=10, enqueued_at=ago(2))

    assert names(claim(count=4)) == ["high and old", "high", "old", "low"]


def test_queues_are_visited_in_the_order_given_whatever_the_priorities(db):
    JobFactory(type="second", queue="bulk", priority=100, enqueued_at=ago(60))
    JobFactory(type="first", queue="critical", priority=-100)

    assert names(claim("critical", "bulk", count=2)) == ["first", "second"]


def test_a_queue_is_emptied_before_the_next_is_looked_at(db):
    for number in range(3):
        JobFactory(type=f"critical-{number}", queue="critical")
    JobFactory(type="bulk", queue="bulk", enqueued_at=ago(60))

    assert names(claim("critical", "bulk", count=2)) == ["critical-0", "critical-1"]
    assert names(claim("critical", "bulk", count=2)) == ["critical-2", "bulk"]


def test_a_queue_named_twice_is_visited_once(db):
    JobFactory.create_batch(3)

    assert len(claim("default", "default", count=2)) == 2
    assert len(claim("default", "default", count=2)) == 1


def test_other_queues_are_left_alone(db):
    JobFactory(queue="bulk")

    assert claim("default", "critical") == []


def test_only_types_the_worker_can_run_are_given_to_it(db):
    JobFactory(type="video.render", priority=100)
    JobFactory(type="email.send")
    JobFactory(type="email.bounce")

    assert names(claim(types=["email.send", "email.bounce"], count=5)) == [
        "email.send",
        "email.bounce",
    ]
    assert claim(types=[]) == []
    assert names(claim(types=None)) == ["video.render"]


def test_no_more_than_asked_for(db):
    JobFactory.create_batch(3)

    assert len(claim(count=2)) == 2
    assert len(claim(count=0)) == 0
    assert len(claim(count=2)) == 1
    assert claim(count=2) == []


def test_a_job_is_never_fetched_twice(db):
    JobFactory.create_batch(5)

    first = {job.id for job in claim(count=3, worker_id="worker-1")}
    second = {job.id for job in claim(count=3, worker_id="worker-2")}

    assert len(first) == 3
    assert len(second) == 2
    assert first.isdisjoint(second)


def test_an_expired_job_is_never_run(db):
    """Core §5.2: past `expires_at` when it would be fetched, it MUST NOT be executed."""
    JobFactory(expires_at=ago(1))
    JobFactory(scheduled=True, scheduled_at=ago(2), expires_at=ago(1))
    JobFactory(type="in time", expires_at=ahead(60))

    assert names(claim(count=5)) == ["in time"]


# Due jobs: a fetch does not wait for the reaper


def test_due_jobs_are_fetched_although_not_yet_promoted(db):
    JobFactory(type="retry", retryable=True, scheduled_at=ago(1))
    JobFactory(type="scheduled", scheduled=True, scheduled_at=ago(2))
    JobFactory(type="tomorrow", scheduled=True)

    assert set(names(claim(count=5))) == {"scheduled", "retry"}


def test_a_due_job_became_available_in_passing_and_the_record_says_so(db):
    job = JobFactory(scheduled=True, scheduled_at=ago(60), enqueued_at=ago(3600))

    claim()

    job.refresh_from_db()
    assert timedelta(0) <= job.started_at - job.enqueued_at < MINUTE
    assert list(Event.objects.order_by("id").values_list("type", "subject")) == [
        ("job.enqueued", str(job.pk)),
        ("job.started", str(job.pk)),
    ]


def test_due_jobs_fill_the_places_that_available_ones_leave(db):
    JobFactory(type="due", retryable=True, scheduled_at=ago(60))
    JobFactory.create_batch(2, type="available")

    assert names(claim(count=2)) == ["available", "available"]
    assert names(claim(count=2)) == ["due"]


def test_due_jobs_come_in_the_order_of_the_queues_as_well(db):
    JobFactory(type="available", queue="second")
    JobFactory(type="due", queue="first", scheduled=True, scheduled_at=ago(60), priority=1)
    JobFactory(type="low", queue="first", priority=-1)

    assert names(claim("first", "second", count=3)) == ["due", "low", "available"]


# What claiming does to a job (core §6.3)


def test_a_claimed_job_is_active_and_reserved(db):
    job = JobFactory(visibility_timeout=None)

    (claimed,) = claim(worker_id="worker-7")

    job.refresh_from_db()
    assert (job.state, job.attempt, job.reserved_by) == (State.ACTIVE, 1, "worker-7")
    assert abs(timezone.now() - job.started_at) < MINUTE
    assert (claimed.id, claimed.state, claimed.attempt) == (job.pk, State.ACTIVE, 1)


def test_the_workers_copy_holds_all_that_was_sent(db):
    job = JobFactory(
        args=[{"a": [1, None, "ü"]}],
        meta={"trace": "t"},
        tags=["x"],
        retry={"max_attempts": 5},
        attributes={"x_team": "billing"},
        timeout=timedelta(seconds=3),
    )

    (claimed,) = claim()

    document = json.loads(dumps(claimed_envelope(claimed)))
    assert document["args"] == job.args
    assert document["meta"] == job.meta
    assert document["tags"] == ["x"]
    assert document["retry"] == {"max_attempts": 5}
    assert document["x_team"] == "billing"
    assert document["timeout_ms"] == 3000


SELDOM = {
    "nothing": {},
    "a policy": {"retry": {"max_attempts": 5}},
    "a backoff": {"retry_delay": MINUTE},
    "a time limit": {"timeout": MINUTE},
    "a reservation": {"visibility_timeout": MINUTE},
    "a schedule": {"scheduled_at": ago(1)},
    "an end": {"expires_at": ahead(86_400)},
    "a member of its own": {"attributes": {"x_team": "billing"}},
    "parents": {"parent_results": {"0": 1}},
}


@pytest.mark.parametrize("has", SELDOM)
def test_rare_attributes_are_returned_for_the_jobs_that_have_them(db, has):
    JobFactory(**SELDOM[has])

    (claimed,) = claim()

    document = json.loads(dumps(claimed_envelope(claimed)))
    whole = envelope(Job.objects.get(), for_worker=True)
    assert document == json.loads(dumps(whole))


@pytest.mark.parametrize("waited", [0, 30])
def test_each_time_of_the_workers_copy_is_the_jobs_own(db, waited):
    job = JobFactory(created_at=ago(60), enqueued_at=ago(60 - waited))

    (claimed,) = claim()

    job.refresh_from_db()
    document = claimed_envelope(claimed)
    for name in ("created_at", "enqueued_at", "started_at"):
        assert document[name] == format_timestamp(getattr(job, name)), name


def test_a_history_and_a_checkpoint_are_returned_too(db):
    failed, interrupted = JobFactory(attempt=1), JobFactory()
    JobErrorFactory(job=failed, attempt=1)
    Checkpoint.objects.create(job_id=interrupted.pk, state={"page": 7}, sequence=1, saved_at=ago(1))

    first, second = (claimed_envelope(job) for job in claim(count=2))

    assert len(first["errors"]) == 1
    assert json.loads(dumps(second))["checkpoint"]["state"] == {"page": 7}


@pytest.mark.parametrize(
    ("own", "asked", "expected"),
    [
        (None, None, timedelta(minutes=30)),
        (None, timedelta(seconds=90), timedelta(seconds=90)),
        (timedelta(seconds=5), timedelta(seconds=90), timedelta(seconds=5)),
        (timedelta(hours=2), None, timedelta(hours=2)),
    ],
)
def test_the_jobs_own_visibility_timeout_wins_over_the_fetchs_over_the_default(
    db, own, asked, expected
):
    job = JobFactory(visibility_timeout=own)

    claim(visibility_timeout=asked)

    job.refresh_from_db()
    assert length_of_reservation(job) == expected
    assert job.reserved_for == expected


def test_the_default_visibility_timeout_is_the_sites(db, settings):
    settings.OJS = {"VISIBILITY_TIMEOUT": 42}
    job = JobFactory()

    claim()

    job.refresh_from_db()
    assert length_of_reservation(job) == timedelta(seconds=42)


def test_an_attempt_that_a_recovery_has_counted_is_not_counted_again(db):
    fresh = JobFactory(type="fresh")
    failed = JobFactory(type="failed", retryable=True, scheduled_at=ago(1), attempt=1)
    recovered = JobFactory(type="recovered", attempt=2, attempt_counted=True)

    claim(count=3)

    attempts = {}
    for job in (fresh, failed, recovered):
        job.refresh_from_db()
        attempts[job.type] = (job.attempt, job.attempt_counted)
    assert attempts == {"fresh": (1, False), "failed": (2, False), "recovered": (2, False)}


def test_a_job_on_its_second_attempt_brings_its_history_along(db):
    job = JobFactory(retryable=True, scheduled_at=ago(1), attempt=2)
    JobErrorFactory(job=job, attempt=1, type="First", details={"a": 1})
    JobErrorFactory(job=job, attempt=2, type="Second", backtrace=["x:1"])
    JobErrorFactory(type="Other")

    (claimed,) = claim()

    assert [(error["attempt"], error["type"]) for error in claimed.errors] == [
        (1, "First"),
        (2, "Second"),
    ]
    assert claimed.errors[0]["details"] == {"a": 1}
    assert claimed.errors[1]["backtrace"] == ["x:1"]


def test_of_a_long_history_the_newest_come_along(db):
    """Otherwise the data for a job that is retried forever would keep growing."""
    job = JobFactory(retryable=True, scheduled_at=ago(1), attempt=80, max_attempts=1000)
    for attempt in range(1, 81):
        JobErrorFactory(job=job, attempt=attempt)

    (claimed,) = claim()

    assert [error["attempt"] for error in claimed.errors] == list(range(31, 81))


def test_the_record_tells_who_started_what(db):
    job = JobFactory(queue="billing", type="invoice.send")

    claim("billing", worker_id="worker-7")

    event = Event.objects.get()
    assert (event.type, event.subject) == ("job.started", str(job.pk))
    assert (event.queue, event.job_type) == ("billing", "invoice.send")
    assert (event.worker_id, event.attempt) == ("worker-7", 1)


def test_listeners_hear_of_claims_after_the_commit(db, django_capture_on_commit_callbacks):
    JobFactory.create_batch(2)
    heard = []

    def listen(*, jobs, worker_id, **kwargs):
        heard.append((len(jobs), worker_id))

    jobs_claimed.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            claim(count=5)
            assert heard == []
    finally:
        jobs_claimed.disconnect(listen)

    assert heard == [(2, "worker-1")]


# Paused and limited queues


def test_a_paused_queue_gives_nothing_and_the_others_go_on(db):
    QueueFactory(name="critical", paused=True)
    JobFactory(queue="critical")
    JobFactory(queue="critical", retryable=True, scheduled_at=ago(1))
    JobFactory(type="other", queue="bulk")

    assert names(claim("critical", "bulk", count=5)) == ["other"]


def test_a_pause_ends_by_itself(db):
    QueueFactory(name="critical", paused=True, paused_until=ago(1))
    QueueFactory(name="bulk", paused=True, paused_until=ahead(60))
    JobFactory(type="again", queue="critical")
    JobFactory(type="not yet", queue="bulk")

    assert names(claim("critical", "bulk", count=5)) == ["again"]


def test_a_queue_never_has_more_active_jobs_than_its_limit(db):
    """Worker protocol §8.3."""
    Queue.objects.create(name="limited", concurrency=3)
    JobFactory(queue="limited", active=True)
    JobFactory.create_batch(5, queue="limited")
    JobFactory(queue="bulk", type="other")

    assert names(claim("limited", "bulk", count=10)) == ["email.send", "email.send", "other"]
    assert claim("limited", count=10) == []

    engine.complete([engine.Completion(Job.objects.filter(queue="limited").active()[0].pk)])
    assert len(claim("limited", count=10)) == 1


def test_a_limit_of_nothing_holds_everything_back(db):
    Queue.objects.create(name="closed", concurrency=0)
    JobFactory(queue="closed")

    assert claim("closed") == []


def test_due_jobs_count_against_the_limit_too(db):
    Queue.objects.create(name="limited", concurrency=2)
    JobFactory.create_batch(3, queue="limited", retryable=True, scheduled_at=ago(1))

    assert len(claim("limited", count=10)) == 2


def test_a_limit_elsewhere_changes_nothing_here(db):
    Queue.objects.create(name="limited", concurrency=0)
    JobFactory.create_batch(3)

    assert len(claim("default", count=3)) == 3


# What it costs, on PostgreSQL


@pytest.mark.postgres
@pytest.mark.parametrize("count", [1, 10])
def test_claiming_is_one_statement_with_the_look_at_the_limits(
    db, django_assert_num_queries, count
):
    JobFactory.create_batch(20)

    with django_assert_num_queries(1):
        claim(count=count)
    with django_assert_num_queries(1):
        claim(count=count)


@pytest.mark.postgres
def test_an_empty_fetch_costs_no_more(db, django_assert_num_queries):
    with django_assert_num_queries(1):
        claim("a", "b", "c")


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_fetch_passes_over_jobs_that_another_is_claiming(django_db_blocker):
    """SKIP LOCKED: no fetch waits for another one."""
    JobFactory(type="locked", enqueued_at=ago(60))
    JobFactory(type="free")
    other = connection.copy()
    try:
        with atomic(), other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT 1 FROM ojs_jobs_job WHERE type = 'locked' FOR UPDATE")
            cursor.execute("SET LOCAL lock_timeout = '1s'")

            assert names(claim(count=5)) == ["free"]
            cursor.execute("ROLLBACK")
    finally:
        other.close()

    assert names(claim(count=5)) == ["locked"]
