"""Writing a heartbeat down: the worker's row and the reservations it extends (OJS worker §4, §5.4).

The hottest write of a large fleet. PostgreSQL takes it in one statement; elsewhere three do.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any
from uuid import UUID

import orjson
from django.db.models import Case, F, Q, Value, When

from jobs import engine
from jobs.access.projects import own
from jobs.conf import ojs_settings
from jobs.record.events import record, worker_event
from jobs.signals import jobs_extended, send_on_commit
from jobs.spec.identifiers import parse_uuid
from jobs.store import clock
from jobs.store.database import atomic, is_postgresql, run

from ..lifecycle import WorkerState, desired
from ..models import Worker
from ..signals import worker_beat, worker_quieted
from . import batched_heartbeats

QUIET = WorkerState.QUIET


@dataclass(slots=True)
class Description:
    """What a worker says of itself (§3.1, §4.2); None where it said nothing."""

    hostname: str | None = None
    pid: int | None = None
    queues: list[str] | None = None
    concurrency: int | None = None
    labels: list[str] | None = None
    job_types: list[str] | None = None
    """What it can run."""
    project: str | None = None
    """Whose it is, which its key says."""
    started_at: datetime | None = None
    protocol: str | None = None
    version: str | None = None
    heartbeat_timeout: timedelta | None = None
    capabilities: list[str] | None = None
    details: dict[str, Any] | None = None
    specs: dict[str, str] | None = None
    job_versions: dict[str, list[int | None]] | None = None
    """Job type → bounds of the versions it takes (OJS job versioning §8.1)."""

    def given(self) -> dict[str, Any]:
        pairs = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in pairs if value is not None}


SETTLED = frozenset({"job_types", "project", "capabilities", "details", "specs"})
"""What a worker says when it arrives; no later heartbeat changes it."""


@dataclass(slots=True)
class Heartbeat:
    """A heartbeat as received (§4.2)."""

    worker_id: str
    state: WorkerState | None = None
    """What the worker says it is; None leaves what it said before."""
    active_job_ids: Collection[str] | None = None
    """The jobs it runs, as it spelled them; None if it did not say."""
    description: Description | None = None
    requested: timedelta | None = None
    """The visibility extension it asks for, where a job's own is not longer; None means the own."""
    sequence: int | None = None
    """Its number; one lower than seen before came late and changes nothing (§10.3)."""
    project: str = ""
    """Whose worker it is; empty means anybody's."""

    _job_ids: dict[str, UUID | None] | None = field(default=None, init=False)

    def job_ids(self) -> dict[str, UUID | None]:
        """What it calls its jobs → their ids; None for what can be no job of ours."""
        if self._job_ids is None:
            self._job_ids = {text: parse_uuid(text) for text in self.active_job_ids or ()}
        return self._job_ids


@dataclass(slots=True)
class Written:
    """What a heartbeat led to."""

    desired_state: WorkerState
    extended: set[UUID] | None
    """None: all that it named."""
    fell_quiet: bool = False


