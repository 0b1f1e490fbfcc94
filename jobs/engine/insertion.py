"""The rows of new jobs, and the events that tell of them: one statement, and its portable twin."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any

import orjson

from ..conf import ojs_settings
from ..models import Job
from ..record.events import job_event, record
from ..spec.batches import UniformBatch, representatives, shared_targets
from ..spec.lifecycle import State
from ..spec.validation import NewJob
from ..store import clock, wakeup
from ..store.database import atomic, is_postgresql, run
from . import bounds, maintenance

EVENT_OF = {State.AVAILABLE: "job.enqueued", State.SCHEDULED: "job.scheduled"}
"""A pending job has entered no queue yet; it is told when it is activated."""

GIVEN = ("retry", "scheduled_at", "expires_at", "version_number")
PERIODS = ("timeout", "visibility_timeout", "total_timeout", "grace_period", "result_ttl")
FOLLOWED = ("workflow_id", "workflow_index", "followed", "parent_results")
COLUMNS = (
    *("id", "type", "queue", "args", "meta", "priority", "state", "max_attempts", "retry"),
    *("timeout", "grace_period", "visibility_timeout", "scheduled_at", "expires_at"),
    *("created_at", "enqueued_at", "tags", "attributes", "needs", "project", "result_ttl"),
    *("rate_key", "version_number", *FOLLOWED),
)
"""What a new job and its row call by the same name."""

MEMBERS = """
               type text, queue text, meta jsonb, priority smallint, pending boolean,
               max_attempts integer, retry jsonb, timeout double precision,
               grace_period double precision, total_timeout double precision,
               visibility_timeout double precision, scheduled_at timestamptz,
               expires_at timestamptz, tags jsonb, attributes jsonb, needs jsonb,
               result_ttl double precision, workflow_id uuid, workflow_index integer,
               followed boolean, parent_results jsonb, unique_key text, rate_key text,
               project text, version_number bigint"""
# The database's clock stamps the jobs, so that several servers agree on who came first.
INSERT = """
    WITH given AS MATERIALIZED (
        SELECT {own}type, queue, meta, priority,
               CASE WHEN pending THEN 'pending'
                    WHEN scheduled_at > statement_timestamp() THEN 'scheduled'
                    ELSE 'available' END AS state,
               max_attempts, retry, make_interval(secs => timeout) AS timeout,
               make_interval(secs => grace_period) AS grace_period,
               statement_timestamp() + make_interval(secs => total_timeout) AS deadline,
               make_interval(secs => visibility_timeout) AS visibility_timeout, scheduled_at,
               expires_at, statement_timestamp() AS now, tags, attributes, needs,
               make_interval(secs => result_ttl) AS result_ttl, workflow_id, workflow_index,
               coalesce(followed, false) AS followed, parent_results, unique_key,
               coalesce(rate_key, '') AS rate_key,
               coalesce(project, '') AS project, version_number
          FROM {source} AS said ({own_types}{members})
    ), inserted AS (
        INSERT INTO ojs_jobs_job
               (id, type, queue, args, meta, priority, state, attempt, attempt_counted,
                max_attempts, retry, timeout, grace_period, deadline, visibility_timeout,
                reserved_by, finished_by, unfenced, scheduled_at, expires_at, created_at,
                enqueued_at, tags, attributes, needs, dead_letter, result_ttl, workflow_id,
                workflow_index, followed, parent_results, unique_key, rate_key, project,
                version_number)
        SELECT id, type, queue, args, meta, priority, state, 0, false,
               max_attempts, retry, timeout, grace_period, deadline, visibility_timeout,
               '', '', false, scheduled_at, expires_at, now,
               now, tags, attributes, needs, false, result_ttl, workflow_id,
               workflow_index, followed, parent_results, unique_key, rate_key, project,
               version_number
          FROM given{each}
         {guard}
         {taken}
     RETURNING id
    ), rung AS (
        SELECT count(pg_notify('ojs_jobs', queue))
          FROM (SELECT DISTINCT queue FROM given WHERE state = 'available') AS queues
         WHERE EXISTS (SELECT 1 FROM inserted)
           AND EXISTS (SELECT 1 FROM ojs_jobs_listener)
    ){recorded}
    SELECT statement_timestamp(), (SELECT count(*) FROM inserted) FROM rung
