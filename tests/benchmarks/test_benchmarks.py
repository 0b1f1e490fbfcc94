"""The benchmarks run at all, in their tiniest size; nothing here looks at a clock."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from django.db import connection

from .plan import OTHERS
from .servers import ROOT

pytestmark = [pytest.mark.slow]
KINDS = {"postgresql": "postgres", "sqlite": "sqlite"}
ON_BOTH = {
    "HTTP, 1 server process: floor: a bare DRF view",
    "HTTP, 1 server process: enqueue 1000",
    "HTTP, 1 server process: fetch 1 + ack 1",
    "HTTP, 1 server process: fetch 10 carrying acks",
    "HTTP, 1 server process: heartbeat, 10 jobs",
    "Engine in process, one connection: fetch + ack 10",
}
ON_POSTGRESQL = {
    "The limit: claim n + ack n, bare: psycopg: claim + ack 10",
    "HTTP, 1 server process: heartbeat of many workers, 10 jobs",
    "Recovery of dead workers' jobs: 200 jobs of 100 dead workers",
    "FETCH 10, by what is in the table: 200 available",
    "ACK 10, by what is in flight: 40 in flight",
}


def test_every_benchmark_runs_and_is_reported(tmp_path):
    kind = KINDS[connection.vendor]
    file = tmp_path / "results.json"
    command = [sys.executable, "-m", "tests.benchmarks", "--smoke", "--database", kind]
    command += ["--processes", "1", "--json", str(file)]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    measured = {
        f"{result['group']}: {result['name']}": result["median"]
        for result in json.loads(file.read_text())[kind]
    }
    expected = ON_BOTH | (ON_POSTGRESQL if kind == "postgres" else set())
    assert expected <= measured.keys()
    measured.pop(": ".join(OTHERS))
    assert [name for name, median in measured.items() if not median > 0] == []
    assert "fetch 10 carrying acks" in done.stdout
    assert ("HTTP one by one" in done.stdout) is (kind == "postgres")
