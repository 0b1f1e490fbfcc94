"""A claimed job, in the form its worker receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import orjson

from ..spec.lifecycle import State


class ClaimedJob(NamedTuple):
    """A job as its worker receives it: values that a reply only repeats stay text, never parsed.

    JSON columns are fragments; the three times are in their wire form if the database can produce
    it.
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
    # Unset for most jobs.
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
    """The last attempt's checkpoint, as in the envelope (OJS durable execution §6.1)."""
    state: str = State.ACTIVE.value
    finished_at: None = None
    result: None = None


def _fragment(text: str | None) -> orjson.Fragment | None:
    return None if text is None else orjson.Fragment(text)


NOTHING_ELSE = [None] * 11


def from_row(row: Sequence[Any]) -> ClaimedJob:
    """Read a row of the claim's columns: the fields of `ClaimedJob` in order, JSON as text.

    `enqueued_at` is null if it equals `created_at`.
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
        return ClaimedJob(*common)
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
    return ClaimedJob(*common, *rest)
