"""Heartbeats on PostgreSQL: one statement each, or one for all that are pending in a process."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import orjson

from jobs.conf import ojs_settings
from jobs.store.database import run
from jobs.store.sql import load

from ...lifecycle import WorkerState, desired
from ..contract import Description, Heartbeat, Written
from . import batches

HEARTBEAT = load(__name__, "heartbeat")
SIZES = (1, 10, 100, 1_000, 10_000, 100_000)
QUIET = WorkerState.QUIET


class PostgresHeartbeatStore:
    def beat(self, heartbeat: Heartbeat) -> Written | None:
        written = batches.write(heartbeat)
        if written is not None:
            return Written(desired(*written), None)
        return _write(heartbeat)

    def beat_all(self, heartbeats: Sequence[Heartbeat]) -> list[Written | None]:
        return [
            None if written is None else Written(desired(*written), None)
            for written in batches.write_all(heartbeats)
        ]


def _write(heartbeat: Heartbeat) -> Written | None:
    description = heartbeat.description or Description()
    job_ids = [text for text, job_id in heartbeat.job_ids().items() if job_id is not None]
    limit = next((limit for limit in SIZES if limit >= len(job_ids)), len(job_ids))
    rows = run(
        HEARTBEAT.sized(limit=limit),
        {
            "worker_id": heartbeat.worker_id,
            "project": heartbeat.project,
            "sequence": heartbeat.sequence,
            "state": heartbeat.state and str(heartbeat.state),
            "active_job_ids": _json(heartbeat.active_job_ids),
            "hostname": description.hostname,
            "pid": description.pid,
            "queues": _json(description.queues),
            "concurrency": description.concurrency,
            "labels": _json(description.labels),
            "started_at": description.started_at,
            "protocol": description.protocol,
            "version": description.version,
            "job_versions": None
            if description.job_versions is None
            else orjson.dumps(description.job_versions).decode(),
            "heartbeat_timeout": description.heartbeat_timeout,
            # A PostgreSQL array literal: the ids have been checked already.
            "job_ids": f"{{{','.join(job_ids)}}}",
            "requested": heartbeat.requested,
            "grace": ojs_settings.GRACE_PERIOD,
            "records_events": ojs_settings.RECORD_EVENTS,
            "records_heartbeats": ojs_settings.RECORD_EVENTS and ojs_settings.RECORD_HEARTBEATS,
        },
    )
    if not rows:
        return None
    ((state, directive, extended, before),) = rows
    return Written(desired(state, directive), set(extended), state == QUIET != before)


def _json(values: Collection[str] | None) -> str | None:
    return None if values is None else orjson.dumps(list(values)).decode()
