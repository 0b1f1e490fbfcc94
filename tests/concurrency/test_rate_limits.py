"""Rate limits under load: never over, with real threads (OJS rate limiting §6.2)."""

from __future__ import annotations

from collections import Counter

import pytest
from django.utils import timezone

from jobs import engine
from jobs.models import Job
from jobs.spec.batches import new_jobs
from workers import protocol

from .threads import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def enqueue(count: int, **policy) -> None:
    document = {"type": "a", "args": [], "rate_limit": {"key": "api"} | policy}
    engine.enqueue(new_jobs([document] * count, timezone.now()))


def test_a_window_is_never_over_its_limit_however_many_fetch():
    enqueue(60, rate={"limit": 17, "period": "PT1H"})

    def fetch(name: str) -> int:
        return sum(len(protocol.fetch(["default"], worker_id=name, count=3)) for _ in range(5))

    given = together(*(lambda name=name: fetch(name) for name in "abcdefgh"))

    assert sum(given) == 17
    assert Job.objects.active().count() == 17


def test_a_concurrency_of_a_key_is_never_passed_while_jobs_come_and_go():
    enqueue(60, concurrency=3)
    active = Job.objects.active().filter(rate_key="api")

    def work(name: str) -> list[int]:
        seen = []
        for _ in range(10):
            jobs = protocol.fetch(["default"], worker_id=name, count=2)
            seen.append(active.count())
            protocol.ack([protocol.Completion(job.id, name) for job in jobs])
        return seen

    seen = Counter(
        count
        for counts in together(*(lambda name=name: work(name) for name in "abcdefgh"))
        for count in counts
    )

    assert max(seen) <= 3
    assert Job.objects.filter(state="completed").exists()
