"""Fills PostgreSQL as a large site would in weeks: jobs, their events and errors, workers.

By statements over ranges of numbers, without the engine. What a job is follows from its number, so
its events and errors need not read it.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connection, connections

from jobs.spec.batches import in_parts

from .plan import say
from .tables import scalar

CHUNK = 100_000
"""Rows of a statement, and jobs from which the needed disk is computed."""
SPARE = 1.2
"""Room for temporary files, dead rows and what is measured, as a factor."""
TABLES = ("ojs_jobs_job", "ojs_jobs_joberror", "ojs_jobs_event")
JOBS = """
    INSERT INTO ojs_jobs_job
           (id, type, queue, args, meta, priority, state, attempt, attempt_counted, max_attempts,
            reserved_by, reserved_for, reserved_until, started_at, finished_by, finished_at,
            unfenced, scheduled_at, created_at, enqueued_at, tags, attributes, dead_letter)
    SELECT id, type, queue, jsonb_build_array(n, 'user@example.com'), '{{}}', 0, state,
           CASE WHEN state IN ('available', 'scheduled') THEN 0 WHEN is_retried THEN 2 ELSE 1 END,
           false, 3,
           CASE state WHEN 'active' THEN worker ELSE '' END,
           CASE state WHEN 'active' THEN interval '2 days' END,
           CASE state WHEN 'active' THEN now() + interval '2 days' END,
           CASE WHEN state NOT IN ('available', 'scheduled') THEN moment + interval '2 s' END,
           CASE WHEN state IN ('completed', 'discarded') THEN worker ELSE '' END,
           CASE WHEN state IN ('completed', 'discarded', 'cancelled')
                THEN moment + interval '3 s' END,
           false, CASE WHEN state IN ('scheduled', 'retryable') THEN now() + interval '2 days' END,
           moment, moment, '["a"]', '{{}}', state = 'discarded'
      FROM ({rows}) AS rows
"""
ERRORS = """
    INSERT INTO ojs_jobs_joberror (job_id, attempt, type, code, message, worker_id, occurred_at)
    SELECT id, 1, 'error-' || substr(id::text, 36), '', 'It broke.', '', moment + interval '3 s'
      FROM ({rows}) AS rows
     WHERE state = 'discarded' OR is_retried
"""
EVENTS = """
    INSERT INTO ojs_jobs_event (type, subject, queue, job_type, worker_id, attempt, time)
    SELECT kind, id::text, queue, type, CASE kind WHEN 'job.enqueued' THEN '' ELSE worker END,
           CASE kind WHEN 'job.enqueued' THEN 0 ELSE 1 END,
           moment + (place - 1) * interval '1 s'
      FROM ({rows}) AS rows,
           unnest(CASE WHEN state IN ('available', 'scheduled') THEN ARRAY['job.enqueued']
                       WHEN state IN ('active', 'retryable')
                       THEN ARRAY['job.enqueued', 'job.started']
                       ELSE ARRAY['job.enqueued', 'job.started', 'job.' || state] END)
           WITH ORDINALITY AS kinds (kind, place),
           LATERAL (SELECT CASE WHEN state IN ('available', 'scheduled') THEN 1
                                WHEN state IN ('active', 'retryable') THEN 2
                                ELSE 3 END AS all_of_them) AS number
     WHERE place > all_of_them - %(events_each)s
     ORDER BY n, place
"""
# The id is a made-up UUIDv7: the leading time keeps neighbours together.
ROWS = """
    SELECT n, moment, ({state}) AS state, ({is_retried}) AS is_retried,
           'type-' || ({type}) AS type, 'queue-' || ({queue}) AS queue,
           'worker-' || ({worker}) AS worker,
           (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || '7'
            || lpad(to_hex(n %% 4096), 3, '0') || 'a' || substr(md5(n::text), 1, 15))::uuid AS id
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n,
           LATERAL (SELECT %(began)s + (n - %(number)s::bigint) * %(step)s::interval AS moment)
           AS at
