"""Filled tables: are they as fast as small ones, and is housekeeping still done in small steps?

    python -m tests.benchmarks.filled [--finished 10000000] [--available 1000000] [--url DATABASE]

Fills a database as a site would in a month, and a small one beside it, and measures both in turn.
A database that is given with `--url` and has jobs is measured as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from tests import postgres

from . import filling, goals, growth
from .filling import Stock, TooLarge
from .places import FILLED, FILLED_PAGES, LARGE_WORKFLOWS, UPKEEP
from .plan import OTHERS, Plan, given, rounds, say, stop_when_asked, words
from .results import Results, percentile
from .servers import environment

LONG = str(60 * 86_400)
KEEPS_ALL = {
    f"OJS_{name}_RETENTION": LONG
    for name in ("COMPLETED", "CANCELLED", "DISCARDED", "DEAD_LETTER", "EVENT")
} | {"OJS_DEAD_LETTER_MAX": str(10**9)}
"""Settings with which a sweep finds nothing to delete."""
LARGE = Stock(finished=10_000_000, available=1_000_000, workers=10_000)
SMALL = Stock(finished=10_000, available=10_000, workers=100, queues=10, types=40)


@dataclass(frozen=True)
class Sizes:
    stock: Stock = LARGE
    small: Stock = SMALL
    rounds: int = 5
    turns: int = 10
    """Turns of each database in a round."""
    samples: int = 100
    """Calls of each verb in a turn."""
    pages: int = 7
    """Requests for each page."""
    alone: float = 20
    """Seconds of fetches with nothing beside them."""
    deleted: int = 1_000_000
    """Finished jobs that a retention deletes, at most a tenth of all."""
    workflow: int = 100_000
    batch: int | None = None
    """Jobs that a bulk operation changes at once, if not as many as usual."""


SMOKE = Sizes(
    stock=Stock(finished=6_000, available=2_000, workers=1_000, queues=20, held=1),
    small=Stock(finished=200, available=400, workers=20, queues=4, types=40),
    rounds=1,
    turns=2,
    samples=3,
    pages=1,
    alone=0.1,
    workflow=200,
    batch=20,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "of the part `filled`: "
    for name, text in (
        ("finished", "finished jobs (default: 10,000,000)"),
        ("available", "available jobs, in 1,000 queues (default: 1,000,000)"),
        ("fleet", "workers, with ten jobs each (default: 10,000)"),
        ("events-each", "events of each job, 0 to 3 (default: 1)"),
        ("workflow-jobs", "jobs of the large workflows (default: 100,000)"),
    ):
        parser.add_argument(f"--{name}", type=int, metavar="NUMBER", help=about + text)


OF_STOCK = {
    "finished": "finished",
    "available": "available",
    "fleet": "workers",
    "events_each": "events_each",
}
OF_ALL = {"workflow_jobs": "workflow", "rounds": "rounds"}
"""Option → field of the sizes."""


def words_of(options: argparse.Namespace) -> list[str]:
    """The arguments of this part among those of `make bench`."""
    only = [f"--only={word}" for word in options.only]
    return only + words(options, ["smoke"], *OF_STOCK, *OF_ALL)


def sizes_of(options: argparse.Namespace) -> Sizes:
    def of(names: dict[str, str]) -> dict[str, int]:
        return {names[name]: value for name, value in given(options, *names).items()}

    sizes = SMOKE if options.smoke else Sizes()
    return replace(sizes, stock=replace(sizes.stock, **of(OF_STOCK)), **of(OF_ALL))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", help="a PostgreSQL database to fill (default: one of its own)")
    parser.add_argument("--smoke", action="store_true", help="only see whether everything runs")
    parser.add_argument("--only", action="append", default=[], help="part of a group's name")
    parser.add_argument("--rounds", type=int, help="how often the two databases are measured")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    add_arguments(parser)
    return parser.parse_args()


@contextmanager
def beside() -> Iterator[Callable[[bool], None]]:
    """A second database, and a function that makes Django use that one or the first."""
    from .scale import administer

    first: Any = connections[DEFAULT_DB_ALIAS]
    second = first.copy()
    name = second.settings_dict["NAME"] = f"{first.settings_dict['NAME']}_small"
    administer(first, f'CREATE DATABASE "{name}"')
    try:
        yield lambda is_second: connections.__setitem__(
            DEFAULT_DB_ALIAS, second if is_second else first
        )
    finally:
        connections[DEFAULT_DB_ALIAS] = first
        second.close()
        administer(first, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def prepare(stock: Stock) -> None:
    """Fill the database, unless it has been filled before.

    Raises:
        TooLarge: the disk does not hold it.
    """
    from jobs.models import Event, Job

    from . import pages

    if Job.objects.exists():
        say("  The database has jobs: it is measured as it is.")
        return
    filling.fill(stock)
    # The past is not what a sweep reads in steady state.
    newest = Event.objects.order_by("-pk").values_list("pk", flat=True).first()
    growth.has_read(newest or 0)
    pages.derive()
    pages.fill_the_rest()
    filling.execute("VACUUM ANALYZE")


def measure_verbs(plan: Plan, sizes: Sizes, results: Results) -> None:
    """The hot verbs, on the filled database and a small one in turn."""
    from django.core.management import call_command

    from workers import protocol
    from workers.liveness.heartbeats import Description

    from . import hot

    with beside() as use:
        stocks = {True: sizes.small, False: sizes.stock}
        names = {True: "small", False: "filled"}
        verbs = {}
        for is_small, stock in stocks.items():
            use(is_small)
            if is_small:
                call_command("migrate", verbosity=0)
                filling.fill(stock)
            queues = [f"queue-{n}" for n in range(stock.queues)]
            protocol.register("bench-0", Description(hostname="bench", queues=queues))
            # As many on both: ten jobs of each of a hundred workers stay in the processor's caches.
            fleet = min(sizes.small.workers, stock.workers)
            verbs[is_small] = hot.Verbs(queues, worker="bench-0", fleet=fleet)
        for _round in rounds(plan, [FILLED], results):
            times: dict[bool, dict[str, list[float]]] = {True: {}, False: {}}
            # A minute in which the machine is slow must not fall to one of them alone.
            for is_small in [*stocks] * sizes.turns:
                use(is_small)
                for kind, values in hot.sample(verbs[is_small], sizes.samples).items():
                    times[is_small].setdefault(kind, []).extend(values)
            for is_small, of_kinds in times.items():
                hot.note(results, FILLED, names[is_small], of_kinds)
                for kind, values in of_kinds.items():
                    say(f"  {names[is_small]}: {kind}: {percentile(values, 0.5):.3f} ms")


def main() -> None:
    stop_when_asked()
    options = arguments()
    sizes = sizes_of(options)
    url = options.url or postgres.start(settings=growth.SETTINGS)
    limits = {"OJS_MAX_BATCH": str(max(10_000, sizes.workflow))}
    os.environ["ROUNDS"] = str(sizes.pages)
    os.environ.update(environment(url, DJANGO_ALLOWED_HOSTS="*", **KEEPS_ALL, **limits))
    import django
    import psutil

    django.setup()
    from django.core.management import call_command

    from . import flows, pages, upkeep

    call_command("migrate", verbosity=0)
    only = tuple(word.lower() for word in options.only)
    plan = Plan(url, rounds=sizes.rounds, only=only)
    results = Results()
    results.get(*OTHERS, "%").rounds.append(psutil.cpu_percent(interval=1))
    try:
        prepare(sizes.stock)
    except TooLarge as refusal:
        sys.exit(str(refusal))
    try:
        for group, measure in (
            (FILLED, lambda: measure_verbs(plan, sizes, results)),
            (FILLED_PAGES, lambda: pages.measure(results, FILLED_PAGES)),
            (UPKEEP, lambda: upkeep.run(sizes, results, url)),
            (LARGE_WORKFLOWS, lambda: flows.run(sizes.workflow, results, url)),
        ):
            if plan.wants("", group):
                say(f"{group} …")
                measure()
    finally:  # an hour's measurements are kept if the last one fails
        if options.json:
            options.json.write_text(json.dumps({"postgres": results.documents()}, indent=2))
        else:
            print(results.table({}) + "\n" + goals.table(results, goals.WHEN_FILLED))


if __name__ == "__main__":
    main()
