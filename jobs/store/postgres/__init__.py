"""Store on PostgreSQL: one statement for each verb, complete in an SQL file in this folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from ...conf import ojs_settings
from ...models import Job
from ...models.querysets import TO_FAIL
from ...spec.batches import UniformBatch, representatives
from ...spec.reports import Completion
from ...spec.validation import NewJob
from ..contract import (
    ANY_REGISTRY,
    BATCH_SIZE,
    OPEN,
    VISIBILITY_TIMEOUT,
    Admission,
    Cause,
    Claimed,
    ClaimRequest,
    Completed,
    Move,
    Reclaimed,
    stamp,
)
from ..database import alias, run, run_together
from ..portable import PortableStore
from ..sql import Statement, load
from . import claiming

Rows = list[tuple[Any, ...]]
Query = tuple[Statement, dict[str, Any]]

INSERT_ONE = load(__name__, "insert_one")
INSERT_EACH_CHOSEN = load(__name__, "insert_each")
INSERT_UNIFORM_CHOSEN = load(__name__, "insert_uniform")
UNLESS_TAKEN = "        ON CONFLICT (id) DO NOTHING\n"
INSERT_EACH = INSERT_EACH_CHOSEN.replacing(UNLESS_TAKEN, "")
INSERT_UNIFORM = INSERT_UNIFORM_CHOSEN.replacing(UNLESS_TAKEN, "")
"""For ids that the server generated."""
COMPLETE = load(__name__, "complete")
RECLAIM = load(__name__, "reclaim").sized(limit=BATCH_SIZE)
RECLAIM_HELD = RECLAIM.replacing(
    """AND reserved_until <= statement_timestamp()
       AND (timeout IS NULL
            OR started_at + timeout + coalesce(grace_period, '0') > reserved_until)""",
    """AND reserved_by = ANY(:'workers'::text[])
       AND (:'project'::text = '' OR project IN ('', :'project'::text))""",
)
PROMOTE = load(__name__, "promote").sized(limit=BATCH_SIZE)
SAVE_CHECKPOINT = load(__name__, "save_checkpoint")
LOCK_TO_FAIL = load(__name__, "lock_to_fail")
MOVE_FAILED = load(__name__, "move_failed")
ADMIT = Statement.written(
    f"SELECT statement_timestamp(), room, able::text, versions::text FROM ({OPEN.sql}) AS gate"
)

SIZES = (1, 10, 100, 1_000, 10_000, 100_000)
"""The planner gets an order of magnitude, so that there are few statements to prepare."""
USUAL = frozenset(
    {"type", "queue", "meta", "priority", "max_attempts", "tags", "attributes", "project"}
)
"""Members that `INSERT_ONE` takes, besides the id and the arguments."""
FOLLOWED = ("workflow_id", "workflow_index", "followed", "parent_results")
OPTIONAL = ("retry", "scheduled_at", "expires_at", "version_number", "needs")
PERIODS = ("timeout", "visibility_timeout", "total_timeout", "grace_period", "result_ttl")


class PostgresStore(PortableStore):
    def insert(
        self, new: Sequence[NewJob], *, asks_queues: bool, registry: str = ANY_REGISTRY
    ) -> int:
        documents = [document(job) for job in representatives(new)]
        is_chosen = any(job.client_id for job in representatives(new))
        parameters: dict[str, Any] = {
            "asks_queues": asks_queues,
            "registry": registry,
            "records_events": ojs_settings.RECORD_EVENTS,
        }
        if len(new) == 1 and not is_chosen and documents[0].keys() <= USUAL:
            statement = INSERT_ONE
            parameters |= _one(new[0], documents[0])
        # Compared in the form sent: in Python, 1 and True are equal.
        elif len(new) > 1 and len({orjson.dumps(document) for document in documents}) == 1:
            statement = INSERT_UNIFORM_CHOSEN if is_chosen else INSERT_UNIFORM
            parameters |= _uniform(new, documents[0])
        else:
            statement = INSERT_EACH_CHOSEN if is_chosen else INSERT_EACH
            jobs = [
                document | {"id": job.id, "args": job.args}
                for job, document in zip(new, documents, strict=True)
            ]
            parameters["jobs"] = orjson.dumps(jobs).decode()
        ((now, stored),) = run(statement, parameters)
        stamp(new, now)
        return int(stored)

    def claim(self, request: ClaimRequest) -> Claimed:
        return claiming.claim(request)

    def claim_each(self, requests: Sequence[ClaimRequest]) -> list[Claimed]:
        return claiming.claim_each(requests)

    def admit(self, request: ClaimRequest) -> tuple[datetime, ClaimRequest]:
        able = orjson.dumps(list(request.able)).decode()
        rows = run(
            claiming.gated(ADMIT, request.gate), {"worker_id": request.worker_id, "able": able}
        )
        ((now, room, able, versions),) = rows
        admission = Admission(
            room, orjson.loads(able), orjson.loads(versions or "null") or request.versions
        )
        return now, request.admitted(admission)

    def complete(
        self, completions: Sequence[Completion], *, followed: bool = False
    ) -> list[Completed]:
        return _completed(run(*completion_query(completions, followed)))

    def complete_and_claim(
        self, completions: Sequence[Completion], request: ClaimRequest
    ) -> tuple[list[Completed], Claimed]:
        completed, rows = run_together(
            completion_query(completions, False), claiming.query(request)
        )
        return _completed(completed), claiming.finish(request, rows)

    def lock_to_fail(self, ids: Collection[UUID]) -> list[Any]:
        rows = run(LOCK_TO_FAIL, {"ids": "{" + ",".join(map(str, ids)) + "}"})
        # Django expects the columns in the order of the model.
        names = [field.attname for field in Job._meta.concrete_fields if field.attname in TO_FAIL]
        return [_to_fail(row, names) for row in rows]

    def move_failed(self, moves: Sequence[Move]) -> None:
        run(
            MOVE_FAILED.sized(limit=_size(len(moves))),
            {"moves": orjson.dumps([_move(move) for move in moves]).decode()},
        )

    def reclaim(
        self,
        cause: Cause,
        *,
        workers: Collection[str] | None,
        details: Mapping[str, dict[str, Any] | None],
        project: str,
    ) -> Reclaimed:
        parameters = {
            "workers": list(workers or ()),
            "project": project,
            "code": cause.type,
            "message": cause.message,
            "stalled": cause == VISIBILITY_TIMEOUT,
            "details": orjson.dumps(details).decode(),
            "records_events": ojs_settings.RECORD_EVENTS,
        }
        rows = run(RECLAIM if workers is None else RECLAIM_HELD, parameters)
        ((count, *groups),) = rows
        return Reclaimed(count, *(ids or [] for ids in groups))

    def promote(self, head_start: timedelta) -> int:
        parameters = {"head_start": head_start, "records_events": ojs_settings.RECORD_EVENTS}
        ((count,),) = run(PROMOTE, parameters)
        return int(count)

    def save_checkpoint(
        self, job_id: UUID, state: str, now: datetime, *, worker_id: str | None, attempt: int | None
    ) -> int | None:
        parameters = {
            "job_id": job_id,
            "state": state,
            "now": now,
            "worker_id": worker_id,
            "attempt": attempt,
        }
        rows = run(SAVE_CHECKPOINT, parameters)
        return int(rows[0][0]) if rows else None


def document(job: NewJob) -> dict[str, Any]:
    """Return the members of a job sent to the statement, except its id and arguments.

    Omitted members are null there anyway, and PostgreSQL reads each member of a document.
    """
    document: dict[str, Any] = {
        "type": job.type,
        "queue": job.queue,
        "meta": job.meta,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
        "tags": job.tags,
        "attributes": job.attributes,
    }
    if job.pending:
        document["pending"] = True
    if job.rate_limit:
        document["rate_key"] = job.rate_key
    if job.unique is not None:
        document["unique_key"] = job.unique.key
    if job.project:
        document["project"] = job.project
    if job.followed or job.parent_results is not None:
        document |= {name: getattr(job, name) for name in FOLLOWED}
    for name in OPTIONAL:
        value = getattr(job, name)
        if value is not None:
            document[name] = value
    for name in PERIODS:
        period = getattr(job, name)
        if period is not None:
            document[name] = period.total_seconds()
    return document


def _one(job: NewJob, document: dict[str, Any]) -> dict[str, Any]:
    shared = {
        name: orjson.dumps(document[name]).decode() for name in ("meta", "tags", "attributes")
    }
    own = {"id": job.id, "args": orjson.dumps(job.args).decode(), "project": job.project}
    return document | shared | own


def _uniform(new: Sequence[NewJob], document: dict[str, Any]) -> dict[str, str]:
    if isinstance(new, UniformBatch):
        ids, args = new.ids, new.args
    else:
        ids, args = b"".join(job.id.bytes for job in new), [job.args for job in new]
    return {
        "job": orjson.dumps(document).decode(),
        "ids": "{" + ids.hex(",", 16) + "}",
        "args": orjson.dumps(args).decode(),
    }


def _to_fail(row: tuple[Any, ...], names: Sequence[str]) -> Any:
    *values, now = row
    known = dict(zip(TO_FAIL, values, strict=True))
    for name in ("retry", "attributes"):
        known[name] = json.loads(known[name] or "null")
    job: Any = Job.from_db(alias(), names, [known[name] for name in names])
    job.now = now
    return job


def _move(move: Move) -> dict[str, Any]:
    delay = move.retry_delay
    return move._asdict() | {"retry_delay": None if delay is None else delay.total_seconds()}


def _size(count: int) -> int:
    return next(size for size in SIZES if size >= count)


def completion_query(completions: Sequence[Completion], followed: bool) -> Query:
    documents = [
        {
            "id": item.job_id,
            "worker_id": item.worker_id,
            "attempt": item.attempt,
            "result": item.result,
        }
        for item in completions
    ]
    return COMPLETE.sized(limit=_size(len(completions))), {
        "completions": orjson.dumps(documents).decode(),
        "followed": followed,
        "records_events": ojs_settings.RECORD_EVENTS,
    }


def _completed(rows: Rows) -> list[Completed]:
    return [Completed(place - 1, *row) for place, *row in rows]
