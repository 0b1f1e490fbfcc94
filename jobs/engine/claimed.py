"""What a fetch asks for, and a job as its worker gets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from ..spec.lifecycle import State


@dataclass(frozen=True, slots=True)
class Gate:
    """What a worker must pass, asked by the claim itself: after it has waited for any lock.

    Who the worker is and what it holds is not this app's to know.
    """

    sql: str
    """A SELECT of one row: `room`, how many more jobs it may have (null: any number), `able`, a
    JSON array of what it can do, and `versions`, null for most: a JSON object of two bounds by job
    type. It may use %(worker_id)s."""
    look: Callable[[str], Admission] | None = None
    """The same of the worker with this id, where a claim takes several statements."""


class Admission(NamedTuple):
    """What the gate says of a worker."""

    room: int | None
    """How many more jobs it may have; None where it decides for itself."""
    able: Sequence[str]
    versions: Mapping[str, Sequence[int | None]]


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
    """Job type → bounds of the versions it takes (`versions`); any of a type not named."""
    project: str
    limited: bool = False
    gate: Gate = OPEN

    def admitted(self, found: Admission) -> Asked:
        """What is left of it for a worker that passes the gate so."""
        count = self.count if found.room is None else max(0, min(self.count, found.room))
        able, versions = found.able, found.versions
        return replace(self, count=count, able=able, versions=versions, gate=OPEN)

    def looked(self) -> Asked:
        """The same where a claim takes several statements; call it once these hold their locks."""
        return self if self.gate.look is None else self.admitted(self.gate.look(self.worker_id))


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
    tags: orjson.Fragment
    priority: int
    attempt: int
    max_attempts: int
    created_at: datetime | str
    enqueued_at: datetime | str
    started_at: datetime | str
    # What most jobs have nothing of.
    retry: orjson.Fragment | None = None
    retry_delay: timedelta | None = None
    timeout: timedelta | None = None
    visibility_timeout: timedelta | None = None
    scheduled_at: datetime | None = None
    expires_at: datetime | None = None
    attributes: dict[str, Any] | None = None
    errors: Sequence[Mapping[str, Any]] = ()
    workflow_id: UUID | None = None
    parent_results: orjson.Fragment | None = None
    checkpoint: Any = None
    """What the attempt before left, as the envelope says it (OJS durable execution §6.1)."""
    is_plain: bool = False
    """It has nothing of that."""
    state: str = State.ACTIVE.value
    finished_at: None = None
    result: None = None


def _fragment(text: str | None) -> orjson.Fragment | None:
    return None if text is None else orjson.Fragment(text)


NOTHING_ELSE = [None] * 11
LIVE = (State.ACTIVE.value, None, None)
"""State, end and result of a job that was claimed just now."""
PLAIN = (*NOTHING_ELSE[:7], (), *NOTHING_ELSE[8:], True, *LIVE)


def from_row(row: Sequence[Any]) -> ClaimedJob:
    """Read a row of the claim's columns: those of `ClaimedJob` in its order, JSON as text.

    `enqueued_at` is null where it is `created_at`.
    """
    identifier, kind, queue, args, meta, tags, priority, attempt, most, *others = row
    created_at, enqueued_at, started_at, *seldom = others
    common = (
        identifier,
        kind,
        queue,
        orjson.Fragment(args),
        orjson.Fragment(meta),
        orjson.Fragment(tags),
        priority,
        attempt,
        most,
        created_at,
        enqueued_at or created_at,
        started_at,
    )
    if seldom == NOTHING_ELSE:
        return ClaimedJob._make(common + PLAIN)
    retry, *periods_and_times, attributes, errors, workflow_id, results, checkpoint = seldom
    rest = (
        _fragment(retry),
        *periods_and_times,
        None if attributes is None else orjson.loads(attributes),
        () if errors is None else orjson.loads(errors),
        workflow_id,
        _fragment(results),
        _fragment(checkpoint),
    )
    return ClaimedJob._make((*common, *rest, False, *LIVE))
