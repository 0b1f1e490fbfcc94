"""Workers killed while they hold jobs: every job ends completed (OJS worker protocol §10).

Real processes: a server, a reaper, and workers that are plain HTTP clients.
"""

from __future__ import annotations

import contextlib
import signal
import sys

import pytest
from django.utils import timezone

from jobs import engine
from jobs.models import Job
from jobs.spec.lifecycle import State
from jobs.spec.validation import new_job
from tests import processes
from workers.models import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

PLAIN_WORKER = str(processes.ROOT / "tests" / "concurrency" / "plain_worker.py")


def push(kind: str, count: int) -> set:
    now = timezone.now()
    jobs = engine.enqueue([new_job({"type": kind, "args": []}, now) for _ in range(count)])
    return {job.id for job in jobs}


@pytest.fixture
def backend(database_url, tmp_path):
    """A server and a reaper that gives up on a worker after ten seconds of silence."""
    environment = processes.environment(
        database_url, ALLOW_ANONYMOUS=1, HEARTBEAT_TIMEOUT=10, REAPER_INTERVAL=0.1
    )
    with (
        processes.server(tmp_path, environment) as api,
        processes.manage(tmp_path, environment, "runreaper") as reaper,
    ):
        api.reaper = reaper
        yield api


@pytest.fixture
def start_worker(backend, tmp_path):
    with contextlib.ExitStack() as workers:

        def start(name: str) -> processes.Running:
            command = [sys.executable, PLAIN_WORKER, backend.url, name]
            log = tmp_path / f"{name}.log"
            return workers.enter_context(processes.running(command, log, {}))

        yield start


def holds_a_hanging_job(name: str) -> bool:
    return Job.objects.held_by(name).filter(type="hang", attempt=1).exists()


def test_every_job_of_workers_that_were_killed_ends_completed(backend, start_worker):
    hanging, quick = set(), set()
    for _ in range(4):
        hanging |= push("hang", 1)
        quick |= push("quick", 10)
    doomed = {}

    # Each of them gets a job that it never finishes, and is killed.
    while Job.objects.filter(pk__in=hanging, state=State.AVAILABLE).exists():
        name = f"doomed-{len(doomed)}"
        doomed[name] = start_worker(name)
        processes.eventually(
            lambda name=name: holds_a_hanging_job(name), lambda name=name: doomed[name].output
        )
    assert len(doomed) >= 2
    for worker in doomed.values():
        worker.process.kill()
        worker.process.wait()
    survivor = start_worker("survivor")

    processes.eventually(
        lambda: not Job.objects.exclude(state=State.COMPLETED).exists(),
        lambda: backend.reaper.output + survivor.output,
    )

    assert survivor.process.poll() is None, survivor.output
    lost = set()
    for job in Job.objects.prefetch_related("errors"):
        history = [(error.attempt, error.type) for error in job.errors.all()]
        if history:
            lost.add(job.pk)
            assert history == [(1, "worker_death")]
            assert job.errors.all()[0].worker_id in doomed
            assert (job.attempt, job.finished_by) == (2, "survivor")
        else:
            assert job.attempt == 1
    assert lost >= hanging
    assert len(lost | quick) == 44, "no job but those is there"
    assert set(Worker.objects.live().values_list("pk", flat=True)) == {"survivor"}
    # It is reported when the whole sweep is over; the survivor may be quicker.
    backend.reaper.wait_for("workers declared dead")


def test_a_worker_that_was_only_stopped_for_a_while_finds_its_jobs_gone(backend, start_worker):
    """Split brain (§10.4): frozen past its heartbeat timeout, then it continues."""
    push("hang", 1)
    frozen = start_worker("frozen")
    processes.eventually(lambda: holds_a_hanging_job("frozen"), lambda: frozen.output)

    frozen.process.send_signal(signal.SIGSTOP)
    start_worker("survivor")
    processes.eventually(lambda: Job.objects.filter(state=State.COMPLETED).exists())
    frozen.process.send_signal(signal.SIGCONT)
    processes.eventually(lambda: Worker.objects.live().filter(pk="frozen").exists())

    job = Job.objects.get()
    assert (job.attempt, job.finished_by) == (2, "survivor")
    assert [error.type for error in job.errors.all()] == ["worker_death"]
    assert Worker.objects.get(pk="frozen").died_at is not None
