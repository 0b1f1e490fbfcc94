"""Heartbeats that arrive at the same time are written by one statement.

Most of a fleet's heartbeats say nothing new: the worker lives, and goes on with the jobs that it
holds. One statement writes all of those that several threads of a server process have in hand. It
waits for nothing: what concerns a worker of which a row is locked, or that has lost a job, or says
another state than before, is left to a statement of its own, which waits.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import orjson
from django.db import Error, connections

from jobs.conf import ojs_settings
from jobs.spec.identifiers import UUID_PATTERN
from jobs.store.database import alias, run
from jobs.store.group_commit import Combiner
from jobs.store.sql import load

from ..contract import Heartbeat

MOST = 32
"""Heartbeats of one statement."""
ABREAST = 3
"""Statements of a process at the same time. With one, PostgreSQL would be idle whenever the thread
that got its answer is not running yet, and whenever the disk is waited for."""
MOST_JOBS = 100
"""Jobs of one of them: its rows stay locked until all are written."""

REPEATED = (
    *("hostname", "pid", "queues", "concurrency", "labels", "started_at", "version"),
    "job_versions",
)
"""What heartbeats may repeat or correct of a worker's description."""
OWN_WAY = ("protocol", "heartbeat_timeout")
"""What only some protocols say: such heartbeats go their own way."""

HEARTBEATS = load(__package__, "heartbeats")
STATEMENTS = {
    limit: HEARTBEATS.sized(most=MOST, limit=limit) for limit in (100, 1_000, MOST * MOST_JOBS)
}
"""By the most jobs that they are for."""

Standing = tuple[str, str]
"""State and directive of a worker."""
_Said = tuple[str, int, bytes]
"""Who, how many jobs, and the whole of it as JSON."""

_combiners: dict[str, Combiner[_Said, Standing]] = {}
"""By the alias of the database."""
# Threads that wait or write are not in a forked process.
os.register_at_fork(after_in_child=_combiners.clear)


def write(heartbeat: Heartbeat) -> Standing | None:
    """Write the heartbeat with those that other threads have in hand; return how the worker stands.

    None, and nothing is written, where it has to go a way of its own.
    """
    database = alias()
    if not _is_usual(heartbeat) or not _is_on_its_own(database):
        return None
    combiner = _combiners.get(database)
    if combiner is None:
        combiner = _combiners.setdefault(database, Combiner(_write_all, most=MOST, abreast=ABREAST))
    return combiner.do(heartbeat.worker_id, _said(heartbeat))


def _is_usual(heartbeat: Heartbeat) -> bool:
    said = heartbeat.description
    jobs = heartbeat.active_job_ids or ()
    return (
        len(jobs) <= MOST_JOBS
        and all(map(UUID_PATTERN.fullmatch, jobs))
        and (said is None or not any(getattr(said, name) is not None for name in OWN_WAY))
        and not ojs_settings.RECORD_HEARTBEATS
    )


def _is_on_its_own(name: str) -> bool:
    """Whether what this thread does may be done on another thread's connection."""
    database: Any = connections[name]
    settings = database.settings_dict
    return (
        # The wrapper of another package may give each thread's connection a tenant of its own.
        type(database).__module__.startswith("django.")
        # Off in a transaction, too.
        and (database.autocommit if database.connection else settings["AUTOCOMMIT"])
        and not database.execute_wrappers
        and not database.queries_logged
        # Where it is not prepared, planning it takes longer than all the heartbeats.
        and not settings.get("DISABLE_SERVER_SIDE_CURSORS")
    )


def _said(heartbeat: Heartbeat) -> _Said:
    """As JSON, written by each thread for itself: what is wrong with one concerns nobody else."""
    document: dict[str, Any] = {"worker_id": heartbeat.worker_id}
    if heartbeat.state is not None:
        document["state"] = heartbeat.state
    if heartbeat.active_job_ids is not None:
        document["active_job_ids"] = list(heartbeat.active_job_ids)
    if heartbeat.sequence is not None:
        document["sequence"] = heartbeat.sequence
    if heartbeat.requested is not None:
        document["requested"] = _interval(heartbeat.requested)
    if heartbeat.description is not None:
        for name in REPEATED:
            value = getattr(heartbeat.description, name)
            if value is not None:
                document[name] = value
    return heartbeat.worker_id, len(heartbeat.active_job_ids or ()), orjson.dumps(document)


def _interval(value: timedelta) -> str:
    return f"{value.days} days {value.seconds} seconds {value.microseconds} microseconds"


def _write_all(said: list[_Said]) -> list[Standing | None]:
    jobs = sum(count for _, count, _ in said)
    limit = next(limit for limit in STATEMENTS if limit >= jobs)
    document = b"[%s]" % b",".join([document for *_, document in said])
    parameters = {"heartbeats": document.decode(), "grace": ojs_settings.GRACE_PERIOD}
    try:
        rows = run(STATEMENTS[limit], parameters)
    except Error:
        # Whatever it was, each finds out for itself whether it is concerned.
        return [None] * len(said)
    written = {worker_id: (state, directive) for worker_id, state, directive in rows}
    return [written.get(worker_id) for worker_id, *_ in said]
