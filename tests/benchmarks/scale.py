"""Whether FETCH and ACK stay flat: with much to choose from, much behind, much in flight."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.db import connection

from jobs import engine
from jobs.engine import Completion
from workers import protocol
from workers.heartbeats import Description

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
    tables.empty()
    protocol.register(WORKER, Description(hostname="bench", queues=[tables.QUEUE]))
    there = 0
    for size in plan.sizes:
        tables.load(size - there)
        there = size
        _sample(plan, results, FETCH, f"{size:,} available", _fetch_ten)
    tables.load(plan.sizes[-1], state="completed")
    name = f"{there:,} available, {plan.sizes[-1]:,} completed"
    _sample(plan, results, FETCH, name, _fetch_ten)


def _ack(plan: Plan, results: Results) -> None:
    tables.empty()
    there = 0
    for size in plan.in_flight:
        tables.load(size - there, state="active")
        there = size
        _sample(plan, results, ACK, f"{size:,} in flight", _complete_and_reopen)


def _sample(
    plan: Plan, results: Results, group: str, name: str, measured: Callable[[], float]
) -> None:
    for _ in range(20):
        measured()
    for _ in range(plan.rounds):
        times = [measured() for _ in range(plan.samples)]
        result = results.get(group, name, "ms")
        result.rounds.append(percentile(times, 0.5))
        say(f"  {group}: {name}: {result.rounds[-1]:.3f} ms")


def _fetch_ten() -> float:
    """Time a FETCH, then put as many jobs at the end of the queue as it took from the front."""
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