# §2.3: nothing leads back from `terminate`. A resume has been heard when the worker says
# `running`; a later `quiet` is then its own. Jobs are locked in the order of their ids, as every
# batch does; the limit tells the planner how many there are.
BEAT = """
    WITH before AS MATERIALIZED (
        SELECT worker_id, state
          FROM ojs_workers_worker
         WHERE worker_id = %(worker_id)s
           AND %(project)s::text IN ('', project)
           AND state <> 'terminated'
           AND (%(sequence)s::bigint IS NULL OR sequence IS NULL
                OR sequence < %(sequence)s::bigint)
           FOR UPDATE
    ), beat AS (
        UPDATE ojs_workers_worker AS worker
           SET last_heartbeat_at = statement_timestamp(),
               state = CASE WHEN worker.state = 'terminate' THEN worker.state
                            ELSE coalesce(%(state)s::text, worker.state) END,
               directive = CASE WHEN %(state)s::text = 'running' AND directive = 'running'
                                THEN '' ELSE directive END,
               active_job_ids = coalesce(%(active_job_ids)s::jsonb, active_job_ids),
               sequence = coalesce(%(sequence)s::bigint, sequence),
               hostname = coalesce(%(hostname)s::text, hostname),
               pid = coalesce(%(pid)s::bigint, pid),
               queues = coalesce(%(queues)s::jsonb, queues),
               concurrency = coalesce(%(concurrency)s::integer, concurrency),
               labels = coalesce(%(labels)s::jsonb, labels),
               started_at = coalesce(%(started_at)s::timestamptz, started_at),
               protocol = coalesce(%(protocol)s::text, protocol),
               version = coalesce(%(version)s::text, version),
               job_versions = coalesce(%(job_versions)s::jsonb, job_versions),
               heartbeat_timeout = coalesce(%(heartbeat_timeout)s::interval, heartbeat_timeout)
          FROM before
         WHERE worker.worker_id = before.worker_id
     RETURNING worker.worker_id, worker.state, worker.directive, before.state AS state_before,
               worker.queues,
               'terminate' IN (worker.state, worker.directive) AS terminating
    ), named AS MATERIALIZED (
        SELECT id
          FROM unnest(%(job_ids)s::uuid[]) AS id
      ORDER BY id
         LIMIT {limit}
    ), held AS MATERIALIZED (
        SELECT job.id
          FROM beat
    CROSS JOIN named
    CROSS JOIN LATERAL (
            SELECT id
              FROM ojs_jobs_job
             WHERE id = named.id
               AND state = 'active'
               AND reserved_by IN (%(worker_id)s::text, '')
               FOR UPDATE
          ) AS job
         LIMIT {limit}
    ), extended AS (
        UPDATE ojs_jobs_job AS job
           SET reserved_by = beat.worker_id,
               reserved_until = {until}
          FROM held, beat
         WHERE job.id = held.id
     RETURNING job.id, job.type, job.queue, job.attempt, job.reserved_by, job.reserved_until
    ){recorded}
    SELECT state, directive, ARRAY(SELECT id FROM extended), state_before FROM beat
"""
EVENTS = """, recorded AS (
        INSERT INTO ojs_jobs_event
               (type, subject, queue, job_type, worker_id, attempt, time, data)
        SELECT 'worker.quiet', worker_id, '', '', worker_id, NULL::integer, statement_timestamp(),
               jsonb_build_object('active_jobs', cardinality(%(job_ids)s::uuid[]))
          FROM beat
         WHERE state = 'quiet' AND state_before <> 'quiet'{beats}
    )"""
TOLD_OF_BEATS = """
     UNION ALL
        SELECT 'worker.heartbeat', worker_id, '', '', worker_id, NULL, statement_timestamp(),
               jsonb_build_object('active_jobs', cardinality(%(job_ids)s::uuid[]),
                                  'queues', queues)
          FROM beat
     UNION ALL
        SELECT 'job.heartbeat', id::text, queue, type, reserved_by, attempt,
               statement_timestamp(), jsonb_build_object('visible_until', reserved_until)
          FROM extended"""
SIZES = (1, 10, 100, 1_000, 10_000, 100_000)


@lru_cache(maxsize=64)
def _statement(limit: int, recorded: bool, beats: bool) -> str:
    telling = EVENTS.format(beats=TOLD_OF_BEATS if beats else "") if recorded else ""
    until = engine.EXTENDED_UNTIL.format(
        requested="%(requested)s::interval", terminating="beat.terminating"
    )
    return BEAT.format(limit=limit, recorded=telling, until=until)


def write(heartbeat: Heartbeat) -> Written | None:
    """Record a heartbeat of a live worker and extend the jobs it holds.

    None if no such worker is live, or if the heartbeat came too late.
    """
    written = _write_together(heartbeat)
    if written is None:
        written = (_write_postgresql if is_postgresql() else _write_portable)(heartbeat)
    if written is not None:
        _send_signals(heartbeat, written)
    return written


def _write_together(heartbeat: Heartbeat) -> Written | None:
    standing = batched_heartbeats.write(heartbeat)
    return None if standing is None else Written(desired(*standing), None)


def _send_signals(heartbeat: Heartbeat, written: Written) -> None:
    about = {"worker_id": heartbeat.worker_id}
    if worker_beat.has_listeners():
        send_on_commit(worker_beat, Worker, state=written.desired_state, **about)
    if written.fell_quiet and worker_quieted.has_listeners():
        send_on_commit(worker_quieted, Worker, **about)
    if jobs_extended.has_listeners():
        extended = written.extended
        if extended is None:
            extended = {job_id for job_id in heartbeat.job_ids().values() if job_id is not None}
        if extended:
            send_on_commit(jobs_extended, Worker, job_ids=list(extended), **about)


