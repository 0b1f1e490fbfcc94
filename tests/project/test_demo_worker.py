"""The demonstration worker keeps the worker protocol, over HTTP against a real server."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from jobs import engine
from jobs.models import Job
from tests import processes
from tests.processes import Api, Running, eventually
from workers.lifecycle import WorkerState
from workers.models import Worker

pytestmark = pytest.mark.slow


@pytest.fixture
def api(database_url, tmp_path) -> Iterator[Api]:
    environment = processes.environment(
        database_url, ALLOW_ANONYMOUS=1, HEARTBEAT_INTERVAL=0.2, HEARTBEAT_TIMEOUT=30
    )
    with processes.server(tmp_path, environment, threads=8) as api:
        yield api


@contextmanager
def working(api: Api, folder: Path, *arguments: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "ojs_project.demo_worker", "--url", api.url, *arguments]
    # No variable of Django's: it knows nothing but the address.
    environment = {"PYTHONPATH": str(processes.ROOT), "PATH": ""}
    with processes.running(command, folder / "worker.log", environment) as worker:
        worker.wait_for("Registered")
        yield worker


@pytest.fixture
def worker(api, tmp_path) -> Iterator[Running]:
    with working(api, tmp_path, "--concurrency", "2", "--grace", "0.5") as worker:
        yield worker


LATER = {"max_attempts": 3, "initial_interval": "PT1H"}
"""So that a job that failed is still waiting for its retry when a busy machine looks at it."""


def enqueue(api: Api, job_type: str = "demo.fast", *args: object, **options: object) -> Job:
    job = {"type": job_type, "args": list(args), "options": {"queue": "demo"} | options}
    return Job.objects.get(pk=api.post("jobs", job)["job"]["id"])


def becomes(job: Job, state: str) -> Job:
    def reached() -> bool:
        job.refresh_from_db()
        return job.state == state

    eventually(reached, lambda: f"the job is {job.state}, not {state}")
    return job


def taken(job: Job, worker: Running) -> Job:
    """Wait until the worker has begun the job: between the claim and that, it may give it back."""
    worker.wait_for(f"{job.type} {job.pk}, attempt 1")
    job.refresh_from_db()
    return job


def says(state: str) -> None:
    eventually(
        lambda: Worker.objects.get().state == state,
        lambda: f"the worker is {Worker.objects.get().state}, not {state}",
    )


def test_it_registers_with_all_it_has_to_say(api, worker):
    known = Worker.objects.get()

    assert known.registered_at is not None and known.started_at is not None
    assert (known.pid, known.queues, known.concurrency) == (worker.process.pid, ["demo"], 2)
    assert known.hostname and known.labels == ["demo"]


def test_its_heartbeats_name_its_jobs_and_are_numbered(api, worker):
    job = becomes(enqueue(api, "demo.slow", 60), "active")

    eventually(lambda: Worker.objects.get().active_job_ids == [str(job.pk)])
    seen = Worker.objects.get().sequence
    eventually(lambda: Worker.objects.get().sequence > seen)


def test_it_runs_no_more_jobs_than_it_said(api, worker):
    busy = [becomes(enqueue(api, "demo.slow", 60), "active") for _ in range(2)]
    waiting = enqueue(api)

    engine.cancel(busy[0].pk)

    # The heartbeat tells it that the job is lost; that makes room.
    becomes(waiting, "completed")
    worker.wait_for(f"Lost job {busy[0].pk}")
    # Nor did it ask for any while it had no room, which the server would have refused.
    assert "Fetch failed" not in worker.output


def test_it_obeys_quiet_and_the_resume_of_it(api, worker):
    busy = taken(enqueue(api, "demo.slow", 1), worker)
    assert Worker.objects.direct(WorkerState.QUIET) == 1
    says("quiet")
    becomes(busy, "completed")
    waiting = enqueue(api)

    assert Worker.objects.resume() == 1

    says("running")
    becomes(waiting, "completed")
    assert waiting.started_at > busy.finished_at


def test_a_quiet_worker_does_not_even_ask_for_jobs(tmp_path):
    asked: list[str] = []

    class Recorder(BaseHTTPRequestHandler):
        """A server that has no jobs, and wants quiet from the fifth request on."""

        def do_POST(self) -> None:
            asked.append(self.path.rsplit("/", 1)[1])
            self.rfile.read(int(self.headers["Content-Length"]))
            state = "quiet" if len(asked) > 5 else "running"
            reply = json.dumps({"heartbeat_interval": 0.05, "state": state, "jobs": []}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *args: object) -> None:
            """Silence."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with working(Api(f"http://127.0.0.1:{server.server_port}"), tmp_path) as worker:
            worker.wait_for("Now quiet")
            before = len(asked)
            # Longer than it pauses between two fetches.
            eventually(lambda: asked[before:].count("heartbeat") > 20)
            after = asked[before:]
        server.shutdown()

    # One may have been under way.
    assert "fetch" in asked[:before] and after.count("fetch") <= 1


def test_a_quiet_by_signal_ends_by_signal_alone(api, worker):
    worker.process.send_signal(signal.SIGTSTP)
    says("quiet")
    beats = Worker.objects.get().sequence
    eventually(lambda: Worker.objects.get().sequence > beats + 2)
    assert Worker.objects.get().state == "quiet"

    worker.process.send_signal(signal.SIGCONT)

    says("running")
    becomes(enqueue(api), "completed")


def test_told_to_terminate_it_fails_what_outlasts_the_grace_period_and_leaves(api, worker):
    job = taken(enqueue(api, "demo.slow", 60), worker)

    assert Worker.objects.direct(WorkerState.TERMINATE) == 1

    assert worker.wait() == 0
    becomes(job, "retryable")
    assert [error.type for error in job.errors.all()] == ["shutdown"]
    assert Worker.objects.get().left_at is not None


def test_sigterm_lets_it_finish_what_it_has(api, tmp_path):
    with working(api, tmp_path, "--grace", "30") as worker:
        job = taken(enqueue(api, "demo.slow", 1), worker)

        assert worker.terminate() == 0

    becomes(job, "completed")
    assert Worker.objects.get().left_at is not None


def test_a_type_it_has_no_handler_for_is_failed_for_good(api, worker):
    job = becomes(enqueue(api, "somebody.elses"), "discarded")

    assert (job.attempt, job.errors.get().type) == (1, "unknown_type")


def test_an_error_is_reported_with_where_it_happened(api, worker):
    job = becomes(enqueue(api, "demo.broken", retry=LATER), "retryable")

    error = job.errors.get()
    assert error.type == "ValueError" and "broken" in "".join(error.backtrace)