"""


class TooLarge(Exception):
    """The disk does not hold it."""


@dataclass(frozen=True)
class Kind:
    """What the jobs of a range are: SQL expressions of their number `n`."""

    state: str
    type: str
    queue: str
    worker: str
    is_retried: str = "false"


@dataclass(frozen=True)
class Part:
    """A range of jobs, spread evenly over a time."""

    name: str
    kind: Kind
    count: int
    since: timedelta
    """How long ago the first one was enqueued."""
    until: timedelta = timedelta(0)


@dataclass(frozen=True)
class Stock:
    """How much a database is filled with."""

    finished: int
    available: int
    workers: int
    queues: int = 1_000
    held: int = 10
    """Active jobs of each worker."""
    types: int = 200
    events_each: int = 1
    """The last events of each job, at most three."""
    past: timedelta = timedelta(days=30)

    @property
    def parts(self) -> list[Part]:
        # A run of neighbours shares a queue: every queue has jobs in all states.
        names = {
            "type": f"n / 7 %% {self.types}",
            "queue": f"n / 100 %% {self.queues}",
            "worker": f"n %% {self.workers}",
        }
        ended = "CASE n %% 100 WHEN 0 THEN 'discarded' WHEN 1 THEN 'cancelled' ELSE 'completed' END"
        waiting = (
            "CASE n %% 200 WHEN 0 THEN 'scheduled' WHEN 1 THEN 'retryable' ELSE 'available' END"
        )
        hour = timedelta(hours=1)
        is_retried = "n %% 100 < 2 OR n %% 50 = 7"
        return [
            Part("finished", Kind(ended, **names, is_retried=is_retried), self.finished, self.past),
            Part("waiting", Kind(waiting, **names), self.available, 2 * hour, hour / 6),
            Part("active", Kind("'active'", **names), self.workers * self.held, hour / 6),
        ]


def fill(stock: Stock) -> None:
    """Fill an empty database, vacuumed and with a checkpoint behind it.

    Raises:
        TooLarge: the disk does not hold it.
    """
    now = scalar("SELECT now()")
    parts = stock.parts
    begin = [sum(part.count for part in parts[:place]) for place in range(len(parts))]
    progress = Progress(sum(part.count for part in parts))
    execute("SET synchronous_commit = off")
    needed = 0.0
    # The beginning of each part first: what it takes tells what the whole will take.
    for number, part in zip(begin, parts, strict=True):
        before, some = size(), min(CHUNK, part.count)
        progress(add(part, number, range(some), now, stock.events_each))
        needed += (size() - before) * (part.count / max(1, some) - 1)
    check_disk(needed)
    with sessions() as pool:
        for number, part in zip(begin, parts, strict=True):
            add_chunk = partial(add, part, number, now=now, events_each=stock.events_each)
            for done in pool.map(add_chunk, in_parts(range(CHUNK, part.count), CHUNK)):
                progress(done)
    queues(stock.queues)
    workers(stock.workers, queues=stock.queues, hosts=max(1, stock.workers // 20))
    say("  VACUUM ANALYZE …")
    execute("VACUUM ANALYZE")
    execute("CHECKPOINT")
    execute("RESET synchronous_commit")
    say(f"  {size() / 1e9:,.1f} GB, after {progress.seconds:,.0f} s.")


def queues(count: int) -> None:
    from jobs.models import Queue

    Queue.objects.bulk_create([Queue(name=f"queue-{n}") for n in range(count)], batch_size=1_000)


def workers(count: int, *, queues: int, hosts: int) -> None:
    """Add live workers; none falls silent while pages are measured."""
    from django.utils import timezone

    from workers.models import Worker

    now = timezone.now()
    Worker.objects.bulk_create(
        (
            Worker(
                worker_id=f"worker-{n}",
                hostname=f"host-{n % hosts}",
                queues=[f"queue-{n % queues}"],
                labels=["blue" if n % 2 else "green"],
                concurrency=10,
                last_heartbeat_at=now,
                heartbeat_timeout=timedelta(days=2),
            )
            for n in range(count)
        ),
        batch_size=1_000,
    )


def add(part: Part, number: int, places: range, now: datetime, events_each: int = 0) -> int:
    """Add the jobs at these places of a part whose first job has this number; return how many."""
    rows = ROWS.format(**vars(part.kind))
    for chunk in in_parts(places, CHUNK):
        about: dict[str, object] = {
            "began": now - part.since,
            "number": number,
            "step": (part.since - part.until) / part.count,
            "events_each": events_each,
            "first": number + chunk.start,
            "last": number + chunk.stop - 1,
        }
        execute(JOBS.format(rows=rows), about)
        execute(ERRORS.format(rows=rows), about)
        if events_each:
            execute(EVENTS.format(rows=rows), about)
    return len(places)


@contextmanager
def sessions() -> Iterator[ThreadPoolExecutor]:
    """Threads with sessions of their own of the database that this thread uses."""
    used: Any = connections[DEFAULT_DB_ALIAS]
    opened = []

    def begin() -> None:
        own = used.copy()
        opened.append(own)
        own.inc_thread_sharing()  # the caller closes it
        connections[DEFAULT_DB_ALIAS] = own
        execute("SET synchronous_commit = off")

    try:
        with ThreadPoolExecutor(os.cpu_count(), initializer=begin) as pool:
            yield pool
    finally:
        for session in opened:
            session.close()


def execute(statement: str, parameters: Mapping[str, object] | None = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


class Progress:
    """Says now and then how far the filling is."""

    EVERY = 10.0

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = 0
        self._began = self._said = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def __call__(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if now - self._said < self.EVERY and self._done < self._total:
            return
        self._said = now
        rate = self._done / max(self.seconds, 0.001)
        left = (self._total - self._done) / rate
        say(
            f"  {self._done:,} of {self._total:,} jobs, {rate:,.0f} a second, "
            f"{size() / 1e9:,.1f} GB, {left / 60:,.0f} min left"
        )


def size() -> int:
    """Bytes of the tables that grow, with their indexes."""
    found: int = scalar(
        "SELECT sum(pg_total_relation_size(name::regclass))::bigint"
        f" FROM unnest(ARRAY{list(TABLES)}) AS name"
    )
    return found


def check_disk(needed: float) -> None:
    """Say how much room the rest needs.

    Raises:
        TooLarge: there is less room than that.
    """
    log = scalar("SELECT pg_size_bytes(current_setting('max_wal_size'))")
    needed = needed * SPARE + log
    say(f"  {needed / 1e9:,.1f} GB of the disk are needed.")
    folder = Path(scalar("SHOW data_directory"))
    if not folder.exists():
        say("  The server's disk is not this machine's: its room is not checked.")
        return
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise TooLarge(
            f"The disk has {free / 1e9:,.1f} GB left, and {needed / 1e9:,.1f} GB are needed: "
            "take fewer jobs (--finished, --available) or fewer events (--events-each)."
        )
