"""A steady load for an hour: does anything become slower, or grow for ever?

    python -m tests.benchmarks.soak [--minutes 60] [--idle-transaction 10] [--past 10000000]

The rate is a share of a peak that the run measures first. Retention is on and short, so that as
much is deleted as is enqueued. Whether the goals are met is said at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests import postgres
from tests.processes import free_port

from . import goals, growth, processor
from .paced import KINDS, Load, Window
from .places import SOAK, at_the_end, recovered, with_past
from .plan import OTHERS, given, say, stop_when_asked, words
from .results import Results, percentile
from .servers import ROOT, command, environment, serve
from .waiting import Clients

PRODUCERS, WORKERS = 8, 8
RETAINED = 6
"""The retention is this part of the run, so that the sizes have time to level off."""
COMPARED = 10
"""Minutes at the beginning and at the end that are compared, or a third of a shorter run."""
SAME_WORK = "a processor's time for the same work"
"""If that has changed, other machines on the same computer have slowed this one down."""
RECOVERY = 2
"""Minutes after an idle transaction by which everything is to be as before."""


@dataclass(frozen=True)
class Sizes:
    minutes: int = 60
    minute: float = 60
    """Seconds."""
    peak: float = 30
    """Seconds for which the peak is measured, after as many that are not."""
    share: float = 0.6
    idle: int = 0
    """Minutes of a transaction that is idle in the middle."""
    past: int = 0
    """Finished jobs to begin with, and three times as many events."""
    partitioned: bool = False


@dataclass(frozen=True)
class Minute:
    """What was measured in a minute, and what there was at its end."""

    window: Window
    seconds: float
    figures: growth.Figures
    work: float
    """Milliseconds of a processor for the same piece of work (`processor`)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    about = "of the part `soak`: "
    parser.add_argument("--minutes", type=int, help=f"{about}its length (default: 60)")
    parser.add_argument("--share", type=float, help=f"{about}the rate, of the peak (default: 0.6)")
    parser.add_argument(
        "--idle-transaction",
        type=int,
        metavar="MINUTES",
        help=f"{about}a transaction that is idle in its middle (default: none)",
    )
    parser.add_argument(
        "--past", type=int, metavar="JOBS", help=f"{about}finished jobs to begin with (default: 0)"
    )
    parser.add_argument(
        "--partitioned", action="store_true", help=f"{about}move the record of events first"
    )


def words_of(options: argparse.Namespace) -> list[str]:
    """The arguments of this part among those of `make bench`."""
    return words(options, ["smoke", "partitioned"], "minutes", "share", "idle_transaction", "past")


def sizes_of(options: argparse.Namespace) -> Sizes:
    sizes: dict[str, Any] = {"partitioned": options.partitioned}
    if options.smoke:
        sizes |= {"minutes": 6, "minute": 0.5, "peak": 0.5, "idle": 1, "past": 20}
    sizes |= given(options, "minutes", "share", "past")
    if options.idle_transaction is not None:
        sizes["idle"] = options.idle_transaction
    return Sizes(**sizes)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", help="a PostgreSQL database to use (default: one of its own)")
    parser.add_argument("--smoke", action="store_true", help="only see whether everything runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured")
    add_arguments(parser)
    return parser.parse_args()