def _write_postgresql(heartbeat: Heartbeat) -> Written | None:
    said = heartbeat.description or Description()
    job_ids = [text for text, job_id in heartbeat.job_ids().items() if job_id is not None]
    limit = next((limit for limit in SIZES if limit >= len(job_ids)), len(job_ids))
    rows = run(
        _statement(limit, ojs_settings.RECORD_EVENTS, ojs_settings.RECORD_HEARTBEATS),
        {
            "worker_id": heartbeat.worker_id,
            "project": heartbeat.project,
            "sequence": heartbeat.sequence,
            "state": heartbeat.state and str(heartbeat.state),
            "active_job_ids": _json(heartbeat.active_job_ids),
            "hostname": said.hostname,
            "pid": said.pid,
            "queues": _json(said.queues),
            "concurrency": said.concurrency,
            "labels": _json(said.labels),
            "started_at": said.started_at,
            "protocol": said.protocol,
            "version": said.version,
            "job_versions": None
            if said.job_versions is None
            else orjson.dumps(said.job_versions).decode(),
            "heartbeat_timeout": said.heartbeat_timeout,
            # An array as PostgreSQL spells it: they are looked through already.
            "job_ids": f"{{{','.join(job_ids)}}}",
            "requested": heartbeat.requested,
            "grace": ojs_settings.GRACE_PERIOD,
        },
    )
    if not rows:
        return None
    ((state, directive, extended, before),) = rows
    return Written(desired(state, directive), set(extended), state == QUIET != before)


def _json(values: Collection[str] | None) -> str | None:
    return None if values is None else orjson.dumps(list(values)).decode()


def _write_portable(heartbeat: Heartbeat) -> Written | None:
    with atomic():
        fresh = own(Worker.objects.live(), heartbeat.project).filter(pk=heartbeat.worker_id)
        if heartbeat.sequence is not None:
            fresh = fresh.filter(Q(sequence__isnull=True) | Q(sequence__lt=heartbeat.sequence))
        before = fresh.select_for_update().values_list("state", flat=True).first()
        if before is None:
            return None
        said = {name: it for name, it in changes(heartbeat).items() if name not in SETTLED}
        Worker.objects.filter(pk=heartbeat.worker_id).update(**said)
        worker = Worker.objects.only("state", "directive", "queues").get(pk=heartbeat.worker_id)
        jobs = {job_id for job_id in heartbeat.job_ids().values() if job_id is not None}
        fell_quiet = worker.state == QUIET != before
        if fell_quiet:
            quiet = worker_event("worker.quiet", worker.worker_id, active_jobs=len(jobs))
            record([quiet])
        terminating = WorkerState.TERMINATE in (worker.state, worker.directive)
        extended = engine.extend(
            jobs,
            worker_id=heartbeat.worker_id,
            requested=heartbeat.requested,
            at_least=ojs_settings.GRACE_PERIOD if terminating else None,
        )
        if ojs_settings.RECORD_HEARTBEATS:
            recorded = {"active_jobs": len(jobs), "queues": worker.queues}
            record([worker_event("worker.heartbeat", worker.worker_id, **recorded)])
    return Written(worker.desired_state, extended, fell_quiet)


def changes(heartbeat: Heartbeat) -> dict[str, Any]:
    """The columns that a worker's first heartbeat writes; later ones leave what is `SETTLED`."""
    said: dict[str, Any] = heartbeat.description.given() if heartbeat.description else {}
    said["last_heartbeat_at"] = clock.now()
    if heartbeat.active_job_ids is not None:
        said["active_job_ids"] = list(heartbeat.active_job_ids)
    if heartbeat.sequence is not None:
        said["sequence"] = heartbeat.sequence
    if heartbeat.state is not None:
        terminate = WorkerState.TERMINATE
        said["state"] = Case(
            When(state=terminate, then=Value(terminate)), default=Value(heartbeat.state)
        )
    if heartbeat.state == WorkerState.RUNNING:
        said["directive"] = Case(
            When(directive=WorkerState.RUNNING, then=Value("")), default=F("directive")
        )
    return said
