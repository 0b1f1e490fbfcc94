"""Rules of queues hold while many producers and workers use them."""

from __future__ import annotations

import threading

import pytest
from django.utils import timezone

from jobs import engine
from jobs.errors import QueueFull
from jobs.models import Event, Job
from jobs.spec.batches import new_jobs
from jobs.spec.lifecycle import State
from tests.ojs_client import OJSClient
from workers import protocol

from .threads import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

BOUND = 20
JOB = {"type": "a", "args": []}


def bounded(strategy: str) -> None:
    engine.queues.configure("default", {"max_depth": BOUND, "strategy": strategy})


def enqueue(count: int = 1, **fields) -> int:
    """Enqueue jobs, all or none; return how many."""
    document = JOB | fields
    try:
        return len(engine.enqueue(new_jobs([document] * count, timezone.now())))
    except QueueFull:
        return 0


@pytest.mark.parametrize("size", [1, 3])
def test_a_bounded_queue_is_never_over_its_bound_however_many_enqueue(size):
    bounded("reject")

    def produce() -> list[tuple[int, int]]:
        return [(enqueue(size), engine.bounds.depth("default")) for _ in range(8)]

    seen = [pair for pairs in together(*[produce] * 8) for pair in pairs]

    assert max(depth for _, depth in seen) == BOUND - BOUND % size
    assert sum(stored for stored, _ in seen) == Job.objects.count() == BOUND - BOUND % size


def test_a_bounded_queue_is_never_over_while_workers_make_room():
    bounded("reject")
    enqueue(BOUND)

    def produce() -> int:
        stored = 0
        for _ in range(8):
            stored += enqueue()
            assert engine.bounds.depth("default") <= BOUND
        return stored

    def work() -> int:
        fetched = [job for _ in range(8) for job in protocol.fetch(["default"], worker_id="w")]
        return -len(fetched)

    balance = sum(together(*[produce] * 5, *[work] * 3))

    assert engine.bounds.depth("default") == BOUND + balance


def test_a_queue_that_drops_the_oldest_keeps_its_bound_and_takes_every_job():
    bounded("drop_oldest")

    def produce() -> int:
        return sum(enqueue(2) for _ in range(8))

    assert sum(together(*[produce] * 6)) == 96
    assert Job.objects.filter(state=State.AVAILABLE).count() == BOUND
    assert Job.objects.filter(state=State.DISCARDED).count() == 96 - BOUND


@pytest.mark.parametrize(
    "fields",
    [{}, {"rate_limit": {"key": "api", "concurrency": 1000}}],
    ids=["plain", "rate-limited"],
)
def test_no_fetch_that_begins_after_a_pause_is_given_a_job(fields):
    enqueue(100, **fields)
    at_work, paused = threading.Semaphore(0), threading.Event()

    def fetch(name: str) -> list[int]:
        """Fetch until some time after the pause; return the jobs fetched after it."""
        late: list[int] = []
        while len(late) < 3:
            after = paused.is_set()
            given = len(protocol.fetch(["default"], worker_id=name, count=2))
            at_work.release()
            if after:
                late.append(given)
        return late

    def pause() -> list[int]:
        for _ in range(12):
            assert at_work.acquire(timeout=120)
        engine.pause("default")
        enqueue(5, **fields)
        paused.set()
        return []

    given = together(*(lambda name=name: fetch(name) for name in "abcdef"), pause)

    assert [late for late in given if late] == [[0, 0, 0]] * 6
    assert Job.objects.filter(state=State.AVAILABLE).count() >= 5


def test_a_request_that_waits_for_room_is_stored_when_there_is_some(settings):
    settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": True}
    bounded("block")
    enqueue(BOUND)

    def produce() -> int:
        return OJSClient().send("jobs", JOB, headers={"OJS-Block-Timeout": "30"}).status_code

    def work() -> int:
        return len(protocol.fetch(["default"], worker_id="w", count=3))

    assert together(*[produce] * 3, work) == [201, 201, 201, 3]
    assert engine.bounds.depth("default") == BOUND
    assert not Event.objects.filter(type="backpressure.rejected").exists()


def test_a_request_that_waits_in_vain_is_refused_and_logged_once(settings):
    settings.OJS = {**settings.OJS, "ALLOW_ANONYMOUS": True}
    bounded("block")
    enqueue(BOUND)

    reply = OJSClient().send("jobs", JOB, headers={"OJS-Block-Timeout": "0"})

    assert reply.status_code == 429
    assert Event.objects.filter(type="backpressure.rejected").count() == 1
