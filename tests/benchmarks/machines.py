"""Servers and workers on several machines, one PostgreSQL: throughput, wake-ups, faults.

    python -m tests.benchmarks.machines [--smoke] [--processor 0.2] [--json FILE]

The machines are network namespaces of this computer (`network`) and share its processors, so that
throughput is measured a second time with servers that may use only a small share of one each.
It takes root.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.campaign.guard import guarded
from tests.campaign.surroundings import Missing

from . import goals
from .network import lack, network, url_of
from .places import PROCESSORS, floors
from .plan import OTHERS, given, stop_when_asked, words
from .results import Results
from .servers import environment

MACHINES = 3
NONE = "There can be no machines here: {}."


@dataclass(frozen=True)
class Sizes:
    rounds: int = 3
    seconds: float = 3
    clients: int = 4
    """Of each machine."""
    numbers: tuple[int, ...] = (1, 2, 3)
    """Of machines that have clients."""
    processor: float = 0.2
    """What each server may use of one, where it is limited."""
    samples: int = 300
    workers: tuple[str, ...] = ("http", "local")
    """Of each machine: over HTTP to its server, and by its own connection to the database."""
    timeout: int = 5
    """Seconds after which a silent worker is dead."""
    rate: float = 8
    """Jobs a second of each machine's producer, while one is cut off and with clocks apart."""
    cuts: int = 3
    """Machines that are cut off, one after the other."""
    calm: float = 15
    """Seconds before and after a machine is cut off."""
    cut: float = 30
    clocks: float = 60
    """Seconds of the load with clocks apart."""


SMOKE = Sizes(
    rounds=1,
    seconds=0.1,
    clients=1,
    numbers=(1, 3),
    samples=3,
    workers=("http",),
    rate=4,
    cuts=1,
    calm=0.5,
    cut=0,
    clocks=4,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "of the part `machines`: "
    parser.add_argument(
        "--processor",
        type=float,
        metavar="SHARE",
        help=f"{about}what a limited server may use of a processor (default: 0.2)",
    )


OPTIONS = ("rounds", "seconds", "clients", "processor")


def words_of(options: argparse.Namespace) -> list[str]:
    """The arguments of this part among those of `make bench`."""
    return words(options, ["smoke"], *OPTIONS)


def arguments(line: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--smoke", action="store_true", help="only see whether everything runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    parser.add_argument("--rounds", type=int, help="how often throughput is measured")
    parser.add_argument("--seconds", type=float, help="of each measurement of throughput")
    parser.add_argument("--clients", type=int, help="load clients of each machine (default: 4)")
    add_arguments(parser)
    return parser.parse_args(line)


def sizes_of(options: argparse.Namespace) -> Sizes:
    return replace(SMOKE if options.smoke else Sizes(), **given(options, *OPTIONS))


def measure(folder: Path, sizes: Sizes, results: Results) -> None:
    with network(folder, MACHINES) as (database, machines):
        url = url_of(database)
        os.environ.update(environment(url))
        import django

        django.setup()
        from django.core.management import call_command
        from django.db import connection

        from jobs.http.authentication import make_key

        from . import faults, spread

        call_command("migrate", verbosity=0)
        _, key = make_key("benchmarks")
        with spread.deployed(machines, url):
            spread.throughput(sizes, results, machines, key)
            asyncio.run(spread.wake_ups(sizes, results, machines, key))
        site = faults.Site(folder, database, machines, key, sizes, results)
        site.cut_off()
        site.clocks()
        connection.close()


def main() -> int:
    # The guard calls it with a folder; it ends everything, however this ends.
    if len(sys.argv) < 2 or not Path(sys.argv[1]).is_dir():
        arguments(sys.argv[1:])
        if missing := lack():
            sys.exit(NONE.format(missing))
        return guarded("tests.benchmarks.machines", sys.argv[1:])
    stop_when_asked()
    options = arguments(sys.argv[2:])
    results = Results()
    import psutil

    results.get(*OTHERS, "%").rounds.append(psutil.cpu_percent(interval=1))
    processors = results.get(*PROCESSORS, "")
    processors.rounds.append(os.cpu_count() or 1)
    processors.note = "(they bound every ratio of throughput)"
    try:
        measure(Path(sys.argv[1]), sizes_of(options), results)
    except Missing as missing:
        sys.exit(NONE.format(missing))
    if options.json:
        options.json.write_text(json.dumps({"postgres": results.documents()}, indent=2))
    else:
        table = results.table(floors(results.documents()))
        print(table + "\n" + goals.table(results, goals.ON_MACHINES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
