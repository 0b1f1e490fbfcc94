"""What it costs that machines share one database: throughput, and wake-ups from one to another."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from django.db import OperationalError
from psycopg.errors import DeadlockDetected

from . import tables
from .network import Machine, open_line, stop
from .over_http import START, WARM_UP, drive
from .places import WOKEN, in_number, of_machines, woken
from .plan import Plan, rounds, say
from .results import Results, percentile
from .servers import environment

if TYPE_CHECKING:
    from .machines import Sizes

LOADS = {"fetch 10 + ack 10": ("fetch then ack", 10, 20_000), "enqueue 1": ("enqueue", 1, 0)}
"""Name → kind of load, jobs of a request, available jobs a second that it may need."""
PAUSE = 0.05
"""Seconds after which a fetch that was sent waits, unless the computer is very busy."""
WITHIN, ACROSS = "within one machine", "across machines"


@contextlib.contextmanager
def deployed(machines: list[Machine], url: str) -> Iterator[None]:
    """A server and a reaper on each machine, in production configuration."""
    environ = environment(url)
    try:
        for machine in machines:
            machine.start_server(environ)
            machine.start_reaper(environ)
        for machine in machines:
            machine.wait_for_server()
        yield
        for machine in machines:
            if machine.ended:
                raise RuntimeError(f"ended by themselves: {machine.output(*machine.ended)}")
    finally:
        stop(machines)


def throughput(sizes: Sizes, results: Results, machines: list[Machine], key: str) -> None:
    """One, two and three machines in turn, with and without a limit for their servers."""
    shares: list[float | None] = [None]
    if all(machine.quota.is_there for machine in machines):
        shares.append(sizes.processor)
    else:
        say("  No control groups for processors here: only servers without a limit.")
    turns = [
        (load, share, number) for share in shares for load in LOADS for number in sizes.numbers
    ]
    for load, share, number in rounds(Plan("", rounds=sizes.rounds), turns, results):
        for machine in machines if len(shares) > 1 else ():
            machine.quota.limit(share)
        _measure(sizes, results, machines[:number], key, load, share)
    for machine in machines if len(shares) > 1 else ():
        machine.quota.limit(None)


def _measure(
    sizes: Sizes,
    results: Results,
    machines: list[Machine],
    key: str,
    load: str,
    share: float | None,
) -> None:
    kind, count, stock = LOADS[load]
    _empty()
    tables.load(int(stock * (sizes.seconds + WARM_UP + START)))
    connections = [machine.connect() for machine in machines for _ in range(sizes.clients)]
    try:
        spec = {"load": kind, "count": count, "queue": tables.QUEUE, "key": key}
        spec |= {"seconds": sizes.seconds, "from": time.monotonic() + START + WARM_UP}
        outcomes = drive(connections, spec)
    finally:
        for connection in connections:
            connection.close()
    result = results.get(of_machines(load, share), in_number(len(machines)), "jobs/s")
    seconds = max(client["seconds"] for client in outcomes)
    result.rounds.append(sum(client["done"] for client in outcomes) / seconds)
    for what in outcomes[0]["times"]:
        times = [moment / 1000 for client in outcomes for moment in client["times"].get(what, ())]
        result.p50[what], result.p99[what] = percentile(times, 0.5), percentile(times, 0.99)
    if any(client["ran_dry"] for client in outcomes):
        result.note = "(ran out of jobs early)"
    say(f"  {result.group}: {result.name}: {result.rounds[-1]:,.0f}")


def _empty() -> None:
    """Empty the tables while reapers sweep them, with which that may come to a deadlock."""
    while True:
        try:
            tables.empty()
            return
        except OperationalError as problem:
            if not isinstance(problem.__cause__, DeadlockDetected):
                raise


async def wake_ups(sizes: Sizes, results: Results, machines: list[Machine], key: str) -> None:
    """A fetch waits at the first machine; the job is enqueued there, or at another."""
    waiter = await open_line(machines[0], key, "woken")
    others = [await open_line(machine, key, "woken") for machine in machines[1:]]
    here = await open_line(machines[0], key, "woken")
    took: dict[str, list[float]] = {WITHIN: [], ACROSS: []}
    acks: list[str] = []
    for number in range(sizes.samples):
        for where, line in ((WITHIN, here), (ACROSS, others[number % len(others)])):
            waiter.ask("woken", acks)
            await asyncio.sleep(PAUSE)
            began = time.perf_counter()
            enqueued = asyncio.create_task(line.enqueue(number))
            acks = [job["id"] for job in (await waiter.reply())["jobs"]]
            took[where].append(1000 * (time.perf_counter() - began))
            await enqueued
    await waiter.fetch("woken", acks, wait_ms=0)
    for line in (waiter, here, *others):
        line.close()
    for where, times in took.items():
        for share in (50, 99):
            found = percentile(times, share / 100)
            results.get(WOKEN, woken(where, share), "ms").rounds.append(found)
        say(f"  woken {where}: p50 {percentile(times, 0.5):.1f} ms")
