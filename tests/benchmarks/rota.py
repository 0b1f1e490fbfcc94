"""Rota, measured over WebSockets: `python -m tests.benchmarks.rota` (PostgreSQL of its own).

Jobs a second by assignment and result, the time from a commit to a waiting worker, alone and beside
1,000 workers that wait, and their memory. Client, server and database share the machine: trust
ratios in one run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed

from tests import postgres, processes

SPEC = {"id": "bench.noop", "checksum": "v1"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="a database to use (default: a PostgreSQL of its own)")
    parser.add_argument("--jobs", type=int, default=3_000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--slots", type=int, default=10, help="jobs each of them wants at once")
    parser.add_argument("--idle", type=int, default=1_000)
    parser.add_argument("--samples", type=int, default=200)
    return parser.parse_args()


async def connect(port: int, name: str, queue: str, wanted: int) -> Any:
    from websockets.asyncio.client import connect

    url = f"ws://127.0.0.1:{port}/work"
    socket = await connect(url, compression=None, ping_interval=None, proxy=None)
    who = {"worker_id": name, "hostname": "bench", "queues": [queue], "specs": [SPEC]}
    await socket.send(json.dumps({"type": "heartbeat", "registration": who, "wanted": wanted}))
    return socket


async def works(socket: Any, arrived: list[float], count: int, slots: int) -> None:
    """Report each job as done as soon as it arrives, until `count` jobs have arrived in all."""
    received = 0
    while len(arrived) < count:
        try:
            message = json.loads(await asyncio.wait_for(socket.recv(), 0.2))
        except TimeoutError:
            await socket.send('{"type": "heartbeat"}')
            continue
        if message["type"] != "assignment":
            continue
        arrived.append(time.perf_counter())
        received += 1
        job = message["job"]
        result = {"job_id": job["id"], "attempt": job["attempt"], "outcome": "succeeded"}
        said = {"type": "heartbeat", "results": [result], "wanted": slots, "received": received}
        await socket.send(json.dumps(said))


def processed(port: int, clients: int, slots: int, count: int) -> float:
    """Jobs per second that `clients` workers get and report as done."""
    import jobs
    from jobs.models import Job

    jobs.enqueue_many({"type": "bench.noop", "queue": "bench"} for _ in range(count))
    done = Job.objects.filter(queue="bench", state="completed")
    before = done.count()

    async def run() -> None:
        arrived: list[float] = []
        names = (f"bench-{clients}-{slots}-{number}" for number in range(clients))
        sockets = [await connect(port, name, "bench", slots) for name in names]
        await asyncio.gather(*(works(socket, arrived, count, slots) for socket in sockets))
        while await asyncio.to_thread(done.count) < before + count:
            await asyncio.sleep(0.005)
        nonlocal took
        took = time.perf_counter() - began
        for socket in sockets:
            await socket.close()

    took = 0.0
    began = time.perf_counter()
    asyncio.run(run())
    return count / took


def delays(port: int, samples: int, *, idle: int = 0, told: Any = None) -> list[float]:
    """Milliseconds from the return of an enqueue to the job's arrival at a waiting worker.

    Args:
        idle: number of workers that wait for another queue meanwhile.
        told: called once they do.
    """
    import jobs

    arrived: list[float] = []
    ready = threading.Event()

    async def run() -> None:
        others = [await connect(port, f"idle-{number}", "empty", 1) for number in range(idle)]
        beating = asyncio.create_task(beat(others))
        socket = await connect(port, "bench-waits", "latency", 1)
        await socket.recv()
        # Until each of the others has looked for jobs once.
        await asyncio.sleep(2 if idle else 0.2)
        ready.set()
        await works(socket, arrived, samples, 1)
        beating.cancel()
        for other in [*others, socket]:
            await other.close()

    thread = threading.Thread(target=asyncio.run, args=[run()])
    thread.start()
    ready.wait()
    if told is not None:
        told()
    sent = []
    pause = threading.Event()
    for number in range(samples):
        # One after the other, so that the time does not include waiting behind another job.
        while len(arrived) < number:
            pause.wait(0.001)
        pause.wait(0.05)
        sent.append(time.perf_counter())
        jobs.enqueue("bench.noop", queue="latency")
    thread.join()
    return sorted(1000 * (came - went) for went, came in zip(sent, arrived, strict=True))


async def beat(sockets: list[Any]) -> None:
    """Send a heartbeat every two seconds."""

    async def read(socket: Any) -> None:
        with contextlib.suppress(ConnectionClosed):
            async for _ in socket:
                pass

    reading = [asyncio.create_task(read(socket)) for socket in sockets]
    with contextlib.suppress(asyncio.CancelledError):
        while sockets:
            for socket in sockets:
                await asyncio.sleep(2 / len(sockets))
                await socket.send('{"type": "heartbeat"}')
    for task in reading:
        task.cancel()


def shown(what: str, took: list[float]) -> None:
    p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
    print(f"{what:<44} p50 {p50:.1f} ms, p99 {p99:.1f} ms")


def main() -> None:
    options = arguments()
    url = options.url or postgres.start()
    port = processes.free_port()
    given = {"ALLOW_ANONYMOUS": 1, "ROTA_PORT": port, "ROTA_MAX_CONNECTIONS": options.idle + 100}
    environment = processes.environment(url, **given)
    environment["DJANGO_LOG_LEVEL"] = "ERROR"
    os.environ.update(environment)
    processes.migrate(environment)
    import django
    import psutil

    django.setup()
    from jobs import engine

    engine.register_specs({SPEC["id"]: SPEC["checksum"]})
    with (
        tempfile.TemporaryDirectory() as folder,
        processes.manage(Path(folder), environment, "runrota") as server,
    ):
        server.wait_for("Rota workers connect to")
        for clients, slots in sorted(
            {(1, 1), (1, options.slots), (options.clients, options.slots)}
        ):
            rates = [processed(port, clients, slots, options.jobs) for _ in range(3)]
            rate = statistics.median(rates)
            print(f"{f'{clients} workers that want {slots}':<44} {rate:>8,.0f} jobs/s")
        shown("enqueue to a waiting worker", delays(port, options.samples))
        memory = psutil.Process(server.process.pid).memory_info
        before = memory().rss

        def told() -> None:
            grown = (memory().rss - before) / 2**20
            text = f"{options.idle} workers that wait and beat"
            print(f"{text:<44} {grown:.1f} MiB, of {memory().rss / 2**20:.0f}")

        took = delays(port, options.samples, idle=options.idle, told=told)
        shown("enqueue to a waiting worker beside them", took)


if __name__ == "__main__":
    main()
