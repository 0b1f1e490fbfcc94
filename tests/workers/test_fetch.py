"""FETCH: which jobs a worker gets, in which order, and which not (OJS worker §5, §6, §8)."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.engine import limited_claim
from jobs.errors import InvalidRequest
from jobs.http.renderers import dumps
from jobs.models import Event, Job
from jobs.spec.envelope import claimed_envelope
from jobs.spec.lifecycle import State
from jobs.store import portable
from jobs.store.postgres import claiming
from tests.factories import JobFactory, QueueFactory, WorkerFactory, ago, ahead
from workers import protocol
from workers.lifecycle import WorkerState
from workers.models import Worker

pytestmark = pytest.mark.django_db


def fetch(*queues: str, **asked) -> list:
    return protocol.fetch(queues or ["default"], **asked)


def names(jobs) -> list[str]:
    return [job.type for job in jobs]


# The request and the reply (§6.2, §6.5)


def test_a_fetch_must_name_a_queue():
    with pytest.raises(InvalidRequest) as refused:
        protocol.fetch([])

    assert refused.value.details["field"] == "queues"


def test_nothing_to_do_is_an_empty_list():
    assert fetch("default", "never-used") == []


def test_one_job_is_given_unless_more_are_asked_for():
    JobFactory.create_batch(5)

    assert len(fetch()) == 1
    assert len(fetch(count=3)) == 3
    assert len(fetch(count=10)) == 1


def test_a_fetched_job_is_active_and_reserved_for_its_worker():
    job = JobFactory()

    (claimed,) = fetch(worker_id="w")

    assert (claimed.id, claimed.state, claimed.attempt) == (job.pk, State.ACTIVE, 1)
    job.refresh_from_db()
    assert (job.state, job.attempt, job.reserved_by) == (State.ACTIVE, 1, "w")
    assert job.started_at is not None
    assert job.reserved_until > timezone.now()


def test_the_worker_is_given_the_whole_envelope():
    job = JobFactory(type="video.transcode", meta={"trace": "t1"}, tags=["slow"], priority=3)

    (claimed,) = fetch(worker_id="w")

    document = json.loads(dumps(claimed_envelope(claimed)))
    assert document["specversion"] == "1.0"
    assert document["id"] == str(job.pk)
    assert (document["type"], document["queue"]) == ("video.transcode", "default")
    assert (document["state"], document["attempt"], document["priority"]) == ("active", 1, 3)
    for moment in ("created_at", "enqueued_at", "started_at"):
        assert document[moment].endswith("Z")


def test_a_start_is_recorded_as_an_event():
    job = JobFactory()
    fetch(worker_id="w")

    (event,) = Event.objects.filter(type="job.started")
    assert (event.subject, event.worker_id, event.attempt) == (str(job.pk), "w", 1)


@pytest.mark.parametrize(
    "other", ["pending", "scheduled", "active", "retryable", "completed", "cancelled", "discarded"]
)
def test_only_available_jobs_are_given(other):
    JobFactory(**{other: True})

    assert fetch() == []


def test_a_job_is_given_once():
    JobFactory()

    assert len(fetch(worker_id="v")) == 1
    assert fetch(worker_id="w") == []


@pytest.mark.parametrize("due", ["scheduled", "retryable"])
def test_a_job_that_fell_due_is_given_before_any_reaper_saw_it(due):
    job = JobFactory(**{due: True, "scheduled_at": ago(0.5)})

    (claimed,) = fetch(worker_id="w")

    assert (claimed.id, claimed.attempt) == (job.pk, 2 if due == "retryable" else 1)


def test_a_job_that_expired_while_it_waited_is_not_given():
    JobFactory(expires_at=ago(1))
    JobFactory(scheduled=True, scheduled_at=ago(2), expires_at=ago(1))

    assert fetch(count=2) == []


# Order (§6.3)


def test_queues_are_visited_in_the_order_given():
    for queue in ("bulk", "critical", "default"):
        JobFactory.create_batch(2, queue=queue, type=queue, priority=9 if queue == "bulk" else 0)

    order = names(fetch("critical", "default", "bulk", count=3))
    order += names(fetch("critical", "default", "bulk", count=3))

    assert order == ["critical"] * 2 + ["default"] * 2 + ["bulk"] * 2


def test_a_lower_queue_gives_only_what_the_higher_ones_leave():
    JobFactory(queue="bulk", type="bulk")
    JobFactory.create_batch(2, queue="critical", type="critical")

    assert names(fetch("critical", "bulk", count=2)) == ["critical", "critical"]
    assert names(fetch("critical", "bulk", count=2)) == ["bulk"]


@pytest.mark.parametrize("at_once", [1, 2, 4])
def test_inside_a_queue_priority_goes_first_and_then_age(at_once):
    for name, priority, age in (
        ("young", 0, 1),
        ("old", 0, 60),
        ("urgent", 10, 2),
        ("someday", -10, 99),
    ):
        JobFactory(type=name, priority=priority, created_at=ago(age))

    order = [name for _ in range(4) for name in names(fetch(count=at_once))]

    assert order == ["urgent", "old", "young", "someday"]


def test_jobs_of_the_same_moment_keep_the_order_of_their_ids():
    moment = ago(1)
    for name in ("first", "second", "third"):
        JobFactory(type=name, created_at=moment)

    assert names(fetch(count=3)) == ["first", "second", "third"]


def test_a_recovered_job_goes_behind_those_that_wait():
    JobFactory(type="recovered", created_at=ago(99), enqueued_at=ago(1))
    JobFactory(type="waiting", created_at=ago(50))

    assert names(fetch(count=2)) == ["waiting", "recovered"]


def test_jobs_that_fell_due_fill_the_places_that_available_ones_leave():
    JobFactory(type="due", scheduled=True, scheduled_at=ago(60))
    JobFactory(type="available")

    assert names(fetch()) == ["available"]
    assert names(fetch(count=2)) == ["due"]


def test_a_queue_named_twice_gives_its_jobs_once():
    JobFactory.create_batch(2)

    assert len(fetch("default", "default", count=4)) == 2


# Abilities of the worker


def test_types_narrow_what_is_given():
    for name in ("email.send", "video.transcode", "report.build"):
        JobFactory(type=name)
    JobFactory(type="video.transcode", scheduled=True, scheduled_at=ago(1))

    given = names(fetch(count=9, types=["video.transcode", "report.build"]))

    assert sorted(given) == ["report.build", "video.transcode", "video.transcode"]
    assert fetch(count=9, types=[]) == [], "a worker that can do nothing is given nothing"


# Paused queues (OJS HTTP §11.3)


def test_a_paused_queue_gives_nothing_and_the_others_do():
    QueueFactory(name="default", paused=True)
    JobFactory()
    JobFactory(queue="bulk", type="bulk")
    JobFactory(scheduled=True, scheduled_at=ago(1))

    assert names(fetch("default", "bulk", count=5)) == ["bulk"]


def test_a_pause_that_has_ended_by_itself_holds_nothing_back():
    QueueFactory(name="default", paused=True, paused_until=ago(1))
    JobFactory()

    assert len(fetch()) == 1


# Length of the reservation (§5.2, §5.3; HTTP §10.1)


@pytest.mark.parametrize(
    ("own", "asked", "seconds"),
    [(None, None, 1800), (None, 30, 30), (7200, None, 7200), (7200, 30, 7200), (5, 30, 5)],
)
def test_the_jobs_own_visibility_timeout_wins_then_the_fetchs_then_the_default(own, asked, seconds):
    job = JobFactory(visibility_timeout=own and timedelta(seconds=own))

    fetch(worker_id="w", visibility_timeout=asked and timedelta(seconds=asked))

    job.refresh_from_db()
    assert job.reserved_for == timedelta(seconds=seconds)
    assert job.reserved_until == pytest.approx(ahead(seconds), abs=timedelta(seconds=10))


def test_the_default_visibility_timeout_is_the_sites_to_choose(settings):
    settings.OJS = {"VISIBILITY_TIMEOUT": 60}
    job = JobFactory()

    fetch(worker_id="w")

    job.refresh_from_db()
    assert job.reserved_for == timedelta(seconds=60)


# State of the worker (§6.6, §8.2, §10.4)


@pytest.mark.parametrize("state", [WorkerState.QUIET, WorkerState.TERMINATE])
def test_a_worker_that_stopped_fetching_is_given_nothing(state):
    JobFactory()

    assert fetch(worker_id=WorkerFactory(state=state).pk) == []


@pytest.mark.parametrize("directive", ["", *WorkerState])
@pytest.mark.parametrize("state", WorkerState)
def test_a_worker_is_given_jobs_exactly_while_it_shall_run(state, directive):
    gone = {"left_at": ago(1)} if state == WorkerState.TERMINATED else {}
    worker = WorkerFactory(state=state, directive=directive, **gone)
    JobFactory()

    assert len(fetch(worker_id=worker.pk)) == worker.may_fetch


def test_a_job_goes_to_the_worker_that_is_able_to_do_it():
    job = JobFactory(needs=["gpu", "eu"])

    for words in ({"labels": ["gpu"]}, {"capabilities": ["eu"]}, {}):
        assert fetch(worker_id=WorkerFactory(**words).pk) == []
    assert fetch(worker_id="never-registered") == fetch() == []
    able = WorkerFactory(labels=["gpu", "red"], capabilities=["eu"])
    assert [claimed.id for claimed in fetch(worker_id=able.pk)] == [job.pk]


def test_no_label_makes_a_worker_another_one():
    JobFactory(needs=["worker:mine"])

    assert fetch(worker_id=WorkerFactory(labels=["worker:mine"]).pk) == []
    assert len(fetch(worker_id="mine")) == 1


def test_a_worker_over_its_concurrency_is_no_error():
    worker = WorkerFactory(concurrency=1)
    JobFactory.create_batch(2, active=True, reserved_by=worker.pk)
    JobFactory()

    assert fetch(worker_id=worker.pk) == []


@pytest.mark.postgres
def test_a_fetch_is_one_statement(django_assert_num_queries):
    worker = WorkerFactory(concurrency=5, labels=["eu"])
    JobFactory.create_batch(3)

    with django_assert_num_queries(1):
        assert len(fetch(worker_id=worker.pk, count=2)) == 2


def test_an_unknown_worker_is_served_all_the_same():
    JobFactory.create_batch(2)

    assert len(fetch(worker_id="never-registered")) == 1
    assert len(fetch()) == 1


def test_no_more_is_given_than_the_worker_declared_to_run_at_once():
    worker = WorkerFactory(concurrency=3)
    JobFactory(active=True, reserved_by=worker.pk)
    JobFactory(active=True, reserved_by="another")
    JobFactory.create_batch(5)

    assert len(fetch(worker_id=worker.pk, count=5)) == 2
    assert fetch(worker_id=worker.pk, count=5) == []


def test_a_place_that_becomes_free_is_filled_again():
    worker = WorkerFactory(concurrency=1)
    JobFactory.create_batch(2)
    (first,) = fetch(worker_id=worker.pk)

    protocol.ack([protocol.Completion(first.id, worker_id=worker.pk)])

    assert len(fetch(worker_id=worker.pk)) == 1


def test_a_worker_that_never_said_its_concurrency_decides_for_itself():
    worker = WorkerFactory(concurrency=None)
    JobFactory.create_batch(20)

    assert len(fetch(worker_id=worker.pk, count=20)) == 20


# Queue-level concurrency (§8.3)


def test_no_more_jobs_of_a_queue_are_active_than_it_allows():
    QueueFactory(name="default", concurrency=3)
    JobFactory(active=True)
    JobFactory.create_batch(5)

    assert len(fetch(worker_id="v", count=5)) == 2, "fewer than asked for, rather than too many"
    assert fetch(worker_id="w", count=5) == []
    assert Job.objects.active().filter(queue="default").count() == 3


def test_a_full_queue_leaves_the_others_alone():
    QueueFactory(name="default", concurrency=1)
    JobFactory(active=True)
    JobFactory()
    JobFactory.create_batch(2, queue="bulk", type="bulk")

    assert names(fetch("default", "bulk", count=5)) == ["bulk", "bulk"]


def test_the_limits_hold_for_a_known_worker_too_and_queue_order_stays():
    worker = WorkerFactory(concurrency=10)
    QueueFactory(name="critical", concurrency=1)
    JobFactory.create_batch(2, queue="critical", type="critical")
    JobFactory(queue="bulk", type="bulk")

    assert names(fetch("critical", "bulk", worker_id=worker.pk, count=5)) == ["critical", "bulk"]


def test_a_limited_queue_asks_its_workers_the_same():
    QueueFactory(name="default", concurrency=5)
    JobFactory.create_batch(2, needs=["gpu"])
    quiet = WorkerFactory(state=WorkerState.QUIET, labels=["gpu"])
    other = WorkerFactory()
    worker = WorkerFactory(concurrency=1, labels=["gpu"])

    assert fetch(worker_id=quiet.pk) == fetch(worker_id=other.pk) == []
    assert len(fetch(worker_id=worker.pk, count=5)) == 1


# Workers that become quiet while they fetch (§6.6)


def quieted_after(monkeypatch, owner, name: str) -> None:
    """Once the function has been called, make all workers quiet; a job arrives after that."""
    function = getattr(owner, name)

    def then_quiet(*given, **more):
        found = function(*given, **more)
        if Worker.objects.exclude(state=WorkerState.QUIET).update(state=WorkerState.QUIET):
            JobFactory(needs=["gpu"])
        return found

    monkeypatch.setattr(owner, name, then_quiet)


@pytest.mark.postgres
@pytest.mark.parametrize("carries_acks", [False, True])
def test_a_fetch_of_some_versions_gives_a_worker_nothing_that_came_after_it_was_quiet(
    monkeypatch, carries_acks
):
    worker = WorkerFactory(labels=["gpu"], job_versions={"type": [1, None]})
    held = JobFactory(active=True, reserved_by=worker.pk)
    quieted_after(monkeypatch, claiming, "taken")

    if carries_acks:
        ack = protocol.Completion(held.pk, worker.pk)
        given = protocol.exchange([ack], ["default"], worker_id=worker.pk)[1]
    else:
        given = fetch(worker_id=worker.pk)

    assert given == []
    assert Job.objects.filter(state=State.AVAILABLE).exists()


@pytest.mark.postgres
def test_nor_do_fetches_of_several_workers_if_a_job_needs_something(monkeypatch):
    JobFactory(needs=["gpu"])
    for name in "ab":
        WorkerFactory(worker_id=name, labels=["gpu"])
    quieted_after(monkeypatch, claiming, "taken")

    asked = [protocol.Fetch.of(["default"], "", worker_id=name) for name in "ab"]
    assert protocol.fetch_each(asked) == [[], []]


@pytest.mark.postgres
@pytest.mark.parametrize("has_keys", [False, True])
def test_nor_does_a_fetch_from_a_limited_queue(api, monkeypatch, has_keys):
    QueueFactory(name="default", concurrency=5)
    if has_keys:
        api.pushed(rate_limit={"key": "stripe", "concurrency": 5})
    worker = WorkerFactory(labels=["gpu"])
    quieted_after(monkeypatch, limited_claim, "_measure")

    assert fetch(worker_id=worker.pk) == []


@pytest.mark.postgres
def test_nor_does_one_of_the_portable_store(monkeypatch, settings):
    settings.OJS = settings.OJS | {"STORE": "portable"}
    worker = WorkerFactory(labels=["gpu"])
    quieted_after(monkeypatch, portable, "open_queues")

    assert fetch(worker_id=worker.pk) == []


def test_a_limit_of_zero_closes_a_queue():
    QueueFactory(name="default", concurrency=0)
    JobFactory()

    assert fetch() == []
