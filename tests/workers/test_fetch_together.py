"""FETCHes that arrive at the same time get what they would get one after the other (OJS worker §6).

Which of several workers gets which job is open, as long as each can run its own.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from jobs.engine import ClaimedJob, pools
from jobs.models import Event, Job
from jobs.spec.lifecycle import State
from ojs_project.bypass import Bypass
from tests.factories import JobFactory, QueueFactory, WorkerFactory, ago
from tests.project.wsgi import answered, environment
from workers import protocol
from workers.asgi.application import Later
from workers.lifecycle import WorkerState
from workers.models import Worker
from workers.protocol import Fetch

pytestmark = pytest.mark.django_db


def together(*workers: str, **asked: Any) -> dict[str, list[str]]:
    """Fetch for all workers at once; the types of the jobs that each has got."""
    given = {"queues": ["default"], "project": ""} | asked
    found = protocol.fetch_each([Fetch.of(worker_id=name, **given) for name in workers])
    got: dict[str, list[str]] = {}
    for name, jobs in zip(workers, found, strict=True):
        got.setdefault(name, []).extend(types_of(jobs))
    return got


def types_of(jobs: list[ClaimedJob] | Exception) -> list[str]:
    if isinstance(jobs, Exception):
        raise jobs
    return [job.type for job in jobs]


def workers(*names: str, **declared: Any) -> None:
    for name in names:
        WorkerFactory(worker_id=name, **declared)


def held_by(worker_id: str) -> int:
    return Job.objects.filter(state=State.ACTIVE, reserved_by=worker_id).count()


# Who gets what


def test_each_worker_gets_one_job_of_its_own():
    workers("a", "b", "c")
    JobFactory.create_batch(5)

    got = together("a", "b", "c")

    assert [len(jobs) for jobs in got.values()] == [1, 1, 1]
    assert [held_by(name) for name in "abc"] == [1, 1, 1]
    started = Event.objects.filter(type="job.started").values_list("worker_id", "attempt")
    assert sorted(started) == [("a", 1), ("b", 1), ("c", 1)]


def test_they_get_the_most_urgent_jobs():
    for priority in (1, 9, 5, 7):
        JobFactory(type=f"p{priority}", priority=priority)

    got = together("a", "b")

    assert sorted(got["a"] + got["b"]) == ["p7", "p9"]


def test_where_there_are_too_few_jobs_the_others_get_none():
    JobFactory()

    got = together("a", "b", "c")

    assert sorted(len(jobs) for jobs in got.values()) == [0, 0, 1]


def test_workers_without_a_name_get_jobs_too():
    JobFactory.create_batch(3)

    found = protocol.fetch_each([Fetch.of(["default"], "") for _ in range(3)])

    assert [len(types_of(jobs)) for jobs in found] == [1, 1, 1]


def test_due_jobs_are_claimed_as_well():
    JobFactory(type="now")
    JobFactory(type="due", state=State.SCHEDULED, scheduled_at=ago(1))

    got = together("a", "b", "c")

    assert sorted(got["a"] + got["b"] + got["c"]) == ["due", "now"]
    assert Event.objects.filter(type="job.enqueued").count() == 1


def test_queues_are_searched_in_the_order_given():
    JobFactory(type="second", queue="second", priority=9)
    JobFactory.create_batch(2, type="first", queue="first")

    got = together("a", "b", queues=["first", "second"])

    assert got == {"a": ["first"], "b": ["first"]}


def test_fetches_of_different_queues_types_and_projects_get_their_own():
    JobFactory(type="mail", queue="mail")
    JobFactory(type="image", queue="media")
    JobFactory(type="video", queue="media")
    JobFactory(type="mine", queue="shared", project="acme")
    asked = [
        Fetch.of(["mail"], "", worker_id="a"),
        Fetch.of(["media"], "", worker_id="b", types=["video"]),
        Fetch.of(["media"], "", worker_id="c"),
        Fetch.of(["shared"], "acme", worker_id="d"),
        Fetch.of(["shared"], "other", worker_id="e"),
        Fetch.of(["shared"], "other", worker_id="f"),
    ]

    found = [types_of(jobs) for jobs in protocol.fetch_each(asked)]

    assert found == [["mail"], ["video"], ["image"], ["mine"], [], []]


def test_the_visibility_timeout_is_that_of_the_request_and_of_the_job():
    JobFactory.create_batch(2)

    together("a", "b", visibility_timeout=timedelta(seconds=77))

    assert set(Job.objects.values_list("reserved_for", flat=True)) == {timedelta(seconds=77)}


# Who gets nothing, or only some


def test_a_quiet_worker_gets_nothing_and_the_others_do():
    workers("a", "c")
    workers("b", directive=WorkerState.QUIET)
    JobFactory.create_batch(3)

    assert {name: len(jobs) for name, jobs in together("a", "b", "c").items()} == {
        "a": 1,
        "b": 0,
        "c": 1,
    }


def test_a_busy_worker_gets_nothing():
    workers("a", "b", concurrency=1)
    JobFactory.create_batch(3)
    protocol.fetch(["default"], worker_id="a")

    assert [len(jobs) for jobs in together("a", "b").values()] == [0, 1]


def test_two_fetches_of_one_worker_do_not_exceed_its_concurrency():
    workers("a", "b", concurrency=1)
    JobFactory.create_batch(5)

    got = together("a", "a", "b")

    assert [len(jobs) for jobs in got.values()] == [1, 1]


def test_a_job_that_needs_something_goes_to_a_worker_that_has_it():
    workers("a", "b")
    workers("g", labels=["gpu"])
    JobFactory(type="train", priority=9, needs=["gpu"])
    JobFactory.create_batch(2, type="mail")

    assert together("a", "g", "b") == {"a": ["mail"], "g": ["train"], "b": ["mail"]}


def test_a_job_for_one_worker_goes_to_that_worker():
    workers("a", "b")
    JobFactory(type="for-b", priority=9, needs=["worker:b"])
    JobFactory(type="any")

    assert together("a", "b") == {"a": ["any"], "b": ["for-b"]}


def test_jobs_that_none_of_them_can_run_are_passed_over():
    workers("a", "b")
    JobFactory.create_batch(3, type="train", priority=9, needs=["gpu"])
    JobFactory.create_batch(2, type="mail")

    assert together("a", "b") == {"a": ["mail"], "b": ["mail"]}


def test_a_worker_gets_only_versions_that_it_accepts():
    workers("a", "b")
    workers("old", job_versions={"import": [1, 2]})
    JobFactory.create_batch(2, type="import", version_number=3)
    JobFactory(type="import", version_number=1, priority=-1)

    got = together("a", "old", "b")

    assert [len(jobs) for jobs in got.values()] == [1, 1, 1]
    assert Job.objects.get(reserved_by="old").version_number == 1


def test_workers_of_a_pool_are_held_to_its_rules():
    pools.configure("small", {"concurrency": 1, "starvation_prevention": {}})
    workers("a")
    workers("p", "q", labels=["pool:small"])
    JobFactory.create_batch(4)

    got = together("a", "p", "q")

    assert len(got["a"]) == 1
    assert len(got["p"]) + len(got["q"]) == 1


def test_a_limited_queue_stays_within_its_limit():
    QueueFactory(name="default", concurrency=2)
    JobFactory.create_batch(5)

    got = together("a", "b", "c")

    assert Counter(len(jobs) for jobs in got.values()) == {1: 2, 0: 1}


def test_a_paused_queue_gives_nothing():
    QueueFactory(name="default", paused=True)
    JobFactory()

    assert together("a", "b") == {"a": [], "b": []}


# Beside other requests


def test_a_worker_that_was_declared_dead_is_live_again_and_gets_its_job():
    workers("a")
    workers("gone", state=WorkerState.TERMINATED, died_at=ago(5), last_heartbeat_at=ago(999))
    JobFactory.create_batch(2)

    assert [len(jobs) for jobs in together("a", "gone").values()] == [1, 1]
    assert Worker.objects.get(pk="gone").state == WorkerState.RUNNING


def test_a_fetch_that_is_refused_does_not_keep_the_others_from_their_jobs():
    JobFactory.create_batch(2)
    asked = [Fetch.of(queues, "", worker_id="w") for queues in (["default"], [], ["default"])]

    first, refused, last = protocol.fetch_each(asked)

    assert len(types_of(first)) == len(types_of(last)) == 1
    assert isinstance(refused, Exception)


# Over HTTP


def bodies(application: Bypass, *documents: Any) -> list[Any]:
    """Send these bodies at once; the status of each response, and its document."""
    environs = [environment("POST", "/ojs/v1/workers/fetch", each, {}) for each in documents]
    answered(application, environment("POST", "/ojs/v1/workers/fetch", {"queues": ["x"]}, {}))
    view = application.gathered(environs[0])
    assert view is not None
    return application.respond_together(view, environs)


@pytest.fixture
def application(transactional_db: None, settings: Any) -> Bypass:
    settings.ALLOWED_HOSTS = ["testserver"]
    settings.OJS = settings.OJS | {"ALLOW_ANONYMOUS": True}
    return Bypass(lambda environ, start_response: [])


def test_each_request_gets_its_own_response(application: Bypass):
    JobFactory.create_batch(2)
    ask = {"queues": ["default"]}

    replies = bodies(application, ask | {"worker_id": "a"}, {"queues": 7}, ask | {"worker_id": "b"})

    assert [reply.status for reply in replies] == [200, 400, 200]
    assert b'"queues"' in replies[1].content
    assert (held_by("a"), held_by("b")) == (1, 1)


def test_a_request_that_waits_is_parked_if_there_is_nothing_yet(application: Bypass):
    JobFactory()
    ask = {"queues": ["default"], "wait_ms": 1000}

    replies = bodies(application, {"queues": ["empty"]}, ask, ask | {"queues": ["empty"]})

    assert [isinstance(reply, Later) for reply in replies] == [False, False, True]


@pytest.mark.parametrize(
    ("more", "is_gathered"),
    [
        ({}, True),
        ({"count": 1}, True),
        ({"count": 10}, False),
        ({"max_jobs": 2}, False),
        ({"acks": []}, False),
        ({"nacks": []}, False),
    ],
)
def test_only_requests_about_one_job_are_answered_together(
    application: Bypass, more: Any, is_gathered: bool
):
    ask = environment("POST", "/ojs/v1/workers/fetch", {"queues": ["x"]}, {})
    answered(application, ask)
    body = {"queues": ["default"], "worker_id": "a"} | more

    view = application.gathered(environment("POST", "/ojs/v1/workers/fetch", body, {}))

    assert (view is not None) == is_gathered
