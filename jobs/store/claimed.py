"""A job as its worker gets it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from ..spec.lifecycle import State


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
