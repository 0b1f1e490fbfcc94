"""Times FETCH of ten at a steady pace, in a process of its own, while others do something else.

Reads the queues as JSON from standard input, and goes on until that ends. Then it writes the
milliseconds. What was fetched is acknowledged, and replaced.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .plan import stop_when_asked
from .servers import ROOT, environment

WORKER = "bench-fetching"
PAUSE = 0.01
"""Seconds between two fetches."""


@contextmanager
def fetching(database_url: str, queues: list[str], times: list[float]) -> Iterator[None]:
    """Fetch as long as the block lasts; `times` gets the milliseconds of each FETCH."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.fetching"],
        cwd=ROOT,
        env=environment(database_url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(queues) + "\n")
        process.stdin.flush()
        process.stdout.readline()  # it has begun
        yield
        output, _ = process.communicate()
        times += json.loads(output)
    finally:
        process.terminate()
        process.wait()
    if process.returncode:
        raise RuntimeError(f"The process that fetches ended with {process.returncode}.")


def main() -> None:
    stop_when_asked()
    import django

    django.setup()

    from workers import protocol
    from workers.liveness.heartbeats import Description

    from . import hot

    queues = json.loads(sys.stdin.readline())
    protocol.register(WORKER, Description(hostname="bench", queues=queues))
    verbs = hot.Verbs(queues, worker=WORKER)
    for _ in range(hot.WARM_UP):
        verbs.fetch_ten()
    print("begun", flush=True)
    times: list[float] = []
    while not select.select([sys.stdin], [], [], PAUSE)[0]:
        times.append(verbs.fetch_ten()[0])
    json.dump(times, sys.stdout)


if __name__ == "__main__":
    main()
