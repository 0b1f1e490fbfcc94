"""Whether FETCH and ACK stay flat: with many available, many finished, many active jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connection, connections

from jobs import engine
from jobs.engine import Completion
from workers import protocol
from workers.liveness.heartbeats import Description

from . import tables
from .places import ACK, FETCH
from .plan import Plan, say
from .results import Results, percentile

WORKER = "worker-0"


def run(plan: Plan, results: Results) -> None:
    if not plan.is_postgresql:
        return
    if plan.wants("", FETCH):
        _fetch(plan, results)
    if plan.wants("", ACK):
        _ack(plan, results)


def _fetch(plan: Plan, results: Results) -> None:
    most = plan.sizes[-1]
    stocks = {f"{size:,} available": {"available": size} for size in plan.sizes}
    stocks[f"{most:,} available, {most:,} completed"] = {"available": most, "completed": most}
    tables.empty()
    protocol.register(WORKER, Description(hostname="bench", queues=[tables.QUEUE]))
    with _databases(stocks) as enter:
        for name, stock in stocks.items():
            enter(name)
            for state, count in stock.items():
                tables.load(count, state=state)
        # Before the measurement: the first write to a page after a checkpoint writes it whole.
        tables.execute("CHECKPOINT")
        for _ in range(plan.rounds):
            for name in stocks:
                enter(name)
                _sample(plan, results, FETCH, name, _fetch_ten)


@contextmanager
def _databases(names: Iterable[str]) -> Iterator[Callable[[str], None]]:
    """Copies of the database under test, and a function that makes Django use one of them.

    So the sizes alternate, and a slow or fast minute of the machine affects all of them.
    """
    original: Any = connections[DEFAULT_DB_ALIAS]
    original.close()  # A database can be copied only without connections.
    there = {name: original.copy() for name in names}
    try:
        for number, copied in enumerate(there.values()):
            own = original.settings_dict["NAME"]
            copied.settings_dict["NAME"] = f"{own}_{number}"
            administer(original, f'CREATE DATABASE "{own}_{number}" TEMPLATE "{own}"')
        yield lambda name: connections.__setitem__(DEFAULT_DB_ALIAS, there[name])
    finally:
        connections[DEFAULT_DB_ALIAS] = original
        for copied in there.values():
            copied.close()
            name = copied.settings_dict["NAME"]
            administer(original, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def administer(database: Any, statement: str) -> None:
    """Run a statement on the server of a database, outside of that database."""
    with database._nodb_cursor() as cursor:
        cursor.execute(statement)


def _ack(plan: Plan, results: Results) -> None:
    tables.empty()
    there = 0
    for size in plan.in_flight:
        tables.load(size - there, state="active")
        there = size
        for _ in range(plan.rounds):
            _sample(plan, results, ACK, f"{size:,} in flight", _complete_and_reopen)


def _sample(
    plan: Plan, results: Results, group: str, name: str, measured: Callable[[], float]
) -> None:
    for _ in range(20):
        measured()
    times = [measured() for _ in range(plan.samples)]
    result = results.get(group, name, "ms")
    result.rounds.append(percentile(times, 0.5))
    say(f"  {group}: {name}: {result.rounds[-1]:.3f} ms")


def _fetch_ten() -> float:
    """Time a FETCH, then append as many jobs to the queue as it took."""
    started = time.perf_counter()
    jobs = protocol.fetch([tables.QUEUE], worker_id=WORKER, count=10)
    taken = (time.perf_counter() - started) * 1000
    assert len(jobs) == 10
    tables.add(10)
    return taken


def _complete_and_reopen() -> float:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, attempt FROM ojs_jobs_job WHERE state = 'active'"
            " AND reserved_for IS NOT NULL AND reserved_by = %s LIMIT 10",
            [WORKER],
        )
        held = cursor.fetchall()
    started = time.perf_counter()
    outcomes = engine.complete([Completion(job_id, WORKER, attempt) for job_id, attempt in held])
    taken = (time.perf_counter() - started) * 1000
    assert all(outcome.error is None for outcome in outcomes)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE ojs_jobs_job SET state = 'active', reserved_by = %s, reserved_for = '30 min',"
            " reserved_until = now() + interval '30 min', finished_at = NULL WHERE id = ANY(%s)",
            [WORKER, [job_id for job_id, _ in held]],
        )
    return taken
