"""FETCH under contention: each job for one worker only (OJS worker protocol §6.4, §8.3)."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import Counter

import pytest

from jobs import engine
from jobs.models import Event, Job
from jobs.spec.lifecycle import State
from tests import processes
from tests.factories import JobFactory, QueueFactory, ago, many_jobs
from workers import protocol

from .threads import together

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

JOBS = 20_000
QUEUES = ["critical", "default", "bulk"]


@pytest.mark.postgres
def test_eight_fetchers_share_twenty_thousand_jobs_and_none_is_fetched_twice_or_lost(
    database_url, tmp_path
):
    for queue in QUEUES:
        many_jobs(JOBS // 4, queue=queue)
    many_jobs(JOBS // 4, queue="bulk", scheduled=True, scheduled_at=ago(1))
    environment = processes.environment(database_url)

    with contextlib.ExitStack() as running:
        fetchers = [
            running.enter_context(
                processes.running(
                    [sys.executable, "-m", "tests.concurrency.fetcher", name, "2", *QUEUES],
                    tmp_path / name,
                    environment,
                )
            )
            for name in ("a", "b", "c", "d")
        ]
        assert [fetcher.wait() for fetcher in fetchers] == [0] * 4, [
            fetcher.output[-2000:] for fetcher in fetchers
        ]
    given = Counter(job_id for fetcher in fetchers for job_id in fetcher.output.split())

    assert given.most_common(1)[0][1] == 1, "fetched twice"
    assert set(given) == {str(job_id) for job_id in Job.objects.values_list("pk", flat=True)}
    done = Job.objects.values_list("state", "attempt").distinct()
    assert list(done) == [(State.COMPLETED, 1)]
    assert Job.objects.values("finished_by").distinct().count() == 8, "everybody had a share"
    assert Event.objects.filter(type="job.started").count() == JOBS


def test_threads_that_fetch_the_same_job_at_the_same_moment_get_it_once():
    for _ in range(20):
        job = JobFactory()
        given = together(
            *(lambda name=name: protocol.fetch(["default"], worker_id=name) for name in "abcd")
        )
        assert sorted(len(jobs) for jobs in given) == [0, 0, 0, 1]
        job.refresh_from_db()
        assert job.attempt == 1


def test_a_limited_queue_is_never_over_its_limit():
    QueueFactory(name="default", concurrency=3)
    many_jobs(60)
    active = Job.objects.active().filter(queue="default")

    def work(name: str) -> list[int]:
        seen = []
        for _ in range(15):
            jobs = protocol.fetch(["default"], worker_id=name, count=2)
            seen.append(active.count())
            protocol.ack([protocol.Completion(job.id, name) for job in jobs])
        return seen

    seen = together(*(lambda name=name: work(name) for name in "abcdefgh"))

    assert max(max(counts) for counts in seen) <= 3
    assert Job.objects.filter(state=State.COMPLETED).exists()


def test_once_a_pause_is_answered_no_fetch_that_begins_gives_a_job():
    many_jobs(500)
    # Grows with each pause and each resume: odd while the queue is certainly paused.
    turns = [0]
    over = threading.Event()
    given_while_paused: list[str] = []

    def fetch_on_and_on() -> int:
        total = 0
        while not over.is_set():
            before = turns[0]
            jobs = protocol.fetch(["default"], worker_id="w", count=1)
            total += len(jobs)
            if before % 2 and before == turns[0]:
                given_while_paused.extend(str(job.id) for job in jobs)
        return total

    def pause_again_and_again() -> int:
        try:
            for _ in range(25):
                engine.pause("default")
                turns[0] += 1
                assert protocol.fetch(["default"], worker_id="other") == []
                turns[0] += 1
                engine.resume("default")
        finally:
            over.set()
        return 0

    given = together(pause_again_and_again, *[fetch_on_and_on] * 3)

    assert given_while_paused == []
    assert sum(given) > 0
