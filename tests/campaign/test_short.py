"""A short form of each part of the campaign; `make campaign` is the long one."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import psutil
import pytest

from tests.processes import ROOT, eventually

from .options import BROKEN, KEPT, PARTS, SKIPPED

# Each has its own PostgreSQL, whichever database the suite runs on: once is enough.
pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: Any) -> tuple[dict[str, Any], str]:
    """The results of all parts, and the output: one run, with tables created once."""
    folder = tmp_path_factory.mktemp("campaign")
    command = [sys.executable, "-m", "tests.campaign", "--short", "--json", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    said = f"{done.stdout}\n{done.stderr[-5000:]}"
    assert done.returncode in (KEPT, BROKEN, SKIPPED), said
    return json.loads((folder / "campaign.json").read_text()), said


@pytest.mark.parametrize("part", PARTS)
def test_every_job_is_accounted_for_whatever_breaks(part, campaign):
    found, said = campaign
    if part in found["skipped"]:
        pytest.skip(found["skipped"][part])

    outcomes = [outcome for outcome in found["outcomes"] if outcome["part"].startswith(part)]

    assert outcomes, said
    assert [outcome["all_broken"] for outcome in outcomes] == [[]] * len(outcomes), said
    assert all(outcome["account"]["jobs"] for outcome in outcomes), said


def test_nothing_outlives_a_campaign_whose_caller_is_killed():
    command = [sys.executable, "-m", "tests.campaign", "--short", "--part", "d"]
    caller = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
    started: set[psutil.Process] = set()

    def has_a_server() -> bool:
        started.update(psutil.Process(caller.pid).children(recursive=True))
        return any("runhttp" in name_of(process) for process in started)

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
