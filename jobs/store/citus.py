"""Store for Citus: the statements made for PostgreSQL, cut so that it runs them on a cell's node.

Citus sends a statement to a node as a whole if it writes nothing but UPDATEs, and if these pass no
column to a function that depends on a clock or a time zone. So a statement here changes the jobs
and returns what is to be recorded of them; others of the same transaction write the events and
notify. The time is a parameter, because each node has a clock of its own.

It runs on any PostgreSQL, whose own store does all of this in one statement.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from ..record.events import record
from ..spec.reports import Completion
from . import clock
from .contract import Claimed, ClaimRequest, Completed
from .database import atomic, run
from .portable import PortableStore, completed_event, started_events
from .postgres import claiming, completion_query
from .sql import Statement

CLOCK, NOW = "statement_timestamp()", ":'now'::timestamptz"
RECORDED = "recorded"
"""The part of each statement that writes the events."""
ENTRIES = re.compile(r"pg_stat_get_xact_tuples_returned\('\w+'::regclass\)")
"""Only the node knows how many entries of an index it has read, under another name."""
RESERVED = """statement_timestamp()
                            + coalesce(job.visibility_timeout, :'visibility_timeout'::interval)"""


@lru_cache(maxsize=1024)
def _claiming(claim: Statement) -> Statement:
    """Return the variant that also tells which jobs were due, and their attempts until then."""
    text = Statement(ENTRIES.sub("0", claim.without(RECORDED)))
    for part, other in (
        # Of times without a zone, the sum is the same everywhere.
        (RESERVED, f"timezone('UTC', timezone('UTC', {RESERVED.replace(CLOCK, f'{NOW})')})"),
        (CLOCK, NOW),
        ("THEN 'true' END\n", "THEN 'true' END, was_due, attempts_made\n"),
    ):
        text = text.replacing(part, other)
    return text


class _Held(NamedTuple):
    """A job that the sender of a completion holds; only the place is known of one that was left."""

    place: int
    attempt: int | None
    max_attempts: int | None
    finished_at: datetime | None
    id: UUID
    type: str
    queue: str
    finished_by: str
    started_at: datetime


@lru_cache(maxsize=16)
def _completing(complete: Statement) -> Statement:
    text = complete.without(RECORDED)
    columns = ", ".join(_Held._fields)
    for part, other in (
        (CLOCK, NOW),
        ("SELECT place, attempt, max_attempts, finished_at FROM", f"SELECT {columns} FROM"),
        ("SELECT place, NULL, NULL, NULL FROM", f"SELECT place{', NULL' * 8} FROM"),
    ):
        text = text.replacing(part, other)
    return text


class CitusStore(PortableStore):
    def claim(self, request: ClaimRequest) -> Claimed:
        found: Claimed | ClaimRequest = request
        with atomic():
            while not isinstance(found, Claimed):
                request, now = found, clock.now()
                statement, parameters = claiming.query(request)
                rows = run(_claiming(statement), parameters | {"now": now})
                found = claiming.taken(request, [row[:-2] for row in rows])
            was_due = {job_id: attempts for job_id, *_, due, attempts in rows if due}
            record(started_events(found.jobs, was_due, request, now))
        return found

    def complete(
        self, completions: Sequence[Completion], *, followed: bool = False
    ) -> list[Completed]:
        statement, parameters = completion_query(completions, followed)
        with atomic():
            rows = run(_completing(statement), parameters | {"now": clock.now()})
            held = [_Held(*row) for row in rows]
            record(completed_event(job) for job in held if job.finished_at is not None)
        return [
            Completed(job.place - 1, job.attempt, job.max_attempts, job.finished_at) for job in held
        ]
