"""Tenants under contention: limits are never exceeded, and jobs of a shared queue go out once."""

from __future__ import annotations

import contextlib
from collections import Counter

import pytest
from django.utils import timezone

from jobs import engine
from jobs.access.projects import assign_project
from jobs.errors import TenantLimitExceeded
from jobs.models import Job
from jobs.spec.batches import new_jobs
from jobs.spec.pools import read_pool
from workers import protocol

from .threads import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def enqueue(tenant: str, count: int = 1, queue: str = "default") -> None:
    document = {"type": "a", "args": [], "queue": queue, "meta": {"tenant_id": tenant}}
    if not tenant:
        del document["meta"]
    engine.enqueue(assign_project(new_jobs([document] * count, timezone.now()), ""))


def test_fetches_from_a_shared_queue_never_get_the_same_job():
    engine.queues.configure("default", {"tenant_fairness": {"strategy": "fair-share"}})
    for tenant in ("a", "b", "c"):
        enqueue(tenant, 20)

    def fetch(name: str) -> list[object]:
        return [
            job.id for _ in range(6) for job in protocol.fetch(["default"], worker_id=name, count=3)
        ]

    given = Counter(
        job_id
        for ids in together(*(lambda name=name: fetch(name) for name in "wxyz"))
        for job_id in ids
    )

    assert (len(given), given.most_common(1)[0][1]) == (60, 1)


def test_fetches_through_a_pool_never_exceed_its_limit():
    """Nor its queues, nor do they wait for each other for ever while the pool is changed."""
    body = {"queues": ["default", "mail"], "concurrency": 3, "isolated": True}
    columns = read_pool(body, "night")
    engine.pools.configure("night", columns)
    for queue in ("default", "mail"):
        enqueue("", 30, queue=queue)
    most = []

    def work(name: str) -> int:
        done = 0
        for number in range(8):
            queues = ["default", "mail"] if number % 2 else ["mail", "default"]
            jobs = protocol.fetch(queues, worker_id=name, count=2, pool="night")
            most.append(Job.objects.active().count())
            protocol.ack([protocol.Completion(job.id, name) for job in jobs])
            done += len(jobs)
        return done

    def change() -> int:
        for _ in range(8):
            engine.pools.configure("night", columns)
        return 0

    done = together(*(lambda name=name: work(name) for name in "wxyz"), change)

    assert max(most) <= 3
    assert Job.objects.filter(state="completed").count() == sum(done) > 3


def test_a_tenant_never_has_more_jobs_than_it_may_whoever_fetches_and_enqueues():
    engine.tenants.configure("a", {"max_concurrency": 3, "max_queue_depth": 30})
    enqueue("a", 10)
    enqueue("a", 10, queue="mail")
    active = Job.objects.active().filter(project="a")

    def work(name: str) -> list[int]:
        seen = []
        for number in range(8):
            queues = ["default", "mail"] if number % 2 else ["mail", "default"]
            jobs = protocol.fetch(queues, worker_id=name, count=2)
            seen.append(active.count())
            protocol.ack([protocol.Completion(job.id, name) for job in jobs])
        return seen

    def produce() -> list[int]:
        seen = []
        for _ in range(30):
            with contextlib.suppress(TenantLimitExceeded):
                enqueue("a")
            seen.append(0)
        return seen

    running = together(produce, produce, *(lambda name=name: work(name) for name in "wxyz"))

    assert max(count for counts in running for count in counts) <= 3
    assert Job.objects.filter(project="a", state="available").count() <= 30
    assert Job.objects.filter(state="completed").exists()
