"""Workers are killed, frozen and ended at random while they work; every job is done once.

A short form runs with the others. `OJS_CHAOS=5000 OJS_CHAOS_SECONDS=60` is the long one: that many
jobs, disturbed for that long. `OJS_CHAOS_SEED` repeats the order of an earlier run.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

import jobs
from jobs.models import Event, Job, JobError
from tests.database import connection
from tests.processes import Running, eventually, manage
from tests.workers.site import Shop

JOBS = int(os.environ.get("OJS_CHAOS", "250"))
SECONDS = float(os.environ.get("OJS_CHAOS_SECONDS", "8"))
SEED = os.environ.get("OJS_CHAOS_SEED") or secrets.token_hex(4)
WORKERS = 5
CONCURRENCY = 5
LONGEST = 2 * SECONDS * WORKERS * CONCURRENCY / JOBS * 0.6
"""Longest duration of a job, in seconds, so that there is work as long as there is chaos."""
SILENCE = 2
"""Heartbeat timeout: some of the frozen workers are declared dead, others come back in time."""

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.one_database,
    pytest.mark.slow,
]


class Chaos:
    """A crew of workers, and the disturbances."""

    def __init__(self, shop: Shop, stack: contextlib.ExitStack, chance: random.Random) -> None:
        self.shop = shop
        self.stack = stack
        self.chance = chance
        self.crew = [self.start() for _ in range(WORKERS)]
        self.frozen: dict[int, float] = {}
        self.done: Counter[str] = Counter()
        self.clock = threading.Event()

    def start(self) -> Running:
        arguments = ("--concurrency", str(CONCURRENCY), "--grace-period", "0.3")
        return self.stack.enter_context(
            self.shop.starting(*arguments, HEARTBEAT_INTERVAL=0.3, HEARTBEAT_TIMEOUT=SILENCE)
        )

    def reign(self, seconds: float) -> None:
        for worker in self.crew:
            worker.wait_for("jobs at once, of")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.clock.wait(self.chance.uniform(0.2, 1.0))
            self.strike(self.chance.randrange(WORKERS))
            self.thaw(time.monotonic())
        self.thaw(float("inf"))

    def strike(self, place: int) -> None:
        worker = self.crew[place].process
        if worker.poll() is not None:
            self.crew[place] = self.start()
            return
        if place in self.frozen:
            return
        blow = self.chance.choice((signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM))
        worker.send_signal(blow)
        self.done[blow.name] += 1
        if blow == signal.SIGSTOP:
            self.frozen[place] = time.monotonic() + self.chance.uniform(0.1, 2.5 * SILENCE)
        elif blow == signal.SIGKILL:
            worker.wait()
            self.crew[place] = self.start()

    def thaw(self, now: float) -> None:
        for place in [place for place, until in self.frozen.items() if until <= now]:
            del self.frozen[place]
            self.crew[place].process.send_signal(signal.SIGCONT)
            self.done["SIGCONT"] += 1


@pytest.fixture
def shop(tmp_path: Any, database_url: str) -> Iterator[Shop]:
    site = Shop(tmp_path, database_url)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE shop_effect (job_id uuid, attempt integer)")
    try:
        reaper = site.environment(HEARTBEAT_TIMEOUT=SILENCE, REAPER_INTERVAL=0.2)
        with manage(tmp_path, reaper, "runreaper"):
            yield site
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE shop_effect")


def enqueue(chance: random.Random) -> None:
    jobs.enqueue_many(
        {
            "type": "shop.nap" if number % 5 == 0 else "shop.effect",
            "args": [round(chance.uniform(0, LONGEST), 3)],
            "retry": {
                "max_attempts": 100,
                "initial_interval": "PT0.1S",
                "max_interval": "PT1S",
            },
        }
        for number in range(JOBS)
    )


def test_no_job_is_lost_and_no_effect_doubled_whatever_befalls_the_workers(shop):
    chance = random.Random(SEED)
    enqueue(chance)
    with contextlib.ExitStack() as stack:
        chaos = Chaos(shop, stack, chance)
        chaos.reign(SECONDS)
        rescue = chaos.start()
        unfinished = Job.objects.exclude(state="completed")
        eventually(lambda: not unfinished.exists(), lambda: rescue.output)
    print(f"OJS_CHAOS_SEED={SEED}: {dict(chaos.done)}, {attempts()} attempts of {JOBS} jobs")

    assert Job.objects.count() == JOBS
    with connection.cursor() as cursor:
        cursor.execute("SELECT job_id, attempt FROM shop_effect")
        effects = cursor.fetchall()
    paid = dict(Job.objects.filter(type="shop.effect").values_list("pk", "attempt"))
    assert sorted(effects) == sorted(paid.items()), "one effect each, of the attempt that counts"
    assert unaccounted() == {}


def attempts() -> int:
    return sum(Job.objects.values_list("attempt", flat=True))


def unaccounted() -> dict[Any, Any]:
    """Jobs with unexplained attempts: each must have begun, and all but the last have failed."""
    began, failed = defaultdict(set), defaultdict(list)
    for subject, attempt in Event.objects.filter(type="job.started").values_list(
        "subject", "attempt"
    ):
        began[subject].add(attempt)
    for job_id, attempt in JobError.objects.order_by("pk").values_list("job_id", "attempt"):
        failed[str(job_id)].append(attempt)
    return {
        job_id: (attempt, began[str(job_id)], failed[str(job_id)])
        for job_id, attempt in Job.objects.values_list("pk", "attempt")
        if began[str(job_id)] != set(range(1, attempt + 1))
        or failed[str(job_id)] != list(range(1, attempt))
    }
