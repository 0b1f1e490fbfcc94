"""One request at a time, beside the Open Job Spec's reference server for PostgreSQL, in one run.

    python -m tests.benchmarks.reference --folder FOLDER [--rounds 5] [--seconds 2] [--json FILE]

FOLDER has two programs: `server`, the reference server, and `load`, a load client for both servers
(docs/performance.md describes their options). Both servers use one PostgreSQL, each with a database
of its own. Everything is measured on one server right after the other; the jobs of both are
deleted before each measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests import postgres
from tests.processes import free_port

from . import goals
from .places import REFERENCE, STOCKS, THEIRS, among, of_reference, ours
from .plan import Plan, rounds, say, stop_when_asked
from .results import Results
from .servers import command, environment, serve
from .tables import EMPTIED

PROGRAMS = ("server", "load")
QUEUE = "load"
AT_A_TIME = 100
RATE = re.compile(r"jobs/s +(\d+) .* bad (\d+)$", re.MULTILINE)
WARM_UP = 0.3


@dataclass(frozen=True)
class Work:
    name: str
    operation: str
    connections: int
    count: int = 1
    stock: int = 0
    """Available jobs before the measurement."""


def all_work(stocks: Sequence[int]) -> list[Work]:
    return [
        Work("enqueue 1", "enqueue", 8),
        Work("enqueue 1", "enqueue", 1),
        Work("enqueue 100", "enqueue", 4, AT_A_TIME),
        *(Work(among(goals.ONE_BY_ONE, stock), "pair", 8, stock=stock) for stock in stocks),
        Work("heartbeat, no jobs", "beat", 8),
        Work("heartbeat, no jobs", "beat", 32),
    ]


@dataclass
class Side:
    """One of the servers."""

    name: str
    port: int
    key: str
    database_url: str
    empty: str
    """The statement that deletes its jobs and workers."""

    def prepare(self, jobs: int) -> None:
        """Delete all its jobs, then enqueue as many new ones, over HTTP."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(self.empty.encode())
            self._enqueue(jobs)
            connection.execute("VACUUM ANALYZE")
            connection.execute("CHECKPOINT")

    def _enqueue(self, jobs: int) -> None:
        job = {"type": "load.noop", "args": [1, "x"], "options": {"queue": QUEUE}}
        body = json.dumps({"jobs": [job] * AT_A_TIME})
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            for _ in range(0, jobs, AT_A_TIME):
                connection.request("POST", "/ojs/v1/jobs/batch", body, headers)
                response = connection.getresponse()
                text = response.read()
                if response.status >= 300:
                    raise RuntimeError(f"{self.name}: {response.status} {text.decode()}")

    def drive(self, load: Path, work: Work, seconds: float) -> tuple[float, int]:
        """Run the load client; return its jobs per second and the number of refused requests."""
        options = {
            "url": f"http://127.0.0.1:{self.port}",
            "key": self.key,
            "op": work.operation,
            "c": work.connections,
            "n": work.count,
            "s": seconds,
            "q": QUEUE,
        }
        given = [text for name, value in options.items() for text in (f"-{name}", str(value))]
        done = subprocess.run([load, *given], capture_output=True, text=True, check=True)
        found = RATE.search(done.stdout)
        if not found:
            raise RuntimeError(f"{load} printed something else:\n{done.stdout}{done.stderr}")
        return float(found[1]), int(found[2])


def run(plan: Plan, stocks: Sequence[int], sides: list[Side], load: Path, results: Results) -> None:
    wanted = [work for work in all_work(stocks) if plan.wants(work.name, REFERENCE)]
    for number, work in enumerate(rounds(plan, wanted, results)):
        # Who is first changes, so that a drift of the machine's speed favours neither.
        order = sides if number // len(wanted) % 2 else reversed(sides)
        for side in order:
            side.prepare(work.stock)
            side.drive(load, work, WARM_UP)
            rate, refused = side.drive(load, work, plan.seconds)
            result = results.get(REFERENCE, of_reference(side.name, work.name, work.connections))
            result.rounds.append(rate)
            if refused:
                result.note = f"({refused} requests refused)"
            say(f"  {result.name}: {rate:,.0f}")


@contextlib.contextmanager
def database(server_url: str, name: str) -> Iterator[str]:
    """A new database; returns its connection string, in the form that Go's driver reads too."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
        try:
            given = {key: str(value) for key, value in conninfo_to_dict(server_url).items()}
            yield make_conninfo(**given | {"dbname": name, "sslmode": "disable"})
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


@contextlib.contextmanager
def reference_server(folder: Path, server_url: str) -> Iterator[Side]:
    key = secrets.token_hex(16)
    port = free_port()
    with database(server_url, f"ojs_reference_{secrets.token_hex(4)}") as url:
        surroundings = {
            **os.environ,
            "DATABASE_URL": url,
            "OJS_PORT": str(port),
            "OJS_API_KEY": key,
        }
        with serve([str(folder / "server")], port, 1, surroundings):
            yield Side(THEIRS, port, key, url, "TRUNCATE ojs_jobs, ojs_workers CASCADE")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="the programs `server` and `load`")
    add("--url", help="a PostgreSQL database to use (default: one of its own)")
    add("--rounds", type=int, default=5)
    add("--seconds", type=float, default=2.0, help="of each measurement in each round")
    add("--processes", default="1,2", help="processes of our server, in turn (default: 1,2)")
    add("--threads", type=int, default=8, help="threads of each process (default: 8)")
    add(
        "--stock",
        action="append",
        type=int,
        help=f"available jobs for fetches; may be repeated (default: {STOCKS})",
    )
    add("--only", action="append", default=[], help="part of a name; may be repeated")
    add("--json", type=Path, metavar="FILE", help="write everything measured")
    return parser.parse_args()


def main() -> None:
    stop_when_asked()
    options = arguments()
    for program in PROGRAMS:
        if not os.access(options.folder / program, os.X_OK):
            sys.exit(f"{options.folder} must contain the program {program!r}.")
    url = options.url or postgres.start()
    os.environ.update(environment(url))
    import django

    django.setup()
    from django.core.management import call_command

    from jobs.http.authentication import make_key

    call_command("migrate", verbosity=0)
    _, key = make_key("benchmarks")
    empty = f"TRUNCATE {', '.join(EMPTIED)}, ojs_workers_worker CASCADE"
    surroundings = environment(url, OJS_SERVER_THREADS=str(options.threads))
    plan = Plan(
        url,
        seconds=options.seconds,
        rounds=options.rounds,
        only=tuple(word.lower() for word in options.only),
    )
    results = Results()
    with contextlib.ExitStack() as stack:
        sides = [stack.enter_context(reference_server(options.folder, url))]
        for text in options.processes.split(","):
            port, count = free_port(), int(text)
            stack.enter_context(serve(command(port, count), port, count, surroundings))
            sides.append(Side(ours(count), port, key, url, empty))
        run(plan, options.stock or STOCKS, sides, options.folder / "load", results)
    if options.json:
        options.json.write_text(json.dumps({"postgres": results.documents()}, indent=2))
    else:
        print(results.table({}) + "\n" + goals.table(results, goals.BESIDE_REFERENCE))


if __name__ == "__main__":
    main()
