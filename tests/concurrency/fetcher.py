"""A process that fetches and acks until there is nothing left, with several threads.

    python -m tests.concurrency.fetcher NAME THREADS QUEUE...

Prints the ids of the jobs it got, one per line.
"""

from __future__ import annotations

import random
import sys

import django

django.setup()

from tests.concurrency.threads import together  # noqa: E402 (Django must be set up first)
from workers import protocol  # noqa: E402


def fetch_all(worker_id: str, queues: list[str]) -> list[str]:
    choose = random.Random(worker_id)
    given: list[str] = []
    while True:
        choose.shuffle(queues)
        count = choose.choice((1, 5, 25, 100))
        jobs = protocol.fetch(queues, worker_id=worker_id, count=count)
        if not jobs:
            return given
        given += [str(job.id) for job in jobs]
        done = [protocol.Completion(job.id, worker_id, job.attempt) for job in jobs]
        refused = [outcome.error for outcome in protocol.ack(done) if outcome.error]
        assert not refused, refused


def main(name: str, threads: int, queues: list[str]) -> None:
    tasks = [
        lambda number=number: fetch_all(f"{name}-{number}", list(queues))
        for number in range(threads)
    ]
    for given in together(*tasks):
        print("\n".join(given))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
