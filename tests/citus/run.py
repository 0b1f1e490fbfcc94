"""Runs the parts, one after the other, each with a cluster of its own. `guard` runs this."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from tests import processes
from tests.campaign.report import Plan, commit, say, table, write
from tests.campaign.surroundings import Postgres
from tests.processes import Api

from .cluster import Cell, build, cluster
from .conformance import conformance
from .moved import move
from .options import PARTS, arguments
from .struck import struck
from .throughput import Sizes, report, throughput


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[Cell, list[Postgres], Api]]:
    """A distributed cell with a server and a reaper."""
    with cluster(folder) as (coordinator, nodes):
        cell = Cell(coordinator, "cell_a")
        environment = processes.environment(
            cell.url,
            STORE="citus",
            ALLOW_ANONYMOUS=1,
            CONFORMANCE_MODE=1,
            REAPER_INTERVAL=0.2,
        )
        cell.create(lambda: processes.migrate(environment))
        cell.distribute()
        with (
            processes.server(folder, environment) as api,
            processes.manage(folder, environment, "runreaper"),
        ):
            yield cell, nodes, api
        for log in folder.glob("*.log"):
            text = log.read_text(errors="replace")
            lines = [line for line in text.splitlines() if "Error" in line or "ERROR" in line]
            for line in lines[:5]:
                print(f"{log.name}: {line[:300]}")


def run_move(options: argparse.Namespace, folder: Path) -> bool:
    with served(folder) as (cell, nodes, api):
        return move(cell, api, nodes, options.around)


def run_conformance(options: argparse.Namespace, folder: Path) -> bool:
    with served(folder) as (_, _, api):
        return conformance(api, folder)


def run_throughput(options: argparse.Namespace, folder: Path) -> bool:
    results = throughput(folder, Sizes(options.seconds, options.rounds, options.clients))
    print(report(results))
    if options.json:
        documents = {"citus": results.documents()}
        (options.json / "throughput.json").write_text(json.dumps(documents, indent=2))
    return True


def run_campaign(options: argparse.Namespace, folder: Path) -> bool:
    plan = Plan(
        jobs=options.jobs,
        seconds=options.disturbed,
        short=False,
        folder=folder,
        seed=options.seed or secrets.token_hex(4),
        keep=options.json,
    )
    outcome = struck(plan)
    print(table([outcome]))
    print(f"\ncommit {commit()}, --seed {plan.seed}")
    if options.json:
        write([outcome], {}, plan, options.json / "campaign.json")
    return not outcome.all_broken and not outcome.unfinished


RUN = {
    "move": run_move,
    "conformance": run_conformance,
    "throughput": run_throughput,
    "campaign": run_campaign,
}


def main() -> int:
    options = arguments(sys.argv[2:])
    if options.source:
        build(options.source)
    if options.json:
        options.json.mkdir(parents=True, exist_ok=True)
    kept = True
    for part in options.part or PARTS:
        say(f"{part}: {PARTS[part]}")
        folder = Path(sys.argv[1]) / part
        folder.mkdir()
        kept = RUN[part](options, folder) and kept
        sys.stdout.flush()
    return 0 if kept else 1


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The guard ends whatever still runs.
    os._exit(code)
