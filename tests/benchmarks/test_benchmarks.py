"""The benchmarks run at their smallest size; nothing here depends on durations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from .fast_paths import FAST_PATHS
from .network import lack
from .places import CLOCKS, CUT_OFF, ELSEWHERE, LOST, PROCESSORS, WOKEN
from .plan import OTHERS
from .servers import ROOT

pytestmark = [pytest.mark.slow]
on_request = pytest.mark.skipif(
    "OJS_TEST_BENCHMARKS" not in os.environ, reason="takes minutes: OJS_TEST_BENCHMARKS=1"
)
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

WHILE_WAITING = {
    "10 waiting fetches: memory",
    "10 waiting fetches: heartbeat, p99",
    "10 waiting fetches: enqueue to start, p99",
    "5 event streams: all have heard",
    "5 unfinished bodies: health, slowest",
    "5 unfinished logins: enqueue and fetch, slowest",
    "20 fetches that left: memory, of before",
    "3 fetches at SIGTERM: until the last has ended",
}


OF_A_STEADY_LOAD = {
    "peak",
    "rate",
    "throughput",
    "fetch, p99",
    "fetch, p50: with 20 finished jobs, of without",
}

WITH_FILLED_TABLES = {
    "FETCH of ten, p50: filled",
    "FETCH of ten, p99: small",
    "heartbeat with ten jobs, p99: filled",
    "enqueue 100, p50: small",
    "slowest",
    "a sweep with every chore: longest transaction",
    "retry of the whole dead letter: longest transaction",
    "purge of the completed jobs of a type: FETCH p99 beside it",
    "retention: whole",
    "group of 200: creation: whole",
    "graph of 200: last steps",
    "graph of 200: cancelling: longest transaction",
    "graph of 200: retrying: whole",
}

ON_MACHINES = {
    ": ".join(PROCESSORS),
    "Machines: fetch 10 + ack 10: 1 machine",
    "Machines: enqueue 1: 3 machines",
    f"{WOKEN}: across machines, p50",
    f"{CUT_OFF}: {ELSEWHERE}",
}


def measured(
    folder: Path, *words: str, kind: str = "postgres", before: Sequence[str] = ()
) -> tuple[Any, list[Any]]:
    """Run the smallest size with these arguments; return the process and what it measured."""
    file = folder / "results.json"
    command = [*before, sys.executable, "-m", "tests.benchmarks", "--smoke", *words]
    command += ["--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done, json.loads(file.read_text()).get(kind, [])


def test_every_benchmark_runs_and_is_reported(tmp_path):
    kind = KINDS[connection.vendor]
    words = ["--database", kind, "--processes", "1"]
    expected = ON_BOTH | ON_POSTGRESQL
    if kind == "sqlite":
        words += ["--only", "fetch"]
        expected = {name for name in ON_BOTH if "fetch" in name}

    done, results = measured(tmp_path, *words, kind=kind)

    medians = {f"{result['group']}: {result['name']}": result["median"] for result in results}
    assert expected <= medians.keys()
    medians.pop(": ".join(OTHERS))
    assert [name for name, median in medians.items() if not median > 0] == []
    assert "fetch 10 carrying acks" in done.stdout
    assert ("HTTP one by one" in done.stdout) is (kind == "postgres")


@on_request
@pytest.mark.postgres
def test_what_waits_is_measured_in_each_way(tmp_path):
    done, results = measured(tmp_path, "--part", "waiting")

    assert {result["name"] for result in results} >= WHILE_WAITING, done.stderr
    assert "5,000 waiting fetches: memory" in done.stdout


@on_request
@pytest.mark.postgres
def test_a_steady_load_is_measured_minute_by_minute_and_judged(tmp_path):
    done, results = measured(tmp_path, "--part", "soak", "--partitioned")

    assert {result["name"] for result in results} >= OF_A_STEADY_LOAD, done.stderr
    minutes = [line for line in done.stderr.splitlines() if line[:6].strip().isdigit()]
    assert len(minutes) == 6, done.stderr
    assert sum("a transaction is idle" in line for line in minutes) == 1
    judged = [line for line in done.stdout.splitlines() if "p99 of the last ten minutes" in line]
    assert len(judged) == 4, done.stdout


@on_request
@pytest.mark.postgres
def test_filled_tables_are_measured_and_judged(tmp_path):
    done, results = measured(tmp_path, "--part", "filled")

    assert {result["name"] for result in results} >= WITH_FILLED_TABLES, done.stderr
    assert "GB of the disk are needed" in done.stderr
    (retried,) = [
        each for each in results if each["name"] == "retry of the whole dead letter: whole"
    ]
    assert retried["note"] == "(60 jobs, progress seen 3 times)"
    judged = [line for line in done.stdout.splitlines() if "of small ones" in line]
    assert len(judged) == 12 and not any("not measured" in line for line in judged), done.stdout


@on_request
@pytest.mark.postgres
def test_machines_are_measured_and_no_job_is_lost_whatever_happens_to_them(tmp_path):
    if missing := lack():
        pytest.skip(f"no machines here: {missing}")
    # A browser gives up what it loads when a cable appears beside it.
    apart = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]

    done, results = measured(tmp_path, "--part", "machines", before=apart)

    medians = {f"{result['group']}: {result['name']}": result["median"] for result in results}
    assert medians.keys() >= ON_MACHINES, done.stderr
    # Without a C compiler no clock can be wrong.
    groups = [group for group in (CUT_OFF, CLOCKS) if f"{group}: {LOST}" in medians]
    assert CUT_OFF in groups
    for group in groups:
        assert medians[f"{group}: jobs that were confirmed"] > 0
        for fault in (LOST, "jobs completed twice", "attempts unaccounted for"):
            assert medians[f"{group}: {fault}"] == 0, done.stderr
    assert "a fetch woken across machines" in done.stdout


@on_request
@pytest.mark.postgres
def test_what_a_standby_relieves_its_primary_of_is_measured(tmp_path):
    done, results = measured(tmp_path, "--part", "standby")

    names = {result["name"] for result in results}
    assert names >= {
        "dashboard: primary, without a standby",
        "dashboard: primary, with a standby",
        "events: standby",
    }, done.stderr


@pytest.mark.postgres
def test_every_page_is_measured_and_takes_few_queries_with_a_thousand_workers():
    command = [sys.executable, "-m", "tests.benchmarks", "--smoke", "--part", "pages"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "met          most queries of an admin page" in done.stdout, done.stdout


@on_request
@pytest.mark.postgres
def test_another_checkout_is_measured_in_turn(tmp_path):
    """Here it is this one once more, under another path."""
    other = tmp_path / "older"
    other.symlink_to(ROOT)
    command = [sys.executable, "-m", "tests.benchmarks", "--beside", str(other), "--smoke"]
    command += ["--rounds", "1", "--only", "fetch + ack 10"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    line, *_ = [line for line in done.stdout.splitlines() if "fetch + ack 10" in line]
    before, now, ratio = (float(word.replace(",", "")) for word in line.split()[-4:-1])
    assert before > 0 and now > 0 and ratio > 0


@on_request
@pytest.mark.postgres
def test_every_fast_path_can_be_turned_off_and_is_answered_the_same(tmp_path):
    done, results = measured(tmp_path, "--part", "paths")

    checked = [path.name for path in FAST_PATHS if f"  {path.name}: checked\n" in done.stderr]
    assert checked == [path.name for path in FAST_PATHS], done.stderr
    names = {result["name"] for result in results}
    for operation in ("in process: enqueue 1000", "runjobworker"):
        assert any(f": {operation}: processor time" in name for name in names), names
    assert "| direct answers |" in done.stdout
