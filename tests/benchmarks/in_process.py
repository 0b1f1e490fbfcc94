"""Engine without HTTP, against bare psycopg and pgbench doing the same shape of work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from django.utils import timezone

from jobs import engine
from jobs.engine import Completion
from jobs.spec.batches import new_jobs
from jobs.spec.workflow_plans import plan_of
from workers import protocol
from workers.chores import reaper
from workers.lifecycle import WorkerState
from workers.liveness.heartbeats import Description
from workers.models import Worker

from . import tables
from .places import ENGINE, LIMIT, RECOVERY, bare
from .plan import Plan, rounds, say
from .raw import Raw, pgbench
from .results import Results

WORKER = "bench-0"
STOCK = {1: 4_000, 10: 25_000, 100: 60_000}
"""Jobs per second of which claim and complete together can process at most this many."""

GROUPS, MEMBERS = 100, 20

Step = Callable[[], int]


def enqueuer(count: int) -> Step:
    # Jobs differ, because identical objects could be validated by identity.
    documents = [
        {"type": "bench.noop", "queue": tables.QUEUE, "args": [number, "two", {"three": 3}]}
        for number in range(count)
    ]

    def step() -> int:
        return len(engine.enqueue(new_jobs(documents, timezone.now())))

    return step


def worker(count: int) -> Step:
    """Claim and complete, below the protocol: the same work as in bare psycopg."""

    def step() -> int:
        jobs = engine.claim([tables.QUEUE], worker_id=WORKER, count=count)
        engine.complete([Completion(job.id, WORKER) for job in jobs])
        return len(jobs)

    return step


def fetcher(count: int) -> Step:
    """Fetch and ack, including the checks of the worker's state and the queues' limits."""

    def step() -> int:
        jobs = protocol.fetch([tables.QUEUE], worker_id=WORKER, count=count)
        protocol.ack([Completion(job.id, WORKER) for job in jobs])
        return len(jobs)

    return step


def member(count: int) -> Step:
    """Fetch and ack jobs of groups: a workflow advances with the end of each."""
    document = {"type": "bench.noop", "args": [], "options": {"queue": tables.QUEUE}}
    group = {"type": "group", "jobs": [document] * MEMBERS}
    for _ in range(GROUPS):
        engine.create_workflow(plan_of(group, timezone.now()))
    protocol.register(WORKER, Description(hostname="bench", queues=[tables.QUEUE]))
    return fetcher(count)


def beater(count: int) -> Step:
    jobs = engine.claim([tables.QUEUE], worker_id=WORKER, count=count) if count else []
    ids = [str(job.id) for job in jobs]

    def step() -> int:
        reply = protocol.beat(WORKER, state=WorkerState.RUNNING, active_job_ids=ids)
        assert len(reply.jobs_extended) == count
        return 1

    return step


# name → function that makes its step, jobs per step, and jobs per second that it may need
MEASURED: dict[str, tuple[Callable[[int], Step], int, int]] = {
    "enqueue 1": (enqueuer, 1, 0),
    "enqueue 1000": (enqueuer, 1000, 0),
    **{
        f"{verb} {count}": (make, count, stock)
        for count, stock in STOCK.items()
        for verb, make in (("claim + complete", worker), ("fetch + ack", fetcher))
    },
    "jobs of groups, fetch + ack 1": (member, 1, 0),
    "heartbeat, no jobs": (beater, 0, 0),
    "heartbeat, 10 jobs": (beater, 10, 10),
}
BARE: dict[str, tuple[Callable[[Raw, int], Step], int, int]] = {
    "psycopg: insert 1": (Raw.enqueuer, 1, 0),
    "psycopg: insert 1000": (Raw.enqueuer, 1000, 0),
    **{
        f"psycopg: claim + ack {count}": (Raw.worker, count, stock * 2)
        for count, stock in STOCK.items()
    },
}
PGBENCH = {
    bare(count, clients): (count, clients)
    for count, connections in ((1, (1, 2, 8)), (10, (2, 8)), (50, (2, 8)), (100, (2, 8)))
    for clients in connections
}
PGBENCH_STOCK = {1: 10_000, 10: 45_000, 50: 70_000, 100: 80_000}


def run(plan: Plan, results: Results) -> None:
    ours = [name for name in MEASURED if plan.wants(name, ENGINE)]
    limits = [name for name in (*BARE, *PGBENCH) if plan.is_postgresql and plan.wants(name, LIMIT)]
    raw = Raw(plan.database_url) if limits else None
    for name in rounds(plan, [*ours, *limits], results):
        group = ENGINE if name in MEASURED else LIMIT
        rate = _measure(plan, name, raw)
        if rate is not None:
            results.get(group, name).rounds.append(rate)
            say(f"  {group}: {name}: {rate:,.0f}")
    if raw is not None:
        raw.stock(0)
        raw.close()


def _measure(plan: Plan, name: str, raw: Raw | None) -> float | None:
    if name in MEASURED:
        make, count, needed = MEASURED[name]
        tables.empty()
        tables.load(_stock(plan, needed))
        protocol.register(WORKER, Description(hostname="bench", queues=[tables.QUEUE]))
        return rate(make(count), plan.seconds)
    assert raw is not None
    if name in PGBENCH:
        count, clients = PGBENCH[name]
        raw.stock(int(PGBENCH_STOCK[count] * max(1, round(plan.seconds))))
        return pgbench(plan.database_url, count, clients, plan.seconds)
    make_bare, count, needed = BARE[name]
    raw.stock(_stock(plan, needed))
    return rate(make_bare(raw, count), plan.seconds)


def _stock(plan: Plan, needed: int) -> int:
    # A heartbeat's number is how many jobs it holds; all others use up jobs over time.
    return needed if needed <= 10 else plan.stock(needed * (plan.seconds + 0.5))


def rate(step: Step, seconds: float) -> float:
    """Jobs per second, after a short warm-up; ends early if there are no more jobs."""
    for _ in _for(min(0.3, seconds)):
        step()
    done = 0
    started = time.perf_counter()
    for _ in _for(seconds):
        turns = step()
        if not turns:
            break
        done += turns
    return done / (time.perf_counter() - started)


def _for(seconds: float) -> Iterator[None]:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        yield


def recovery(plan: Plan, results: Results) -> None:
    """One sweep after the death of a hundred workers that held all their jobs."""
    name = f"{plan.recovered:,} jobs of 100 dead workers"
    if not (plan.is_postgresql and plan.wants(name, RECOVERY)):
        return
    for _ in range(plan.rounds):
        tables.empty()
        tables.load(plan.recovered, state="active", worker="dead-", workers=100)
        long_ago = timezone.now() - timedelta(hours=1)
        Worker.objects.bulk_create(
            Worker(worker_id=f"dead-{number}", last_heartbeat_at=long_ago) for number in range(100)
        )
        started = time.perf_counter()
        done = reaper.sweep()
        seconds = time.perf_counter() - started
        assert done.get("orphaned-jobs") == plan.recovered, done
        results.get(RECOVERY, name, "s").rounds.append(seconds)
        say(f"  {RECOVERY}: {seconds:.2f} s")
