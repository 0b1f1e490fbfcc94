"""Writes heartbeats that arrive at the same time in one statement.

Most of a fleet's heartbeats bring nothing new: the worker lives and keeps running the jobs it
holds. One statement writes those of several threads of a server process. It never waits for a
lock: a heartbeat is left to a statement of its own, which waits, if one of its rows is locked, if
its worker has lost a job, or if it reports a new state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import orjson
from django.db import Error, connections

from jobs.conf import ojs_settings
from jobs.spec.identifiers import UUID_PATTERN
from jobs.store.database import alias, run
from jobs.store.group_commit import GroupCommit
from jobs.store.sql import load

from ..contract import Heartbeat

MOST = 32
"""Most heartbeats in one statement."""
MAX_IN_FLIGHT = 3
"""Most statements of a process in flight at once. With only one, PostgreSQL would be idle until the
thread that receives the answer runs, and while it waits for the disk."""
MOST_JOBS = 100
"""Most jobs of one heartbeat: its rows stay locked until all heartbeats are written."""

REPEATED = (
    *("hostname", "pid", "queues", "concurrency", "labels", "started_at", "version"),
    "job_versions",
)
"""What heartbeats may repeat or correct of a worker's description."""
OWN_WAY = ("protocol", "heartbeat_timeout")
"""Sent by some protocols only: heartbeats with these are written separately."""

HEARTBEATS = load(__package__, "heartbeats")
STATEMENTS = {
    limit: HEARTBEATS.sized(most=MOST, limit=limit) for limit in (100, 1_000, MOST * MOST_JOBS)
}
"""Keyed by the most jobs that a statement takes."""

Orders = tuple[str, str]
"""State and directive of a worker."""
_Item = tuple[str, int, bytes]
"""Worker id, number of jobs, and the whole heartbeat as JSON."""

_groups: dict[str, GroupCommit[_Item, Orders]] = {}
"""Keyed by database alias."""
# A forked process does not inherit the threads that wait or write.
os.register_at_fork(after_in_child=_groups.clear)


def write(heartbeat: Heartbeat) -> Orders | None:
    """Write the heartbeat together with those of other threads.

    Return the worker's state and directive; None if nothing was written, because the
    heartbeat has to be written separately.
    """
    database = alias()
    if not _is_usual(heartbeat) or not _is_on_its_own(database):
        return None
    group = _groups.get(database)
    if group is None:
        group = _groups.setdefault(
            database, GroupCommit(_write_all, max_size=MOST, max_in_flight=MAX_IN_FLIGHT)
        )
    return group.do(heartbeat.worker_id, _item(heartbeat))


def write_all(heartbeats: Sequence[Heartbeat]) -> list[Orders | None]:
    """Write heartbeats of different workers together; None for each that was not written."""
    database = alias()
    usual = [heartbeat for heartbeat in heartbeats if _is_usual(heartbeat)]
    if not usual or not _is_on_its_own(database):
        return [None] * len(heartbeats)
    found: dict[str, Orders | None] = {}
    for start in range(0, len(usual), MOST):
        some = usual[start : start + MOST]
        written = _write_all([_item(heartbeat) for heartbeat in some])
        found |= zip((heartbeat.worker_id for heartbeat in some), written, strict=True)
    return [found.get(heartbeat.worker_id) for heartbeat in heartbeats]


def _is_usual(heartbeat: Heartbeat) -> bool:
    description = heartbeat.description
    jobs = heartbeat.active_job_ids or ()
    return (
        len(jobs) <= MOST_JOBS
        and all(map(UUID_PATTERN.fullmatch, jobs))
        and (
            description is None
            or not any(getattr(description, name) is not None for name in OWN_WAY)
        )
        and not ojs_settings.RECORD_HEARTBEATS
    )


def _is_on_its_own(name: str) -> bool:
    """Whether this thread's write may run on another thread's connection."""
    database: Any = connections[name]
    settings = database.settings_dict
    return (
        # A third-party database wrapper may tie each thread's connection to a tenant.
        type(database).__module__.startswith("django.")
        # Also off inside a transaction.
        and (database.autocommit if database.connection else settings["AUTOCOMMIT"])
        and not database.execute_wrappers
        and not database.queries_logged
        # If the statement is not prepared, planning it takes longer than the separate writes.
        and not settings.get("DISABLE_SERVER_SIDE_CURSORS")
    )


def _item(heartbeat: Heartbeat) -> _Item:
    """Serialize in the thread of the heartbeat, so that a bad one does not affect the others."""
    document: dict[str, Any] = {"worker_id": heartbeat.worker_id}
    if heartbeat.project:
        document["project"] = heartbeat.project
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


def _write_all(items: list[_Item]) -> list[Orders | None]:
    jobs = sum(count for _, count, _ in items)
    limit = next(limit for limit in STATEMENTS if limit >= jobs)
    document = b"[%s]" % b",".join([document for *_, document in items])
    parameters = {"heartbeats": document.decode(), "grace": ojs_settings.GRACE_PERIOD}
    try:
        rows = run(STATEMENTS[limit], parameters)
    except Error:
        # Whatever the cause, each heartbeat is then written separately and meets its own error.
        return [None] * len(items)
    written = {worker_id: (state, directive) for worker_id, state, directive in rows}
    return [written.get(worker_id) for worker_id, *_ in items]