"""
EVENTS = """, telling AS {once}(
        SELECT {own_id}pg_current_xact_id()::text::bigint AS txid,
               CASE state WHEN 'scheduled' THEN 'job.scheduled' ELSE 'job.enqueued' END AS kind,
               queue, type,
               CASE state WHEN 'scheduled'
                    THEN jsonb_build_object('scheduled_at', scheduled_at)
                    ELSE jsonb_build_object('priority', priority) END AS data
          FROM given
         WHERE state <> 'pending'
    ), recorded AS (
        INSERT INTO ojs_jobs_event
               (txid, type, subject, queue, job_type, worker_id, attempt, time, data)
        SELECT txid, kind, id::text, queue, type, '', 0, statement_timestamp(), data
          FROM telling{of_each}
    )"""
# During maintenance nothing may be taken. A queue that is bounded, draining or particular decides
# about its jobs first; the batch comes back untouched then. Answered once for the statement, from
# an empty table and an index that is empty where no queue is like that.
GUARD = """WHERE NOT EXISTS (SELECT 1
                             FROM ojs_jobs_maintenance
                            WHERE refuses_jobs
                              AND coalesce(until > statement_timestamp(), true))
           AND NOT EXISTS (SELECT 1
                             FROM ojs_jobs_queue
                            WHERE is_guarded
                              AND name IN {queues})"""
TAKEN = "ON CONFLICT (id) DO NOTHING"
"""Only for ids that somebody chose: asking takes a fifth of the time of the insert."""
# Jobs one by one: all that is known of each in a document.
EACH = {
    "source": "jsonb_to_recordset(%(said)s::jsonb)",
    "own": "id, args, ",
    "own_types": "id uuid, args jsonb, ",
    "each": "",
    "once": "",
    "own_id": "id, ",
    "of_each": " WHERE EXISTS (SELECT 1 FROM inserted)",
}
# What all jobs of a batch share is said, read and computed once: a third less for a thousand.
UNIFORM = {
    "source": "jsonb_to_record(%(said)s::jsonb)",
    "own": "",
    "own_types": "",
    "each": """
    CROSS JOIN ROWS FROM (unnest(%(ids)s::uuid[]), jsonb_array_elements(%(args)s::jsonb))
            AS own (id, args)""",
    "once": "MATERIALIZED ",
    "own_id": "",
    "of_each": " CROSS JOIN inserted",
}

# One job that is available at once and says nothing else than every job does: most of them. Without
# documents to read and columns to leave empty it takes an eighth less of PostgreSQL's time.
PLAIN_MEMBERS = frozenset(
    {"type", "queue", "meta", "priority", "max_attempts", "tags", "attributes"}
)
PLAIN = f"""
    WITH inserted AS (
        INSERT INTO ojs_jobs_job
               (id, type, queue, args, meta, priority, state, attempt, attempt_counted,
                max_attempts, reserved_by, finished_by, unfenced, created_at, enqueued_at,
                tags, attributes, dead_letter, followed, rate_key, project)
        SELECT %(id)s::uuid, %(type)s::text, %(queue)s::text, %(args)s::jsonb, %(meta)s::jsonb,
               %(priority)s::smallint, 'available', 0, false, %(max_attempts)s::integer, '', '',
               false, statement_timestamp(), statement_timestamp(), %(tags)s::jsonb,
               %(attributes)s::jsonb, false, false, '', ''
         {GUARD.format(queues="(%(queue)s::text)")}
     RETURNING id, queue, type, priority
    ), recorded AS (
        INSERT INTO ojs_jobs_event (type, subject, queue, job_type, worker_id, attempt, time, data)
        SELECT 'job.enqueued', id::text, queue, type, '', 0, statement_timestamp(),
               jsonb_build_object('priority', priority)
          FROM inserted
    ), rung AS (
        SELECT count(pg_notify('ojs_jobs', queue))
          FROM inserted
         WHERE EXISTS (SELECT 1 FROM ojs_jobs_listener)
    )
    SELECT statement_timestamp(), (SELECT count(*) FROM inserted) FROM rung
