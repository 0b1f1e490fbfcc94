"""`make bench`: measures the server on SQLite and on its own PostgreSQL."""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg

from tests import postgres

from . import filled, goals, machines, network, paths, soak, standby
from .beside import compare
from .peers import goals as peers
from .places import floors
from .plan import OTHERS, Plan, say, stop_when_asked
from .results import Results
from .servers import ROOT, environment

DATABASES = ("postgres", "sqlite")
SUITE = "suite"
REFERENCE = "reference"
SOAK = "soak"
PATHS = "paths"
MACHINES = "machines"
FILLED = "filled"
STANDBY = "standby"
USUAL = (SUITE, "peers", "worker", "pages", "waiting")
ON_REQUEST = (REFERENCE, SOAK, PATHS, MACHINES, FILLED, STANDBY)
"""Besides the suite, on PostgreSQL: other job servers, an idle worker, the admin's pages, thousands
of waiting connections. Only if they are named: the reference server, an hour of steady load, the
product without each of its fast paths, several machines, tables that a site fills in a month, and
what a standby relieves its primary of."""
OF_THEIR_OWN = (SOAK, MACHINES, STANDBY)
"""Those that start PostgreSQL themselves, with settings of their own or several of it."""
PARTS = (*USUAL, *ON_REQUEST)
GOALS = (*peers.GOALS, *peers.OF_THE_SUITE, *goals.GOALS)
BUSY = 15
"""Per cent of the processors in use by others beyond which not even ratios hold."""
ROUNDS_BESIDE = 4
QUICK: dict[str, Any] = {"sizes": (10_000, 100_000), "rounds": 2, "samples": 100, "fleet": 2_000}
SMOKE: dict[str, Any] = {
    "sizes": (100, 200),
    "in_flight": (20, 40),
    "rounds": 1,
    "samples": 3,
    "recovered": 200,
    "fleet": 20,
}


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("--database", choices=DATABASES, help="only this one (default: both)")
    parser.add_argument(
        "--url", help="a PostgreSQL server to make a database on (default: one of its own)"
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller tables")
    parser.add_argument("--smoke", action="store_true", help="only see whether everything runs")
    parser.add_argument(
        "--only", action="append", default=[], help="part of a name or group; may be repeated"
    )
    parser.add_argument(
        "--part",
        action="append",
        choices=PARTS,
        help=f"may be repeated (default: all but {', '.join(ON_REQUEST)})",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        help="where the environment of the peers is kept, or the reference server's programs are",
    )
    parser.add_argument(
        "--join",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="report what an earlier run wrote as well; may be repeated",
    )
    parser.add_argument("--no-run", action="store_true", help="only report what is joined")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument(
        "--beside",
        type=Path,
        metavar="FOLDER",
        help="compare the suite on PostgreSQL with that of another checkout, in turn",
    )
    parser.add_argument("--processes", default="1,2", help="server processes (default: 1,2)")
    parser.add_argument("--clients", type=int, help="load clients (default: 8)")
    parser.add_argument("--threads", type=int, help="threads of a server process (default: 8)")
    parser.add_argument("--seconds", type=float, help="of each measurement in each round")
    parser.add_argument("--rounds", type=int, help="how often everything is measured")
    soak.add_arguments(parser)
    machines.add_arguments(parser)
    filled.add_arguments(parser)
    return parser.parse_args(given)


def plan_of(options: argparse.Namespace, database_url: str) -> Plan:
    given: dict[str, Any] = {}
    if options.quick or options.smoke:
        given |= QUICK | {"seconds": 1.0}
    if options.smoke:
        given |= SMOKE | {"seconds": 0.1}
    given |= {
        name: getattr(options, name)
        for name in ("seconds", "rounds", "clients", "threads")
        if getattr(options, name) is not None
    }
    return Plan(
        database_url,
        processes=tuple(int(number) for number in options.processes.split(",")),
        only=tuple(word.lower() for word in options.only),
        **given,
    )


@contextlib.contextmanager
def database(kind: str, server_url: str | None) -> Iterator[str]:
    """A fresh, empty database, deleted afterwards."""
    if kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="ojs-bench-") as folder:
            yield f"sqlite:///{quote(str(Path(folder) / 'bench.sqlite3'))}"
        return
    url = server_url or postgres.start()
    name = f"ojs_bench_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
        try:
            yield urlsplit(url)._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def parts_of(options: argparse.Namespace) -> tuple[str, ...]:
    if options.no_run:
        return ()
    # A selection by name applies only to the suite, and only that is quick.
    only_suite = options.only or options.quick or options.smoke
    # The reference server must be built first (`--folder`).
    return tuple(options.part or ((SUITE,) if only_suite else USUAL))


