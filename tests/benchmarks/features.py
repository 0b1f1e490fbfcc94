"""Cost of single features: `python -m tests.benchmarks.features [PART …]`.

On a PostgreSQL of its own. `due`: jobs that become due in a short time: all executed, and how late?
`group`: a workflow of many members. `chains`: steps of many chains, one or several settled at a
time. `unique`, `rate`: beside plain jobs. `events`: the record of
events on and off, and what counting it for metrics takes. Client, server and database share the
machine: trust the ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from tests import postgres, processes

PARTS = ("due", "group", "chains", "unique", "rate", "events")
BATCH = 100
EACH = 25
numbers = count()
Step = Callable[[], Any]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--url", help="a database to use (default: a PostgreSQL of its own)")
    parser.add_argument("--jobs", type=int, default=100_000, help="that become due")
    parser.add_argument("--seconds", type=float, default=60, help="within which they do")
    parser.add_argument("--workers", type=int, default=2, help="processes that execute them")
    parser.add_argument("--members", type=int, default=10_000, help="of the group")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200, help="of each round")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# Measurements


def document(**options: Any) -> dict[str, Any]:
    return {
        "type": "bench.noop",
        "queue": "bench",
        "args": [next(numbers), "two", {"three": 3}],
        "options": options,
    }


def enqueue(size: int = 1, **options: Any) -> None:
    from django.utils import timezone

    from jobs import engine
    from jobs.spec.batches import new_jobs

    engine.enqueue(new_jobs([document(**options) for _ in range(size)], timezone.now()))


def settle(size: int = 10, queue: str = "bench") -> int:
    """Fetch and ack; return how many there were."""
    from jobs.engine import Completion
    from workers import protocol

    jobs = protocol.fetch([queue], worker_id="bench-0", count=size)
    protocol.ack([Completion(job.id, "bench-0") for job in jobs])
    return len(jobs)


def compare(options: argparse.Namespace, title: str, ways: dict[str, Step], each: int = 1) -> None:
    """Print the median rate of each way, in turn, and its ratio to the first.

    Args:
        each: how many counted operations a step performs.
    """
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, step in ways.items():
            began = time.perf_counter()
            for _ in range(options.steps // each):
                step()
            rates[name].append(options.steps // each * each / (time.perf_counter() - began))
    first = 0.0
    for name, found in rates.items():
        median = statistics.median(found)
        first = first or median
        print(f"{title:<14} {name:<34} {median:>9,.0f}/s   {median / first:>5.0%}")


def empty() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE ojs_jobs_job, ojs_jobs_event, ojs_jobs_workflow CASCADE")
        cursor.execute("VACUUM ANALYZE ojs_jobs_job")


def due(options: argparse.Namespace, environment: dict[str, str]) -> None:
    from django.db import connection

    from jobs.models import Job

    enqueue(size=1)  # the queue exists afterwards
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE ojs_jobs_job CASCADE")
    for start in range(0, options.jobs, 10_000):
        enqueue(size=min(10_000, options.jobs - start), scheduled_at="+PT1H")
    with tempfile.TemporaryDirectory() as folder:
        with (
            processes.manage(Path(folder), environment, "runreaper"),
            connection.cursor() as cursor,
        ):
            cursor.execute(
                "UPDATE ojs_jobs_job SET scheduled_at ="
                " clock_timestamp() + interval '5 seconds' + random() * %s * interval '1 second'",
                [options.seconds],
            )
            command = [sys.executable, "-m", "tests.benchmarks.features", "--work"]
            started = [
                subprocess.Popen(command, env=environment, cwd=processes.ROOT)
                for _ in range(options.workers)
            ]
            deadline = time.monotonic() + options.seconds + 120
            while Job.objects.filter(finished_at__isnull=True).exists():
                assert time.monotonic() < deadline, "they are not done in time"
                time.sleep(0.5)
            for process in started:
                process.terminate()
                process.wait()
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*), percentile_cont(ARRAY[0.5, 0.99, 1]) WITHIN GROUP"
                " (ORDER BY extract(epoch FROM started_at - scheduled_at)),"
                " extract(epoch FROM max(finished_at) - min(scheduled_at)), max(attempt)"
                " FROM ojs_jobs_job"
            )
            done, (p50, p99, last), took, attempts = cursor.fetchone()
    print(
        f"due            {done:,} jobs due within {options.seconds:g} s, done in {took:.1f} s;"
        f" begun after p50 {p50:.3f} s, p99 {p99:.3f} s, at most {last:.3f} s;"
        f" most attempts {attempts}"
    )


def work() -> None:
    """A worker that fetches and settles until it is stopped."""
    while True:
        if not settle(BATCH):
            time.sleep(0.05)


def group(options: argparse.Namespace) -> None:
    from django.utils import timezone

    from jobs import engine
    from jobs.models import Workflow
    from jobs.spec.workflow_plans import plan_of

    def drain() -> float:
        began = time.perf_counter()
        while settle(BATCH):
            pass
        return time.perf_counter() - began

    for start in range(0, options.members, 1000):
        enqueue(size=min(1000, options.members - start))
    plain = drain()
    members = [document() for _ in range(options.members)]
    began = time.perf_counter()
    workflow = engine.create_workflow(
        plan_of({"type": "group", "jobs": members}, timezone.now()), project=""
    )
    made = time.perf_counter() - began
    joined = drain()
    state = Workflow.objects.get(pk=workflow.pk).state
    print(
        f"group          {options.members:,} members: made in {made:.2f} s, executed in"
        f" {joined:.2f} s and {state}; as many plain jobs in {plain:.2f} s"
    )


def chains(options: argparse.Namespace) -> None:
    from django.utils import timezone

    from jobs import engine
    from jobs.spec.workflow_plans import plan_of

    count, length = 50, 10

    def drain(size: int) -> float:
        done, began = 0, time.perf_counter()
        while settled := settle(size):
            done += settled
        assert done == count * length, done
        return done / (time.perf_counter() - began)

    for size in (1, 10, 50):
        rates: dict[str, list[float]] = {"plain": [], "chains": []}
        for _ in range(options.rounds):
            enqueue(size=count * length)
            rates["plain"].append(drain(size))
            for _chain in range(count):
                steps = [document() for _ in range(length)]
                engine.create_workflow(plan_of({"type": "chain", "steps": steps}, timezone.now()))
            rates["chains"].append(drain(size))
        plain, chained = (statistics.median(found) for found in rates.values())
        print(
            f"chains         {count} chains of {length} steps, fetch + ack {size:<3}"
            f" {chained:>9,.0f}/s   {chained / plain:>5.0%} of plain jobs"
        )


def unique(options: argparse.Namespace) -> None:
    compare(
        options,
        "unique",
        {
            "plain enqueue": enqueue,
            "unique, never a duplicate": lambda: enqueue(unique={"keys": ["type", "args"]}),
            "unique, always a duplicate": lambda: enqueue(
                unique={"keys": ["type"], "on_conflict": "ignore"}
            ),
        },
    )


def rate(options: argparse.Namespace) -> None:
    limit = {"key": "bench", "rate": {"limit": 1_000_000_000, "period": "PT1M"}}
    size = options.rounds * options.steps * 10
    for start in range(0, size, 1000):
        enqueue(size=min(1000, size - start))
        enqueue(size=min(1000, size - start), queue="limited", rate_limit=limit)
    compare(
        options,
        "rate limit",
        {
            "plain fetch + ack 10": settle,
            "rate-limited fetch + ack 10": lambda: settle(queue="limited"),
        },
    )


def events(options: argparse.Namespace) -> None:
    from django.test import override_settings

    from workers.chores import tallies

    def way(step: Step, **ojs: Any) -> Step:
        def measured() -> None:
            with override_settings(OJS=ojs):  # which has a cost, too
                for _ in range(EACH):
                    step()

        return measured

    for title, step in (
        ("enqueue 1", enqueue),
        ("enqueue 100", lambda: enqueue(size=100)),
        ("fetch + ack 10", settle),
    ):
        ways = {
            f"{title}, events off": way(step, RECORD_EVENTS=False),
            f"{title}, events on": way(step),
        }
        compare(options, "events", ways, EACH)
    empty()
    for _ in range(20):
        enqueue(size=1000)
    while settle(BATCH):
        pass
    for name, ojs in (("workers' outcomes", {"METRICS": False}), ("and metrics", {})):
        from workers.models import EventCursor

        EventCursor.objects.all().delete()
        began = time.perf_counter()
        with override_settings(OJS=ojs):
            tallies.count()
        each = (time.perf_counter() - began) / 60_000 * 1e6
        print(f"events         counting them for {name:<20} {each:>8.1f} µs an event")


def main() -> None:
    options = arguments()
    if options.work:
        import django

        django.setup()
        work()
    url = options.url or postgres.start()
    environment = processes.environment(url, ALLOW_ANONYMOUS=1)
    environment["DJANGO_LOG_LEVEL"] = "ERROR"
    os.environ.update(environment)
    processes.migrate(environment)
    import django

    django.setup()
    wanted: dict[str, Step] = {
        "due": lambda: due(options, environment),
        "group": lambda: group(options),
        "chains": lambda: chains(options),
        "unique": lambda: unique(options),
        "rate": lambda: rate(options),
        "events": lambda: events(options),
    }
    for part in options.parts or PARTS:
        empty()
        wanted[part]()


if __name__ == "__main__":
    main()
