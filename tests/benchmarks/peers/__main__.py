"""No-op jobs end to end, on this server and on others, in one run on one PostgreSQL.

    make bench ARGS=--peers        or: python -m tests.benchmarks.peers [--help]

The others are installed into a separate environment, which `--folder` keeps for the next run.
Celery, dramatiq and huey need a `redis-server`, from the PATH or a wheel; without one they are
skipped. Every job records when it ran: the rate is computed from that, without the beginning.

The first round tries every setting; further rounds repeat the best setting of each.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from tests import postgres

from ..goals import table
from ..places import bare
from ..plan import OTHERS, say
from ..raw import Raw, pgbench
from ..results import Results
from .bench import Bench, redis_server
from .contenders import CONTENDERS, OURS, Contender, Setting
from .goals import GOALS
from .places import PEERS, SETTINGS, enqueued, worked_off

CONNECTIONS = (2, 8)
AT_ONCE = 50
STOCK = 80_000
"""Jobs that pgbench may get through in a second."""
NOBODY = 0.2
"""Seconds of idling, to measure how busy the machine is otherwise."""
BULK = 1000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="make bench ARGS=--peers")
    add = parser.add_argument
    add("--only", action="append", choices=[peer.name for peer in CONTENDERS], help="repeatable")
    add("--rounds", type=int, default=2)
    add("--seconds", type=float, default=1.5, help="of each measurement of workers")
    add("--jobs", type=int, default=1_500, help="enqueued one by one in each round")
    add("--folder", type=Path, help="where the environment of the others is kept")
    add("--url", help="a PostgreSQL server to make databases on (default: one of its own)")
    add("--json", type=Path, metavar="FILE", help="write everything measured")
    return parser.parse_args()


class Run:
    """Rounds of measurements, and the best setting of each in the first round."""

    def __init__(self, bench: Bench, results: Results, options: argparse.Namespace) -> None:
        self.bench = bench
        self.results = results
        self.options = options
        self.best: dict[tuple[str, int], Setting] = {}
        self.expected: dict[tuple[str, int], float] = {}

    def measure(self, peers: list[Contender]) -> None:
        import psutil

        began = time.monotonic()
        for peer in peers:
            self.bench.prepare(peer)
        for number in range(1, self.options.rounds + 1):
            # Each once per round, so that a slow minute of the machine affects all of them.
            say(f"round {number}, after {time.monotonic() - began:.0f} s")
            for peer in peers:
                self.results.get(*OTHERS, "%").rounds.append(psutil.cpu_percent(NOBODY))
                self.enqueue(peer)
                for processes in (1, 2):
                    self.work(peer, processes)
            self.limit()
        say(f"took {time.monotonic() - began:.0f} s")

    def enqueue(self, peer: Contender) -> None:
        ways = [(1, "enqueue", self.options.jobs)]
        if peer.has_bulk:
            ways.append((BULK, "bulk", 20 * BULK))
        for at_a_time, verb, count in ways:
            rate = self.bench.enqueued(peer, count, verb)
            self.note(enqueued(peer.name, at_a_time), rate)
        self.bench.empty(peer)

    def work(self, peer: Contender, processes: int) -> None:
        key = peer.name, processes
        settings = (self.best[key],) if key in self.best else peer.settings
        for setting in settings:
            expected = self.expected.get(key, peer.guess * processes)
            rate = self.bench.worked_off(peer, setting, processes, self.options.seconds, expected)
            name = worked_off(peer.name, processes)
            self.results.get(SETTINGS, f"{name}, {setting.title}").rounds.append(rate)
            say(f"  {name}, {setting.title}: {rate:,.0f}")
            if key not in self.best or rate > self.expected[key]:
                self.best[key], self.expected[key] = setting, rate
        best = self.results.get(SETTINGS, f"{name}, {self.best[key].title}")
        result = self.results.get(PEERS, name)
        result.rounds.append(best.rounds[-1])
        result.note = f"({self.best[key].title})"

    def limit(self) -> None:
        """The best rate of bare PostgreSQL, in the same round on the same server."""
        url, seconds = self.bench.own_url, self.options.seconds
        raw = Raw(url)
        raw.stock(0)
        step, done, began = raw.enqueuer(BULK), 0, time.perf_counter()
        while time.perf_counter() < began + seconds / 2:
            done += step()
        self.note(f"psycopg: insert {BULK}", done / (time.perf_counter() - began))
        for connections in CONNECTIONS:
            raw.stock(STOCK)
            rate = pgbench(url, AT_ONCE, connections, 1)
            if rate is not None:
                self.note(bare(AT_ONCE, connections), rate)
        raw.drop()
        raw.close()

    def note(self, name: str, rate: float) -> None:
        self.results.get(PEERS, name).rounds.append(rate)
        say(f"  {name}: {rate:,.0f}")


def measure(options: argparse.Namespace, folder: Path) -> Results:
    results = Results()
    bench = Bench(folder, options.url or postgres.start())
    bench.install()
    say(bench.versions())
    with redis_server(folder) as redis:
        bench.peer_environment["PEER_REDIS"] = redis
        peers = [
            peer
            for peer in CONTENDERS
            if (redis or not peer.needs_redis)
            and (not options.only or peer.name in {*options.only, OURS})
        ]
        if not redis:
            say("No redis-server here: peers that need one are skipped.")
        Run(bench, results, options).measure(peers)
    return results


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory(prefix="ojs-peers-") as name:
        results = measure(options, options.folder or Path(name))
    print(results.table({}))
    print(table(results, GOALS))
    if options.json:
        options.json.write_text(json.dumps({"postgres": results.documents()}, indent=2))


if __name__ == "__main__":
    main()
