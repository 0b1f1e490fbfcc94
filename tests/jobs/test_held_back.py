"""Waiting fetches look again when a limit may let more jobs start (OJS rate limiting §8)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from django.utils import timezone

from jobs import engine
from jobs.access.projects import assign_project
from jobs.engine import held_back
from jobs.models import RateLimit, Tenant
from jobs.spec.batches import new_jobs
from jobs.spec.pools import read_pool
from jobs.store import wakeup
from tests.factories import ago
from tests.processes import eventually
from workers import protocol

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nobody_polls"),
]


@contextlib.contextmanager
def waiting() -> Iterator[wakeup.Subscription]:
    """Wait for the queue in this process, after the wake-up for what is in it already."""
    with wakeup.subscription(["default"]) as bell:
        bell.wait(0)
        yield bell


def enqueue(count: int, **options) -> None:
    document = {"type": "a", "args": [], "queue": "default"} | options
    engine.enqueue(new_jobs([document] * count, timezone.now()))


def limit_queue(**config) -> None:
    engine.queues.configure("default", config)


def fetch(**options) -> list[object]:
    found = protocol.fetch(["default"], worker_id="w", **options)
    return [job.id for job in found]


def rings(bell) -> None:
    eventually(lambda: bell.wait(1))


def of_the_queue() -> None:
    limit_queue(concurrency=1)
    enqueue(3)


def of_a_key() -> None:
    enqueue(3, rate_limit={"key": "api", "concurrency": 1})


def of_a_key_that_is_limited_in_time_as_well() -> None:
    hour = {"limit": 100, "period": "PT1H"}
    enqueue(3, rate_limit={"key": "api", "concurrency": 1, "rate": hour})


def of_a_tenant() -> None:
    limit_queue(tenant_fairness={"strategy": "fair-share"})
    Tenant.objects.create(pk="acme", max_concurrency=1)
    document = {"type": "a", "args": [], "queue": "default", "meta": {"tenant_id": "acme"}}
    engine.enqueue(assign_project(new_jobs([document] * 3, timezone.now()), ""))


def of_a_pool() -> None:
    columns = read_pool({"queues": ["default"], "concurrency": 1}, "night")
    engine.pools.configure("night", columns)
    enqueue(3)


@pytest.mark.parametrize(
    "limit",
    [of_the_queue, of_a_key, of_a_key_that_is_limited_in_time_as_well, of_a_tenant, of_a_pool],
    ids=lambda limit: limit.__name__,
)
def test_the_end_of_a_job_gives_its_place_to_those_that_wait(limit):
    limit()
    through = {"pool": "night"} if limit is of_a_pool else {}
    with waiting() as bell:
        (first,) = fetch(count=3, **through)
        assert fetch(**through) == []

        protocol.ack([protocol.Completion(first, "w")])

        rings(bell)
    assert len(fetch(**through)) == 1


@pytest.mark.parametrize("policy", ["throttle", "rate"])
@pytest.mark.parametrize("of", ["key", "queue"])
def test_a_limit_by_the_clock_opens_for_those_that_wait(of, policy):
    limit = {policy: {"limit": 1, "period": "PT1S"}}
    if of == "queue":
        limit_queue(rate_limit=limit)
        enqueue(2)
    else:
        enqueue(2, rate_limit={"key": "api"} | limit)
    with waiting() as bell:
        assert len(fetch(count=2)) == 1

        rings(bell)
    # One look may be a little early, by the database's clock.
    eventually(lambda: len(fetch()) == 1)


@pytest.fixture
def reminders(monkeypatch):
    """After how many seconds those who wait are to look again, each time that this is decided."""
    seconds: list[float] = []
    monkeypatch.setattr(wakeup, "remind", lambda queue, after: seconds.append(after))
    return seconds


def test_an_empty_queue_wakes_nobody(reminders):
    limit_queue(concurrency=1)
    enqueue(1)
    with waiting():
        assert (len(fetch()), fetch()) == (1, [])

    assert reminders == []


def test_where_nobody_waits_nobody_is_woken(reminders):
    limit_queue(concurrency=1)
    enqueue(2)

    assert (len(fetch()), fetch()) == (1, [])

    assert reminders == []


def test_a_limit_that_is_open_makes_nobody_look_again(reminders):
    """Else a worker would look again and again for a job that it cannot run."""
    limit_queue(rate_limit={"limit": 1, "period": "PT1S"})
    enqueue(2)
    with waiting():
        assert len(fetch()) == 1
        RateLimit.objects.update(closed_until=ago(1), starts=[])

        assert fetch(types=["b"]) == []

    assert reminders == []


@pytest.fixture
def clock(monkeypatch, settings):
    """The clock by which a queue is held back, which the test sets; polls are a second apart."""
    settings.OJS = {"WAIT_POLL_INTERVAL": 1}
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(held_back, "monotonic", lambda: clock.now)
    return clock


def test_the_longer_a_queue_is_held_back_the_less_often_it_is_looked_at(reminders, clock):
    limit_queue(concurrency=1)
    enqueue(3)
    with waiting():
        (first,) = fetch()
        looks = 0
        while looks == len(reminders):
            assert fetch() == []
            looks += 1
            clock.now += reminders[-1]
        first_round = reminders.copy()
        protocol.ack([protocol.Completion(first, "w")])
        assert len(fetch()) == 1
        assert fetch() == []

    assert first_round == sorted(first_round)
    assert first_round[0] == held_back.AFTER_AN_END
    # From then on the poll is soon enough.
    assert 0.7 < first_round[-1] < 1
    assert len(first_round) < 25
    # It has moved on: the next job may be short again.
    assert reminders[-1] == held_back.AFTER_AN_END


def test_a_queue_that_was_held_back_long_ago_is_looked_at_soon_again(reminders, clock):
    limit_queue(concurrency=1)
    enqueue(2)
    with waiting():
        assert (len(fetch()), fetch()) == (1, [])
        # Those who waited have gone, and what was in the queue went to other processes.
        clock.now = 3600

        assert fetch() == []

    assert reminders == [held_back.AFTER_AN_END] * 2
