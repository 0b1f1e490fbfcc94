"""A short form of each part of the campaign; `make campaign` is the long one."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.processes import ROOT

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
