"""FETCH that waits for work, on a real server (worker protocol §6.1: a blocking long poll).

The server polls only once in ten minutes, so on PostgreSQL only the notification of another process
can wake a fetch.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from django.utils import timezone

from jobs import engine
from jobs.models import Job, Listener
from jobs.spec.lifecycle import State
from jobs.spec.validation import new_job
from tests import processes
from tests.database import connection
from tests.factories import JobFactory, QueueFactory, WorkerFactory, ago, ahead
from workers import protocol
from workers.chores import reaper

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


@pytest.fixture
def waiting(database_url, tmp_path):
    """Start waiting fetches: `waiting("default", worker_id="w")` is a future of the jobs."""
    environment = processes.environment(
        database_url, ALLOW_ANONYMOUS=1, WAIT_POLL_INTERVAL=600, MAX_WAIT=600
    )
    with processes.server(tmp_path, environment) as api, ThreadPoolExecutor(4) as pool:

        def fetch(*queues: str, wait_ms: int = 600_000, **body) -> Future[list]:
            asked = {"queues": list(queues), "wait_ms": wait_ms} | body
            future = pool.submit(lambda: api.post("workers/fetch", asked)["jobs"])
            if connection.vendor == "postgresql" and wait_ms:
                processes.eventually(Listener.objects.exists)
            return future

        fetch.api = api
        yield fetch


def push(queue: str = "default", **options) -> None:
    job = {"type": "email.send", "args": [], "options": {"queue": queue} | options}
    engine.enqueue([new_job(job, timezone.now())])


def test_a_waiting_fetch_is_woken_by_a_job_that_another_process_enqueues(waiting):
    fetched = waiting("empty", "default", worker_id="w")

    push()

    (job,) = fetched.result(processes.PATIENCE)
    assert (job["state"], job["attempt"]) == ("active", 1)
    assert Job.objects.get().reserved_by == "w"


def test_a_waiting_fetch_is_woken_by_a_job_enqueued_over_http(waiting):
    fetched = waiting("default")

    waiting.api.post("jobs", {"type": "email.send", "args": []})

    assert len(fetched.result(processes.PATIENCE)) == 1


def given_back() -> None:
    job = JobFactory(active=True, reserved_by="v")
    protocol.fail([protocol.Failure(job.pk, "v", release=True)])


def recovered() -> None:
    worker = WorkerFactory(silent=True)
    JobFactory(active=True, reserved_by=worker.pk)
    reaper.sweep()


def expired() -> None:
    JobFactory(active=True, reserved_until=ago(1))
    reaper.sweep()


def fell_due() -> None:
    JobFactory(scheduled=True, scheduled_at=ago(1))
    reaper.sweep()


def activated() -> None:
    engine.activate(JobFactory(pending=True).pk)


def retried() -> None:
    engine.retry([JobFactory(dead=True).pk])


def resumed() -> None:
    JobFactory()
    engine.resume("default")


@pytest.mark.parametrize(
    "event",
    [given_back, recovered, expired, fell_due, activated, retried, resumed],
    ids=lambda event: event.__name__,
)
def test_a_waiting_fetch_is_woken_by_whatever_makes_a_job_available(waiting, event):
    if event is resumed:
        QueueFactory(name="default", paused=True)
    fetched = waiting("default")

    event()

    assert len(fetched.result(processes.PATIENCE)) == 1


def test_a_waiting_fetch_gets_the_place_of_a_job_that_ends_in_another_process(waiting):
    QueueFactory(name="default", concurrency=1)
    running, next_job = JobFactory(active=True, reserved_by="v"), JobFactory()
    fetched = waiting("default")

    protocol.ack([protocol.Completion(running.pk, "v")])

    (job,) = fetched.result(processes.PATIENCE)
    assert job["id"] == str(next_job.pk)


def test_a_job_goes_to_one_of_those_that_wait(waiting):
    fetches = [waiting("default"), waiting("default")]

    push()
    push()

    given = [job["id"] for fetch in fetches for job in fetch.result(processes.PATIENCE)]
    assert len(set(given)) == len(given) == 2


def test_a_wait_that_was_in_vain_ends_with_an_empty_list(waiting):
    JobFactory(queue="another")
    JobFactory(scheduled=True, scheduled_at=ahead(3600))

    assert waiting("default", wait_ms=300).result(processes.PATIENCE) == []


def test_what_is_there_already_is_given_without_waiting(waiting):
    push()

    assert len(waiting("default", wait_ms=0).result(processes.PATIENCE)) == 1


def test_a_quiet_worker_waits_for_nothing(waiting):
    WorkerFactory(worker_id="w", state="quiet")
    push()

    assert waiting("default", worker_id="w", wait_ms=300).result(processes.PATIENCE) == []
    assert Job.objects.get().state == State.AVAILABLE


def test_acks_are_served_while_others_wait(waiting):
    job = JobFactory(active=True, reserved_by="v")
    fetched = waiting("default")

    waiting.api.post("workers/ack", {"job_id": str(job.pk), "worker_id": "v"})

    assert not fetched.done()
    push()
    assert fetched.result(processes.PATIENCE)
