"""AGQ, measured over TCP with redis-py: `python -m tests.benchmarks.agq` (PostgreSQL of its own).

Jobs a second by BRPOP and JOB.UPDATE, the time from a commit to a waiting worker, and the memory of
1,000 workers that wait. Client, server and database share the machine: trust ratios in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tests import postgres, processes

UPDATE: Any = '{"status":"completed"}'


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a database to use (default: a PostgreSQL of its own)")
    parser.add_argument("--jobs", type=int, default=3_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--idle", type=int, default=1_000)
    parser.add_argument("--samples", type=int, default=200)
    return parser.parse_args()


def worker(port: int, name: str) -> Any:
    import redis

    client = redis.Redis(port=port, single_connection_client=True, socket_timeout=60)
    registration = {
        "worker_id": name,
        "hostname": "bench",
        "agw_version": "1",
        "capabilities": {"tools": ["jq"]},
    }
    client.execute_command("WORKER.REGISTER", json.dumps(registration))
    return client


def processed(port: int, clients: int, count: int) -> float:
    """Jobs a second that `clients` workers pull and complete."""
    import jobs

    jobs.enqueue_many({"type": "bench.noop", "queue": "bench"} for _ in range(count))

    def run(name: str) -> None:
        client = worker(port, name)
        while pulled := client.brpop(["queue:bench"], 0.2):
            client.execute_command("JOB.UPDATE", json.loads(pulled[1])["job_id"], UPDATE)
        ended.append(time.perf_counter() - 0.2)

    ended: list[float] = []
    threads = [threading.Thread(target=run, args=[f"bench-{n}-{clients}"]) for n in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count / (max(ended) - began)


def delays(port: int, samples: int) -> list[float]:
    """Milliseconds from the return of an enqueue to the job's arrival at a waiting worker."""
    import jobs

    client = worker(port, "bench-waits")
    arrived: list[float] = []

    def wait() -> None:
        for _ in range(samples):
            pulled = client.brpop(["queue:bench"], 0)
            arrived.append(time.perf_counter())
            client.execute_command("JOB.UPDATE", json.loads(pulled[1])["job_id"], UPDATE)

    thread = threading.Thread(target=wait)
    thread.start()
    sent = []
    pause = threading.Event()
    for number in range(samples):
        # One after the other, so that the time does not include waiting behind another job.
        while len(arrived) < number:
            pause.wait(0.001)
        pause.wait(0.05)
        sent.append(time.perf_counter())
        jobs.enqueue("bench.noop", queue="bench")
    thread.join()
    return sorted(1000 * (came - went) for went, came in zip(sent, arrived, strict=True))


def all_wait(count: int) -> bool:
    from workers.models import Worker

    return Worker.objects.filter(queues=["empty"]).count() >= count


def main() -> None:
    options = arguments()
    url = options.url or postgres.start()
    port = processes.free_port()
    environment = processes.environment(url, ALLOW_ANONYMOUS=1, AGQ_PORT=port)
    environment["DJANGO_LOG_LEVEL"] = "ERROR"
    os.environ.update(environment)
    processes.migrate(environment)
    import django
    import psutil

    django.setup()
    with (
        tempfile.TemporaryDirectory() as folder,
        processes.manage(Path(folder), environment, "runagq") as server,
    ):
        server.wait_for("AGQ workers are served on")
        for clients in sorted({1, options.clients}):
            rates = [processed(port, clients, options.jobs) for _ in range(3)]
            print(
                f"BRPOP + JOB.UPDATE, {clients} clients  {statistics.median(rates):>8,.0f} jobs/s"
            )
        took = delays(port, options.samples)
        p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
        print(f"enqueue to a waiting worker    p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        memory = psutil.Process(server.process.pid).memory_info
        before = memory().rss
        idle = [worker(port, f"idle-{number}") for number in range(options.idle)]
        for client in idle:
            client.connection.send_command("BRPOP", "queue:empty", 0)
        # Until each has looked for jobs once.
        processes.eventually(lambda: all_wait(options.idle), lambda: "they do not all wait")
        grown = (memory().rss - before) / 2**20
        print(f"{options.idle} workers that wait    {grown:.1f} MiB, of {memory().rss / 2**20:.0f}")
        took = delays(port, options.samples)
        print(f"enqueue to a waiting worker beside them    p50 {took[len(took) // 2]:.1f} ms")


if __name__ == "__main__":
    main()
