"""What a run leaves behind in PostgreSQL: sizes, dead rows, log; and a past to begin with.

`python -m tests.benchmarks.growth` is a reaper whose partitions of events are as short as a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from .tables import QUEUE, new_id

CHUNK = 100_000
SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min"}
"""Of PostgreSQL, as docs/database.md recommends them for a busy site."""
FEWEST = 250_000
"""Events in a partition: in a run, a minute stands for a day or more."""
TABLES = ("ojs_jobs_job", "ojs_jobs_event")
FIGURES = """
    SELECT sum(pg_table_size(part.relid)), sum(pg_indexes_size(part.relid)), sum(stat.n_dead_tup)
      FROM (SELECT %(table)s::regclass AS relid
             UNION SELECT relid FROM pg_partition_tree(%(table)s)) AS part
 LEFT JOIN pg_stat_all_tables AS stat ON stat.relid = part.relid
"""
FINISHED = "%(began)s::timestamptz + make_interval(secs => %(step)s::float8 * n)"
JOBS = f"""
    INSERT INTO ojs_jobs_job
           (id, type, queue, args, meta, priority, state, attempt, attempt_counted, max_attempts,
            reserved_by, finished_by, unfenced, created_at, enqueued_at, started_at, finished_at,
            tags, attributes, dead_letter)
    SELECT {new_id("time")}, 'bench.noop', '{QUEUE}', '[1, "two"]', '{{}}', 0, 'completed', 1,
           false, 3, '', '', false, time, time, time, time, '[]', '{{}}', false
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n,
           LATERAL (SELECT {FINISHED} AS time) AS at
"""
EVENTS = f"""
    INSERT INTO ojs_jobs_event (type, subject, queue, job_type, worker_id, attempt, time)
    SELECT kind, subject, '{QUEUE}', 'bench.noop', '', (kind <> 'job.enqueued')::integer, time
      FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n,
           LATERAL (SELECT {FINISHED} AS time,
                           ({new_id(FINISHED)})::text AS subject) AS at,
           unnest(ARRAY['job.enqueued', 'job.started', 'job.completed']) AS kind
"""


@dataclass(frozen=True)
class Figures:
    """PostgreSQL's own, of one moment."""

    tables: dict[str, int]
    """Bytes without indexes, by table."""
    indexes: dict[str, int]
    dead: dict[str, int]
    """Dead rows, as PostgreSQL estimates them."""
    log: int
    """Position in the write-ahead log, in bytes."""

    @property
    def size(self) -> int:
        return sum(self.tables.values()) + sum(self.indexes.values())


def look(connection: psycopg.Connection[Any]) -> Figures:
    found = {
        table: connection.execute(FIGURES, {"table": table}).fetchone() or (0, 0, 0)
        for table in TABLES
    }
    position = connection.execute("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')")
    ((log,),) = position.fetchall()
    tables, indexes, dead = (
        {table: int(row[column] or 0) for table, row in found.items()} for column in range(3)
    )
    return Figures(tables, indexes, dead, int(log))


def partition(connection: psycopg.Connection[Any]) -> None:
    """Have the record of events in partitions as they are long after the move.

    The first one, which the move leaves, has more ids than a run uses up.
    """
    from django.core.management import call_command

    from jobs.engine import event_partitions
    from jobs.store import partitions

    event_partitions.FEWEST = FEWEST
    call_command("partitionevents", verbosity=0)
    last = partitions.layout().upper - 1
    connection.execute("SELECT setval(%s, %s)", [partitions.relation().sequence, last])
    while event_partitions.make_ahead():
        pass


def _make_partitions(rows: int) -> None:
    """As many as a retention has, for so many events of that time, and those ahead of them."""
    from jobs.engine.event_partitions import AHEAD, SHARE
    from jobs.store import partitions

    if not partitions.is_partitioned():
        return
    size = 1 + rows // SHARE
    end = partitions.relation().last_id + rows + AHEAD * size
    while (upper := partitions.layout().upper) <= end:
        partitions.add(upper, upper + size)


def fill(connection: psycopg.Connection[Any], jobs: int, *, seconds: float) -> None:
    """Replace all jobs by some that finished in the last `seconds`, evenly, with three events each.

    Ids are in the order of times: those of jobs contain them, and those of events are drawn.
    """
    from jobs.store import partitions

    connection.execute("TRUNCATE ojs_jobs_job, ojs_jobs_event CASCADE")
    _make_partitions(3 * jobs)
    found = connection.execute("SELECT now() - make_interval(secs => %s)", [seconds]).fetchone()
    assert found is not None
    for first in range(0, jobs, CHUNK):
        about = {"first": first, "last": min(first + CHUNK, jobs) - 1}
        about |= {"began": found[0], "step": seconds / jobs}
        connection.execute(JOBS, about)
        connection.execute(EVENTS, about)
    has_read(partitions.relation().last_id)
    connection.execute("VACUUM ANALYZE ojs_jobs_job, ojs_jobs_event")
    connection.execute("CHECKPOINT")


def has_read(last: int) -> None:
    """Let the reaper read events from then on, as if it had read those up to this id."""
    from workers.chores import long_histories, tallies
    from workers.models import EventCursor

    for reader in (long_histories, tallies):
        EventCursor.objects.update_or_create(pk=reader.NAME, defaults={"event_id": last})


@contextmanager
def idle_transaction(url: str) -> Iterator[None]:
    """A transaction that was forgotten: while it is open, no row that dies can be removed."""
    with psycopg.connect(url) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        yield
        connection.rollback()


def _reap() -> None:
    import django

    django.setup()
    from django.core.management import call_command

    from jobs.engine import event_partitions

    event_partitions.FEWEST = FEWEST
    call_command("runreaper")


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ojs_project.settings")
    _reap()