def measure_part(part: str, options: argparse.Namespace, server: str) -> list[dict[str, Any]]:
    """Run one of the benchmarks that are separate programs."""
    # A soak may also be given one.
    has_own = part in OF_THEIR_OWN and not (part == SOAK and options.url)
    empty = contextlib.nullcontext("") if has_own else database("postgres", server)
    with tempfile.TemporaryDirectory() as folder, empty as url:
        file = Path(folder) / "results.json"
        command = [sys.executable, "-m", f"tests.benchmarks.{part}"]
        if part == "peers":
            command += ["--url", server, "--json", str(file)]
            command += ["--folder", str(options.folder)] if options.folder else []
        elif part == "worker":
            command += ["--idle", "--url", url, "--json", str(file)]
        elif part == REFERENCE:
            command += ["--url", url, "--json", str(file), "--folder", str(options.folder)]
            command += _for_reference(options)
        elif part == "waiting":
            command += ["--url", url, "--json", str(file)]
            command += [f"--{size}" for size in ("quick", "smoke") if getattr(options, size)]
        elif part == SOAK:
            command += ["--url", url] if url else []
            command += ["--json", str(file), *soak.words_of(options)]
        elif part == PATHS:
            command += ["--url", url, "--json", str(file), *_for_paths(options)]
        elif part == MACHINES:
            command += ["--json", str(file), *machines.words_of(options)]
        elif part == STANDBY:
            command += ["--json", str(file), *standby.words_of(options)]
        elif part == FILLED:
            command += ["--url", url, "--json", str(file), *filled.words_of(options)]
        else:
            command += [str(file)]
        # The report contains its tables; its progress output is of interest now.
        size = {"JOBS": "6000", "ROUNDS": "1"} if options.smoke and part == "pages" else {}
        surroundings = environment(url, DJANGO_ALLOWED_HOSTS="*", **size)
        with subprocess.Popen(command, cwd=ROOT, env=surroundings, stdout=sys.stderr) as process:
            try:
                process.wait()
            finally:
                process.terminate()  # asked, not killed: it has servers to stop
        if process.returncode:
            say(f"{part}: not measured ({process.returncode}).")
            return []
        documents: list[dict[str, Any]] = json.loads(file.read_text())["postgres"]
        return documents


def measure(plan: Plan) -> list[dict[str, Any]]:
    """Run the suite in a separate process: Django is set up for one database."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.suite"],
        cwd=ROOT,
        env=environment(plan.database_url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C reaches the whole group; the process is to be asked to stop only once, by us.
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(json.dumps(asdict(plan)))
    finally:
        process.terminate()
        process.wait()
    if process.returncode:
        sys.exit(f"The benchmarks failed ({process.returncode}).")
    documents: list[dict[str, Any]] = json.loads(output)
    return documents


def report(kind: str, documents: list[dict[str, Any]]) -> str:
    results = Results.of(documents)
    text = f"\n{kind}\n{'=' * len(kind)}\n{results.table(floors(documents))}"
    if kind == "postgres":
        text += "\n" + goals.table(results, GOALS)
    if paths.are_in(results):
        text += "\n\n" + paths.table(results)
    if (results.median(*OTHERS) or 0) > BUSY:
        text += "\n\nOTHERS WERE USING THIS MACHINE: neither the numbers nor their ratios hold."
    return text


def _for_both(options: argparse.Namespace) -> list[str]:
    """The arguments that limit what is measured."""
    given = [f"--only={word}" for word in options.only] + ["--quick"] * options.quick
    names = ("clients", "threads", "seconds")
    given += ["--smoke"] * options.smoke
    given += [f"--{name}={getattr(options, name)}" for name in names if getattr(options, name)]
    return [*given, f"--processes={options.processes}"]


def _for_reference(options: argparse.Namespace) -> list[str]:
    names = ("rounds", "seconds", "threads")
    given = [f"--only={word}" for word in options.only]
    given += [f"--{name}={getattr(options, name)}" for name in names if getattr(options, name)]
    return [*given, f"--processes={options.processes}"]


def _for_paths(options: argparse.Namespace) -> list[str]:
    names = ("rounds", "seconds", "clients")
    given = [f"--only={word}" for word in options.only] + ["--smoke"] * options.smoke
    return given + [
        f"--{name}={getattr(options, name)}" for name in names if getattr(options, name)
    ]


def main() -> None:
    stop_when_asked()
    if "--peers" in sys.argv:
        # A separate program with its own options.
        sys.argv.remove("--peers")
        from .peers.__main__ import main as measure_peers

        measure_peers()
        return
    options = arguments()
    if options.beside:
        print(compare(options.beside, options.rounds or ROUNDS_BESIDE, _for_both(options)))
        return
    if REFERENCE in (options.part or ()) and options.folder is None:
        sys.exit("The part 'reference' needs the option --folder.")
    if MACHINES in (options.part or ()) and (lack := network.lack()):
        sys.exit(f"The part 'machines' cannot be measured: {lack}.")
    everything: dict[str, list[dict[str, Any]]] = {}
    for file in options.join:
        for kind, documents in json.loads(file.read_text()).items():
            everything.setdefault(kind, []).extend(documents)
    parts = parts_of(options)
    for kind in [options.database] if options.database else DATABASES:
        if SUITE in parts:
            say(f"{kind} …")
            with database(kind, options.url) as url:
                everything.setdefault(kind, []).extend(measure(plan_of(options, url)))
    others = [part for part in parts if part != SUITE and options.database != "sqlite"]
    server = options.url or (postgres.start() if set(others) - set(OF_THEIR_OWN) else "")
    for part in others:
        say(f"{part} …")
        everything.setdefault("postgres", []).extend(measure_part(part, options, server))
    for kind, documents in everything.items():
        print(report(kind, documents))
    if options.json:
        options.json.write_text(json.dumps(everything, indent=2))


if __name__ == "__main__":
    main()