@contextlib.contextmanager
def reaper(environ: dict[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.growth"],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError(f"The reaper ended with {process.returncode}.")
    finally:
        process.terminate()
        process.wait()


class Soak:
    """One run."""

    def __init__(self, url: str, key: str, sizes: Sizes, results: Results) -> None:
        self._url = url
        self._key = key
        self._sizes = sizes
        self._results = results

    def run(self) -> None:
        sizes = self._sizes
        length = sizes.minutes * sizes.minute
        with psycopg.connect(self._url, autocommit=True) as connection:
            rate = self._peak() * sizes.share
            self._note("rate", rate, "jobs/s", f"({sizes.share:g} of the peak)")
            before = None
            retention = length / RETAINED
            if sizes.past:
                before = self._alone(rate)
                say(f"  {sizes.past:,} jobs and {3 * sizes.past:,} events are added …")
                began = time.monotonic()
                growth.fill(connection, sizes.past, seconds=length)
                retention = length + time.monotonic() - began
            minutes = self._serve(retention, lambda clients: self._soak(clients, rate, connection))
        self._compare(minutes)
        if before is not None:
            now = [value for minute in minutes for value in minute.window.times["fetch"]]
            alone = percentile(before.times["fetch"], 0.5)
            self._note_ratio(with_past(sizes.past), percentile(now, 0.5), alone)

    def _serve(self, retention: float, work: Any) -> Any:
        """Run a server and a reaper for `work`, which gets connections."""
        environ = environment(
            self._url,
            OJS_COMPLETED_RETENTION=f"{retention:.0f}",
            OJS_EVENT_RETENTION=f"{retention:.0f}",
        )
        port = free_port()

        async def measure() -> Any:
            with serve(command(port, 2), port, 2, environ) as server, reaper(environ):
                async with asyncio.TaskGroup() as group:
                    clients = Clients(server, self._key, "soak", group)
                    await clients.warm_up()
                    found = await work(clients)
                    clients.close()
            return found

        return asyncio.run(measure())

    def _peak(self) -> float:
        async def measure(clients: Clients) -> float:
            load = await _begin(clients, None)
            await asyncio.sleep(self._sizes.peak)
            load.next_window()
            await asyncio.sleep(self._sizes.peak)
            while not load.window.done:  # on a machine that does everything else first
                await asyncio.sleep(self._sizes.peak)
            window = load.next_window()
            return window.done / (time.monotonic() - window.began)

        rate: float = self._serve(3600, measure)
        self._note("peak", rate, "jobs/s")
        return rate

    def _alone(self, rate: float) -> Window:
        """A minute without a past."""

        async def measure(clients: Clients) -> Window:
            load = await _begin(clients, rate)
            await asyncio.sleep(self._sizes.minute)  # as before the first minute of the run
            load.next_window()
            await asyncio.sleep(self._sizes.minute)
            return load.next_window()

        window: Window = self._serve(3600, measure)
        return window

    async def _soak(
        self, clients: Clients, rate: float, connection: psycopg.Connection[Any]
    ) -> list[Minute]:
        sizes = self._sizes
        middle = range((sizes.minutes - sizes.idle) // 2, (sizes.minutes + sizes.idle) // 2)
        say(_heading())
        load = await _begin(clients, rate)
        # The server's first requests, and what the peak has left, are not of interest.
        await asyncio.sleep(sizes.minute)
        load.next_window()
        log = (await asyncio.to_thread(growth.look, connection)).log
        minutes: list[Minute] = []
        with contextlib.ExitStack() as stack, processor.watched(sizes.minute / 60) as watch:
            began = time.monotonic()
            for number in range(sizes.minutes):
                if sizes.idle and number == middle.start:
                    stack.enter_context(growth.idle_transaction(self._url))
                if number == middle.stop:
                    stack.close()
                await asyncio.sleep(max(0, began + (number + 1) * sizes.minute - time.monotonic()))
                window = load.next_window()
                seconds = time.monotonic() - window.began
                figures = await asyncio.to_thread(growth.look, connection)
                minutes.append(Minute(window, seconds, figures, watch.take()))
                remark = "  a transaction is idle" if sizes.idle and number in middle else ""
                say(_line(number + 1, minutes[-1], figures.log - log) + remark)
                log = figures.log
        return minutes

    def _compare(self, minutes: list[Minute]) -> None:
        sizes = self._sizes
        some = max(1, min(COMPARED, sizes.minutes // 3))
        first, last = minutes[:some], minutes[-some:]
        works = [sum(minute.work for minute in part) / some for part in (last, first)]
        self._note_ratio(at_the_end(SAME_WORK), *works)
        for kind in KINDS:
            self._note_ratio(at_the_end(f"{kind}, p99"), _p99(last, kind), _p99(first, kind))
            times = [value for minute in minutes for value in minute.window.times[kind]]
            self._note(f"{kind}, p50", percentile(times, 0.5), "ms")
            self._note(f"{kind}, p99", percentile(times, 0.99), "ms")
        done = sum(minute.window.done for minute in minutes)
        seconds = sum(minute.seconds for minute in minutes)
        self._note("throughput", done / seconds, "jobs/s")
        if not sizes.past:
            # Of equal length, and both after the retention has begun to delete.
            third = sizes.minutes // 3
            middle, end = (
                max((minute.figures.size / 1e6 for minute in part), default=0)
                for part in (minutes[third : 2 * third], minutes[-third:])
            )
            self._note_ratio(at_the_end("size"), end, middle)
        if sizes.idle:
            start, stop = ((sizes.minutes + sign * sizes.idle) // 2 for sign in (-1, 1))
            after = minutes[stop + RECOVERY : stop + RECOVERY + 1]
            for kind in KINDS if after else ():
                early = _p99(minutes[max(0, start - some) : start], kind)
                self._note_ratio(recovered(kind), _p99(after, kind), early)

    def _note_ratio(self, name: str, value: float, base: float) -> None:
        if base:
            self._note(name, value / base, "×", f"({value:,.1f} of {base:,.1f})")

    def _note(self, name: str, value: float, unit: str, remark: str = "") -> None:
        result = self._results.get(SOAK, name, unit)
        result.rounds.append(value)
        result.note = remark


async def _begin(clients: Clients, rate: float | None) -> Load:
    # The kernel alone might give nearly all of them to one process, and another run would not be
    # comparable with this one.
    producers = await clients.connect_evenly(PRODUCERS)
    workers = await clients.connect_evenly(WORKERS)
    load = Load(rate)
    for line in producers:
        clients.background(load.produce(line))
    for number, line in enumerate(workers):
        clients.background(load.work(line, f"soak-{number}"))
    names = [f"soak-{number}" for number in range(WORKERS)]
    clients.background(load.beat(await clients.connect(), names))
    return load


def _p99(minutes: Sequence[Minute], kind: str) -> float:
    return percentile([value for each in minutes for value in each.window.times[kind]], 0.99)


def _heading() -> str:
    times = "".join(f"{kind + ' p50 p99':>18}" for kind in KINDS)
    return (
        f"{'min':>4}{'jobs/s':>8}{times}{'jobs MB':>9}{'indexes':>9}{'dead':>9}"
        f"{'events MB':>11}{'indexes':>9}{'dead':>9}{'WAL/job':>9}{'work':>7}"
    )


def _line(number: int, minute: Minute, log: int) -> str:
    window, figures = minute.window, minute.figures
    times = "".join(
        f"{percentile(found, 0.5):>10.1f}{percentile(found, 0.99):>8.1f}"
        for found in window.times.values()
    )
    jobs, events = growth.TABLES
    columns = "".join(
        f"{figures.tables[table] / 1e6:>{width}.0f}{figures.indexes[table] / 1e6:>9.0f}"
        f"{figures.dead[table]:>9,}"
        for table, width in ((jobs, 9), (events, 11))
    )
    each = log / window.done if window.done else 0
    rate = f"{window.done / minute.seconds:>8.0f}"
    return f"{number:>4}{rate}{times}{columns}{each:>9,.0f}{minute.work:>7.2f}"


def main() -> None:
    stop_when_asked()
    options = arguments()
    sizes = sizes_of(options)
    url = options.url or postgres.start(settings=growth.SETTINGS)
    os.environ.update(environment(url))
    import django
    import psutil

    django.setup()
    from django.core.management import call_command

    from jobs.http.authentication import make_key

    call_command("migrate", verbosity=0)
    if sizes.partitioned:
        with psycopg.connect(url, autocommit=True) as connection:
            growth.partition(connection)
    _, key = make_key("benchmarks")
    results = Results()
    results.get(*OTHERS, "%").rounds.append(psutil.cpu_percent(interval=1))
    Soak(url, key, sizes, results).run()
    if options.json:
        options.json.write_text(json.dumps({"postgres": results.documents()}, indent=2))
    else:
        print(results.table({}) + "\n" + goals.table(results, goals.LEVEL))


if __name__ == "__main__":
    main()
