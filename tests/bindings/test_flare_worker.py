"""The worker of docs/protocols/flare.md, unchanged, against a real server; also killed."""

from __future__ import annotations

import re
import sys

import httpx
import pytest

from jobs.models import Job
from jobs.spec.lifecycle import State
from tests import processes
from workers.models import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

PAGE = (processes.ROOT / "docs" / "protocols" / "flare.md").read_text()
# Holds its first job forever, like a worker that is killed while it works.
HANGING = 'print("Hello,", job["payload"]["name"], flush=True)'


@pytest.fixture
def site(database_url, tmp_path):
    environment = processes.environment(database_url, ALLOW_ANONYMOUS=1, FLARE_ENABLED=1)
    environment["OJS_REAPER_INTERVAL"] = "0.1"
    with (
        processes.server(tmp_path, environment) as api,
        processes.manage(tmp_path, environment, "runreaper"),
    ):
        yield api, environment | {"FLARE_URL": api.url}


@pytest.fixture
def worker(site, tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert HANGING in code

    def start(name, code=code):
        path = tmp_path / f"{name}.py"
        path.write_text(code)
        command = [sys.executable, "-u", str(path)]
        return processes.running(command, tmp_path / f"{name}.log", site[1])

    start.code = code
    return start


def enqueue(site, **body):
    reply = httpx.post(f"{site[0].url}/flare/v1/jobs", json={"job_type": "greet"} | body)
    assert reply.status_code == 201, reply.text
    return reply.json()["id"]


def succeeded(site, job_id):
    return httpx.get(f"{site[0].url}/flare/v1/jobs/{job_id}").json()["status"] == "succeeded"


def test_the_worker_of_the_page_runs_jobs_of_both_protocols(site, worker):
    job_id = enqueue(site, payload={"name": "you"})
    site[0].post("jobs", {"type": "greet", "args": [{"name": "both"}]})

    with worker("plain") as process:
        processes.eventually(
            lambda: Job.objects.filter(state=State.COMPLETED).count() == 2, lambda: process.output
        )

    assert succeeded(site, job_id)
    assert {"Hello, you", "Hello, both"} <= set(process.output.splitlines())


def test_the_job_of_a_worker_that_was_killed_is_run_by_another(site, worker):
    job_id = enqueue(site, payload={"name": "again"}, timeout_seconds=2)
    with worker("doomed", worker.code.replace(HANGING, HANGING + "; time.sleep(600)")) as doomed:
        doomed.wait_for("Hello, again")
        doomed.process.kill()
        doomed.wait()

    with worker("survivor") as survivor:
        processes.eventually(lambda: succeeded(site, job_id), lambda: survivor.output)

    job = Job.objects.get()
    assert job.attempt == 2
    (error,) = job.errors.all()
    assert error.type == "visibility_timeout"
    assert job.finished_by != error.worker_id
    # Its late report is refused: the reaper has reclaimed the job.
    late = httpx.post(
        f"{site[0].url}/flare/v1/workers/ack",
        json={"worker_id": error.worker_id, "job_id": job_id, "status": "succeeded"},
    )
    assert (late.status_code, late.json()["error"]["code"]) == (409, "invalid_state")
    assert Worker.objects.filter(protocol="flare").count() == 2
