"""A short form of each part of the campaign; `make campaign` is the long one."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest

from tests.processes import ROOT, eventually

from .options import KEPT, PARTS, SKIPPED

# Each has a PostgreSQL of its own, whichever database the suite runs on: once is enough.
pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(420)]


@pytest.mark.parametrize("part", PARTS)
def test_every_job_is_accounted_for_whatever_breaks(part, tmp_path):
    command = [sys.executable, "-m", "tests.campaign", "--short", "--part", part]
    command += ["--json", str(tmp_path)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    said = f"{done.stdout}\n{done.stderr[-5000:]}"
    assert done.returncode in (KEPT, SKIPPED), said
    found = json.loads((tmp_path / "campaign.json").read_text())
    if done.returncode == SKIPPED and not found["outcomes"]:
        pytest.skip(found["skipped"][part])
    assert all(outcome["account"]["jobs"] for outcome in found["outcomes"]), said


def test_nothing_outlives_a_campaign_whose_caller_is_killed():
    command = [sys.executable, "-m", "tests.campaign", "--short", "--part", "d"]
    caller = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    started: set[psutil.Process] = set()

    def has_a_server() -> bool:
        started.update(psutil.Process(caller.pid).children(recursive=True))
        return any("granian" in name_of(process) for process in started)

    try:
        eventually(has_a_server)
    finally:
        caller.kill()
        caller.wait()

    eventually(lambda: not any(process.is_running() for process in started))


def name_of(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
