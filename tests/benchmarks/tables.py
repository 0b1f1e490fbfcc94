"""Fills and empties the tables of the database under test, in bulk, without the engine."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

QUEUE = "bench"


def new_id(moment: str = "clock_timestamp()") -> str:
    """An expression for a made-up UUIDv7 of a moment: its time keeps neighbours together."""
    return f"""(lpad(to_hex((extract(epoch FROM {moment}) * 1000)::bigint), 12, '0') || '7'
    || substr(md5(random()::text), 1, 3) || 'a' || substr(md5(random()::text), 1, 15))::uuid"""


LOAD = f"""
    INSERT INTO ojs_jobs_job
           (id, type, queue, args, meta, priority, state, attempt, attempt_counted, max_attempts,
            reserved_by, reserved_for, reserved_until, finished_by, unfenced, created_at,
            enqueued_at, started_at, finished_at, tags, attributes, dead_letter)
    SELECT {new_id()}, 'bench.noop', %(queue)s, '[1, "two", {{"three": 3}}]', '{{}}', 0, %(state)s,
           %(attempt)s, false, 3,
           CASE WHEN %(state)s = 'active' THEN %(worker)s || (n %% %(workers)s) ELSE '' END,
           CASE WHEN %(state)s = 'active' THEN interval '30 min' END,
           CASE WHEN %(state)s = 'active' THEN now() + interval '30 min' END,
           '', false, now() + n * interval '1 microsecond', now() + n * interval '1 microsecond',
           CASE WHEN %(attempt)s > 0 THEN now() END,
           CASE WHEN %(state)s = 'completed' THEN now() END, '[]', '{{}}', false
      FROM generate_series(1, %(count)s) AS n
"""
MUCH = 50_000
EMPTIED = (
    "ojs_jobs_joberror",
    "ojs_jobs_event",
    "ojs_jobs_refusedfinish",
    "ojs_jobs_job",
    "ojs_jobs_workflow",
)


def empty() -> None:
    """Remove all jobs and workflows, what is recorded about them, and all workers; queues stay."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(f"TRUNCATE {', '.join(EMPTIED)}, ojs_workers_worker CASCADE")
        else:
            for table in (*EMPTIED, "ojs_workers_worker"):
                cursor.execute(f"DELETE FROM {table}")


def load(
    count: int, *, state: str = "available", worker: str = "worker-", workers: int = 1
) -> None:
    """Add `count` jobs in `state`, and analyze the table."""
    if not count:
        return
    if connection.vendor != "postgresql":
        _load_portable(count)
        return
    add(count, state=state, worker=worker, workers=workers)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE ojs_jobs_job")
        if count >= MUCH:
            # Now, not during a measurement.
            cursor.execute("CHECKPOINT")


def add(count: int, *, state: str = "available", worker: str = "worker-", workers: int = 1) -> None:
    """Add `count` jobs to PostgreSQL's table, without notifying anything."""
    with connection.cursor() as cursor:
        cursor.execute(
            LOAD,
            {
                "queue": QUEUE,
                "state": state,
                "attempt": 0 if state == "available" else 1,
                "worker": worker,
                "workers": workers,
                "count": count,
            },
        )


def fleet(workers: int, jobs: int) -> list[tuple[str, list[str]]]:
    """Create live workers with active jobs; return their ids and the jobs'."""
    from django.utils import timezone

    from workers.models import Worker

    load(workers * jobs, state="active", worker="fleet-", workers=workers)
    now = timezone.now()
    Worker.objects.bulk_create(
        (
            Worker(
                worker_id=f"fleet-{number}", hostname="bench", queues=[QUEUE], last_heartbeat_at=now
            )
            for number in range(workers)
        ),
        batch_size=1_000,
    )
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE ojs_workers_worker")
        cursor.execute(
            "SELECT reserved_by, array_agg(id::text) FROM ojs_jobs_job"
            " WHERE state = 'active' GROUP BY reserved_by ORDER BY random()"
        )
        return cursor.fetchall()


def _load_portable(count: int) -> None:
    from jobs.models import Job

    now = datetime.now(UTC)
    Job.objects.bulk_create(
        (
            Job(
                id=uuid.uuid4(),
                type="bench.noop",
                queue=QUEUE,
                args=[1, "two", {"three": 3}],
                created_at=now,
                enqueued_at=now + timedelta(microseconds=number),
            )
            for number in range(count)
        ),
        batch_size=500,
    )


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def scalar(query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def completed() -> int:
    return int(scalar("SELECT count(*) FROM ojs_jobs_job WHERE state = 'completed'"))


def sessions() -> list[int]:
    """The processes of all other sessions of clients, on PostgreSQL."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
            " AND datname = current_database() AND pid <> pg_backend_pid()"
        )
        return [pid for (pid,) in cursor.fetchall()]
