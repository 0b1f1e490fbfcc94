"""The README is correct: its options, its curl session, its worker, run unchanged."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.management.commands.ojsconfig import reference

from . import processes

README = (Path(__file__).resolve().parent.parent / "README.md").read_text()


def block(language: str, starts: str) -> str:
    blocks: list[str] = re.findall(rf"```{language}\n(.*?)```", README, re.S)
    return next(text for text in blocks if text.startswith(starts))


def test_the_configuration_reference_is_what_the_code_says():
    table = re.search(r"<!-- options.*?-->\n(.*)\n<!-- end of options -->", README, re.S)

    assert table is not None
    assert table[1] == reference(), "Run `manage.py ojsconfig --markdown` and paste it."


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_session_works_when_pasted(database_url, tmp_path):
    environment = processes.environment(database_url, ALLOW_ANONYMOUS=1)
    with processes.server(tmp_path, environment) as api:
        session = block("bash", "OJS=").replace("http://127.0.0.1:8000", api.url)
        done = subprocess.run(
            ["bash", "-euo", "pipefail"], input=session, capture_output=True, text=True, check=False
        )
        completed = [
            event for event in api.get("events")["events"] if event["type"] == "job.completed"
        ]

    assert done.returncode == 0, done.stderr
    assert '"error"' not in done.stdout
    assert '"deregistered":true' in done.stdout
    assert [event["data"]["worker_id"] for event in completed] == ["by-hand"]


@pytest.mark.slow
def test_the_worker_in_thirty_lines_works_and_obeys(database_url, tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(block("python", "import json, os"))
    environment = processes.environment(database_url, ALLOW_ANONYMOUS=1)
    with processes.server(tmp_path, environment, threads=8) as api:
        job = api.post("jobs", {"type": "greet.somebody", "args": ["you"]})["job"]
        started = processes.running(
            [sys.executable, "-u", str(worker)],
            tmp_path / "worker.log",
            environment | {"OJS_URL": api.url},
        )
        with started as process:
            processes.eventually(
                lambda: api.get(f"jobs/{job['id']}")["job"]["state"] == "completed",
                lambda: process.output,
            )
            terminate_all_workers()
            assert process.wait() == 0

    assert "greet.somebody ['you']" in process.output


def terminate_all_workers() -> None:
    from workers.lifecycle import WorkerState
    from workers.models import Worker

    assert Worker.objects.direct(WorkerState.TERMINATE) == 1
