"""No-op jobs through `runjobworker`, end to end, and how soon an idle worker starts one.

    python -m tests.benchmarks.worker [--jobs 20000] [--concurrency 10,100] [--processes 1,2]
    python -m tests.benchmarks.worker --idle [--json FILE]

Rates are computed from the jobs themselves, from the first start to the last end, by the
database's clock, so that the start of a process does not count. Other load on the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import postgres
from tests.processes import ROOT, environment, eventually

from .places import IDLE
from .results import Results

MANAGE = [sys.executable, str(ROOT / "manage.py")]
SAMPLES = 500


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", help="a PostgreSQL database to use (default: one of its own)")
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--concurrency", default="10,100")
    parser.add_argument("--processes", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", action="store_true", help="only how soon an idle worker starts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what was found of that")
    return parser.parse_args()


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    options = arguments()
    url = options.url or postgres.start()
    with tempfile.TemporaryDirectory() as folder:
        environ = environment(url, COMPLETED_RETENTION=86_400) | {
            "DJANGO_SETTINGS_MODULE": "tests.shop.settings",
            # As in production: DEBUG keeps a log of every query.
            "DJANGO_DEBUG": "0",
            "DJANGO_SECRET_KEY": "for-benchmarks-only-and-long-enough-for-any-check",
            "DJANGO_LOG_LEVEL": "WARNING",
            "SHOP_FOLDER": folder,
        }
        os.environ.update(environ)
        subprocess.run([*MANAGE, "migrate", "--verbosity", "0"], env=environ, check=True)
        import django

        django.setup()
        for processes in () if options.idle else numbers(options.processes):
            for concurrency in numbers(options.concurrency):
                rates = [
                    processed(environ, options.jobs, concurrency, processes)
                    for _ in range(options.rounds)
                ]
                say(f"{processes} process(es), concurrency {concurrency}", rates, "jobs/s")
        results = Results()
        say_latency(environ, results)
        if options.json:
            options.json.write_text(json.dumps({"postgres": results.documents()}, indent=2))


def say(what: str, values: list[float], unit: str) -> None:
    spread = ", ".join(f"{value:,.0f}" for value in sorted(values))
    print(f"{what:<36}{statistics.median(values):>9,.0f} {unit}   ({spread})", flush=True)


def processed(environ: dict[str, str], count: int, concurrency: int, processes: int) -> float:
    """No-op jobs a second, from the first start to the last end."""
    from django.db.models import Max, Min

    import jobs
    from jobs.models import Event, Job

    Job.objects.all().delete()
    Event.objects.all().delete()
    jobs.enqueue_many({"type": "shop.noop"} for _ in range(count))
    command = [*MANAGE, "runjobworker", "--burst", "--concurrency", str(concurrency)]
    subprocess.run([*command, "--processes", str(processes)], env=environ, check=True)
    taken: Any = Job.objects.filter(state="completed").aggregate(
        began=Min("started_at"), ended=Max("finished_at")
    )
    assert Job.objects.filter(state="completed").count() == count
    return count / float((taken["ended"] - taken["began"]).total_seconds())


@contextlib.contextmanager
def idle_worker(environ: dict[str, str]) -> Iterator[None]:
    from workers.models import Worker

    Worker.objects.all().delete()
    started = subprocess.Popen([*MANAGE, "runjobworker"], env=environ)
    try:
        eventually(Worker.objects.exists)
        yield
    finally:
        started.send_signal(signal.SIGTERM)
        started.wait(30)


def say_latency(environ: dict[str, str], results: Results) -> None:
    """From a job's commit to its claim and to its handler's first line, in an idle worker."""
    import jobs
    from jobs.models import Job

    pause = threading.Event()
    committed: dict[Any, float] = {}
    with idle_worker(environ):
        for _ in range(SAMPLES + 10):
            job = jobs.enqueue("shop.when")
            assert job is not None
            committed[job.id] = time.time()
            pause.wait(0.05)
        waiting = Job.objects.filter(pk__in=committed).exclude(state="completed")
        eventually(lambda: not waiting.exists())
        used = cpu_of_idleness(pause)
    found = list(Job.objects.filter(pk__in=list(committed)[10:]))
    say_percentiles(
        results,
        "commit to claim",
        [job.started_at.timestamp() - committed[job.pk] for job in found if job.started_at],
    )
    say_percentiles(results, "commit to handler", [job.result - committed[job.pk] for job in found])
    print(f"{'idle worker, processor time':<36}{used:.2f} %")
    results.get(IDLE, "processor time", "%").rounds.append(used)


def say_percentiles(results: Results, what: str, delays: list[float]) -> None:
    delays.sort()
    p50, p99 = (delays[int(len(delays) * part)] * 1000 for part in (0.5, 0.99))
    for name, value in (("p50", p50), ("p99", p99)):
        results.get(IDLE, f"{what}, {name}", "ms").rounds.append(value)
    within = sum(delay < 0.02 for delay in delays) / len(delays)
    shown = f"p50 {p50:.1f} ms, p99 {p99:.1f} ms, within 20 ms {within:.1%}"
    print(f"{'idle worker, ' + what:<36}{shown}", flush=True)


def cpu_of_idleness(pause: threading.Event, seconds: float = 5.0) -> float:
    """Processor time of the idle worker, in per cent."""
    import psutil

    from workers.models import Worker

    worker = psutil.Process(Worker.objects.get().pid)
    before, began = sum(worker.cpu_times()[:2]), time.monotonic()
    pause.wait(seconds)
    return 100 * (sum(worker.cpu_times()[:2]) - before) / (time.monotonic() - began)


if __name__ == "__main__":
    main()
