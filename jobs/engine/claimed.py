"""What a fetch asks for, and a job as its worker gets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from ..lifecycle import State


@dataclass(frozen=True, slots=True)
class Gate:
    """What a worker must pass, asked in the claim's own statement (on PostgreSQL).

    Who the worker is and what it holds is not this app's to know.
    """

    sql: str
    """A SELECT of one row: `room`, how many more jobs it may have (null: any number), `able`, a
    JSON array of what it can do, and `versions`, null for most: a JSON object of two bounds by job
    type. It may use %(worker_id)s."""


OPEN = Gate("""
        SELECT NULL::integer AS room, %(able)s::jsonb AS able, NULL::jsonb AS versions""")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a fetch asks for; `engine.claim` says more of each."""

    queues: list[str]
    worker_id: str
    count: int
    types: Sequence[str] | None
    """What the worker can run; None means anything."""
    period: timedelta
    """The reservation of jobs that name none of their own."""
    able: Sequence[str]
    """What the worker can do, for jobs that need it."""
    versions: Mapping[str, Sequence[int | None]]
    """Job type → bounds of the versions it takes (`jobs.versions`); any of a type not named."""
    project: str
    limited: bool = False
    gate: Gate = OPEN


class ClaimedJob(NamedTuple):
    """A job as its worker gets it: whatever a reply only repeats is text already, never parsed.

    JSON columns are fragments; the three times are in their wire form, where the database can
    write it.
    """

    id: UUID
    type: str
    queue: str
    args: orjson.Fragment
    meta: orjson.Fragment
    priority: int
    attempt: int
    max_attempts: int
    retry: orjson.Fragment | None
    retry_delay: timedelta | None
    timeout: timedelta | None
    visibility_timeout: timedelta | None
    scheduled_at: datetime | None
    expires_at: datetime | None
    created_at: datetime | str
    enqueued_at: datetime | str
    started_at: datetime | str
    tags: orjson.Fragment
    attributes: dict[str, Any] | None
    errors: list[Mapping[str, Any]]
    reserved_until: datetime
    workflow_id: UUID | None = None
    parent_results: orjson.Fragment | None = None
    checkpoint: Any = None
    """What the attempt before left, as the envelope says it (OJS durable execution §6.1)."""
    state: State = State.ACTIVE
    finished_at: None = None
    result: None = None


def _fragment(text: str | None) -> orjson.Fragment | None:
    return None if text is None else orjson.Fragment(text)


def from_row(row: Sequence[Any]) -> ClaimedJob:
    fields = list(row)
    for index in (3, 4, 8, 17, 22, 23):  # args, meta, retry, tags, parent_results, checkpoint
        fields[index] = _fragment(fields[index])
    fields[18] = None if fields[18] is None else orjson.loads(fields[18])
    fields[19] = [] if fields[19] is None else orjson.loads(fields[19])
    return ClaimedJob._make([*fields, State.ACTIVE, None, None])