"""


@cache
def statement(*, uniform: bool, recorded: bool, guarded: bool, chosen: bool) -> str:
    """The statement for such a batch.

    Args:
        told: events are recorded.
        guarded: maintenance and guarded queues have to be asked.
        chosen: there are ids among them that somebody chose, and may be taken.
    """
    form = UNIFORM if uniform else EACH
    return INSERT.format(
        **form,
        members=MEMBERS,
        recorded=EVENTS.format(**form) if recorded else "",
        guard=GUARD.format(queues="(SELECT queue FROM given)") if guarded else "",
        taken=TAKEN if chosen else "",
    )


def insert(new: Sequence[NewJob], *, admitted: bool) -> int:
    """Store the jobs and return how many could be: an id may be taken, a queue want to be asked.

    Args:
        admitted: the guarded queues among them have agreed, and maintenance was asked.
    """
    store = _insert_postgresql if is_postgresql() else _insert_portable
    return store(new, admitted)


def stamp(new: Sequence[NewJob], now: datetime) -> None:
    """Write on the jobs what only the server knows."""
    for job in shared_targets(new):
        job.created_at = job.enqueued_at = now
        if job.pending:
            job.state = State.PENDING
        elif job.scheduled_at is not None and job.scheduled_at > now:
            job.state = State.SCHEDULED
        else:
            job.state = State.AVAILABLE


def _insert_postgresql(new: Sequence[NewJob], admitted: bool) -> int:
    records = [_record(job) for job in representatives(new)]
    # Told by what is sent: to Python 1 and True are equal. A job by itself is told in one piece.
    uniform = len(new) > 1 and len({orjson.dumps(record) for record in records}) == 1
    recorded = ojs_settings.RECORD_EVENTS
    chosen = any(job.client_id for job in representatives(new))
    if (
        len(new) == 1
        and recorded
        and not (admitted or chosen)
        and records[0].keys() == PLAIN_MEMBERS
    ):
        ((now, stored),) = run(PLAIN, _plain(new[0], records[0]))
    else:
        ((now, stored),) = run(
            statement(uniform=uniform, recorded=recorded, guarded=not admitted, chosen=chosen),
            _alike(new, records[0]) if uniform else _each(new, records),
        )
    stamp(new, now)
    return stored


def _plain(job: NewJob, record: dict[str, Any]) -> dict[str, Any]:
    documents = {"args": job.args, "meta": job.meta, "tags": job.tags, "attributes": job.attributes}
    written = {name: orjson.dumps(value).decode() for name, value in documents.items()}
    return record | written | {"id": job.id}


def _alike(new: Sequence[NewJob], record: dict[str, Any]) -> dict[str, str]:
    if isinstance(new, UniformBatch):
        ids, args = new.ids, new.args
    else:
        ids, args = b"".join(job.id.bytes for job in new), [job.args for job in new]
    return {
        "said": orjson.dumps(record).decode(),
        "ids": "{" + ids.hex(",", 16) + "}",
        "args": orjson.dumps(args).decode(),
    }


def _each(new: Sequence[NewJob], records: Sequence[dict[str, Any]]) -> dict[str, str]:
    said = [
        record | {"id": job.id, "args": job.args} for job, record in zip(new, records, strict=True)
    ]
    return {"said": orjson.dumps(said).decode()}


def _record(job: NewJob) -> dict[str, Any]:
    """What the statement is told of a job, but for what is its own: id and arguments.

    What is not said is null there anyway, and PostgreSQL reads each member of the document.
    """
    said = {
        "type": job.type,
        "queue": job.queue,
        "meta": job.meta,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "tags": job.tags,
        "attributes": job.attributes,
    }
    if job.pending:
        said["pending"] = True
    if job.rate_limit:
        said["rate_key"] = job.rate_key
    needs = job.needs
    if needs is not None:
        said["needs"] = needs
    if job.unique is not None:
        said["unique_key"] = job.unique.key
    if job.project:
        said["project"] = job.project
    if job.followed or job.parent_results is not None:
        said |= {name: getattr(job, name) for name in FOLLOWED}
    for name in GIVEN:
        value = getattr(job, name)
        if value is not None:
            said[name] = value
    for name in PERIODS:
        value = getattr(job, name)
        if value is not None:
            said[name] = value.total_seconds()
    return said


def _insert_portable(new: Sequence[NewJob], admitted: bool) -> int:
    if not admitted:
        maintenance.refuse_jobs()
        if bounds.guarded({job.queue for job in new}):
            return 0
    now = clock.now()
    stamp(new, now)
    rows = [_row(job) for job in new]
    with atomic():
        wakeup.notify({job.queue for job in new if job.state == State.AVAILABLE})
        ids = [job.id for job in new if job.client_id]
        if ids and Job.objects.filter(pk__in=ids).exists():
            return 0
        Job.objects.bulk_create(rows)
        record(
            job_event(EVENT_OF[job.state], job, time=now, data=_event_data(job))
            for job in new
            if job.state in EVENT_OF
        )
    return len(rows)


def _row(job: NewJob) -> Job:
    """The row of a job that is stamped."""
    return Job(
        **{name: getattr(job, name) for name in COLUMNS},
        deadline=job.created_at + job.total_timeout if job.total_timeout else None,
        unique_key=job.unique.key if job.unique else None,
    )


def _event_data(job: NewJob) -> dict[str, Any]:
    if job.state == State.SCHEDULED and job.scheduled_at is not None:
        return {"scheduled_at": job.scheduled_at.isoformat()}
    return {"priority": job.priority}
