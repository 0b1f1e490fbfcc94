"""Jobs per second of two cells on two nodes, beside one on one, in turn.

The same load goes to each cell: batches are enqueued, then jobs are fetched and acked in tens. Each
cell has a server of its own.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from tests.benchmarks.over_http import START, WARM_UP, drive, record
from tests.benchmarks.plan import OTHERS, Plan, rounds
from tests.benchmarks.results import Results
from tests.benchmarks.servers import ROOT, Server, command, environment, serve
from tests.benchmarks.tables import EMPTIED, QUEUE
from tests.campaign.report import say
from tests.campaign.surroundings import Postgres, postgres
from tests.processes import free_port

from .cluster import AT_REST, Cell, cluster

WORK = (("enqueue 100", "enqueue", 100), ("fetch 10 + ack 10", "fetch then ack", 10))
"""Name, load and count. What the first enqueues is the second's to fetch."""
ONE = "one cell on one node"
TWO = {
    "two cells on two nodes": ("first", "second"),
    "two cells on one node": ("first", "third"),
}
OTHER_STORE = {"one cell on one node, portable store": ("portable",)}
PLAIN = {
    "one cell on PostgreSQL, store for Citus": ("plain",),
    "one cell on PostgreSQL, its own store": ("own",),
}
ARRANGEMENTS = {ONE: ("first",), **TWO, **OTHER_STORE, **PLAIN}
"""Name → the cells that have work; the others have none."""
PLACES = {
    "first": (0, "citus"),
    "second": (1, "citus"),
    "third": (0, "citus"),
    "portable": (0, "portable"),
}
"""Cell → the number of its node, and its store."""
STORES = {"plain": "citus", "own": "postgresql"}
"""The cells without Citus."""
BUSY = "Processors in use meanwhile"


@dataclass(frozen=True)
class Sizes:
    seconds: float
    """Of each load, in each round."""
    rounds: int
    clients: int
    """Of each cell."""
    threads: int = 8


class Served(NamedTuple):
    cell: Cell
    server: Server
    key: str

    def empty(self) -> None:
        self.cell.execute(f"TRUNCATE {', '.join(EMPTIED)}, ojs_workers_worker CASCADE")

    def drive(self, clients: int, spec: dict[str, Any]) -> list[dict[str, Any]]:
        connections = self.server.connect(clients)
        try:
            return drive(connections, spec | {"key": self.key})
        finally:
            for connection in connections:
                connection.close()


def throughput(folder: Path, sizes: Sizes) -> Results:
    with contextlib.ExitStack() as stack:
        coordinator, nodes = stack.enter_context(cluster(folder))
        plain = stack.enter_context(postgres(folder / "plain"))
        served: dict[str, Served] = {}
        for name, (number, store) in PLACES.items():
            cell = Cell(coordinator, name)
            served[name] = stack.enter_context(_serve(cell, store, sizes, nodes[number]))
        for name, store in STORES.items():
            served[name] = stack.enter_context(_serve(Cell(plain, name), store, sizes))
        results = Results()
        _measure(served, sizes, results)
    return results


@contextlib.contextmanager
def _serve(cell: Cell, store: str, sizes: Sizes, node: Postgres | None = None) -> Any:
    """Create a cell, on a node if one is named, and start its server."""
    given = {"OJS_STORE": store, "OJS_SERVER_THREADS": str(sizes.threads)}
    surroundings = environment(cell.url, **given)
    key = ""

    def prepare() -> None:
        nonlocal key
        _manage(surroundings, "migrate", "--verbosity=0")
        key = _manage(surroundings, "createapikey", "--name", "bench").split()[-1]

    cell.create(prepare)
    if node is not None:
        cell.distribute()
        if cell.port != node.port:
            cell.move(node, AT_REST)
    port = free_port()
    with serve(command(port, 1), port, 1, surroundings) as server:
        say(f"throughput: {cell.name} is served")
        yield Served(cell, server, key)


def _manage(surroundings: dict[str, str], *arguments: str) -> str:
    run = [sys.executable, str(ROOT / "manage.py"), *arguments]
    done = subprocess.run(
        run, cwd=ROOT, env=surroundings, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"manage.py {arguments[0]} failed: {done.stderr[-2000:]}")
    return done.stdout


def _measure(served: dict[str, Served], sizes: Sizes, results: Results) -> None:
    # In the order in which they are to be printed.
    rates = {(work, name): results.get(work, name) for work, *_ in WORK for name in ARRANGEMENTS}
    ratios = {
        (work, name): results.get(f"{work}, as a multiple of {ONE}", name, "×")
        for work, name in rates
    }
    plan = Plan("", seconds=sizes.seconds, rounds=sizes.rounds, clients=sizes.clients)
    for name in rounds(plan, ARRANGEMENTS, results):
        cells = [served[cell] for cell in ARRANGEMENTS[name]]
        for each in cells:
            each.empty()
        for work, load, count in WORK:
            busy = _load(cells, load, count, plan, results, work, name)
            results.get(BUSY, f"{work}: {name}", "%").rounds.append(busy)
            for each in cells:
                each.cell.execute("VACUUM ANALYZE ojs_jobs_job")
    for (work, name), ratio in ratios.items():
        pairs = zip(rates[work, name].rounds, rates[work, ONE].rounds, strict=True)
        ratio.rounds += [rate / one for rate, one in pairs]


def _load(
    cells: Sequence[Served],
    load: str,
    count: int,
    plan: Plan,
    results: Results,
    work: str,
    name: str,
) -> float:
    """Give all of the cells the same load, at the same time; return the processors' per cent."""
    spec = {
        "load": load,
        "count": count,
        "queue": QUEUE,
        "seconds": plan.seconds,
        "from": time.monotonic() + START + WARM_UP,
    }
    psutil.cpu_percent()
    with ThreadPoolExecutor(len(cells)) as pool:
        outcomes = list(pool.map(lambda each: each.drive(plan.clients, spec), cells))
    busy = psutil.cpu_percent()
    result = results.get(work, name)
    record(result, [client for cell in outcomes for client in cell])
    say(f"throughput: {work}: {name}: {result.rounds[-1]:,.0f}")
    return busy


def report(results: Results) -> str:
    others = results.median(*OTHERS) or 0
    return f"""\
Throughput, in jobs per second of all cells together. The coordinator, the nodes, the servers and
the clients share the {os.cpu_count()} processors of this machine, of which others used \
{others:.0f} % in between. So the
ratios say what Citus and a second cell cost here, not what a node on another machine would add.
{results.table({})}"""
