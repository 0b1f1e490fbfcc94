"""Figures for the admin, read only: bounded queries over sets, however large the table."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from django.db.models import QuerySet, Sum
from django.utils import formats

from ..models import Job, JobError, QueueSample
from ..models.job import DUE_STATES
from ..models.querysets import JobQuerySet
from ..spec.lifecycle import State
from ..store.database import connection
from ..store.expressions import json_pairs

MOST_COUNTED = 500
"""Available jobs of one queue that are counted while the page is being loaded."""
MOST_DUE_COUNTED = 5_000
"""The same for scheduled and retryable jobs, of all queues together."""
MOST_ACTIVE_COUNTED = 20_000
"""The same for active jobs."""


def grouped(number: int) -> str:
    """A number with the thousands separator of the reader's language."""
    return formats.number_format(number, use_l10n=True, force_grouping=True)


@dataclass(slots=True)
class Depth:
    """How many unfinished jobs a queue has, by state."""

    jobs: dict[str, int] = field(default_factory=dict)
    waiting_since: datetime | None = None
    """When the job that waits longest became available."""
    capped: set[str] = field(default_factory=set)
    """States with more jobs than were counted."""
    sampled: set[str] = field(default_factory=set)
    """Those of them whose number comes from the last sample, up to a minute old."""

    def of(self, state: State) -> int:
        return self.jobs.get(state, 0)

    def shown(self, state: State) -> str:
        """The number; after ≈ if it is the last sample, after ≥ if there is none."""
        mark = "≈ " if state in self.sampled else "≥ " if state in self.capped else ""
        return mark + grouped(self.of(state))

    @property
    def total(self) -> str:
        """The number of all, after ≥ if some were not counted."""
        return ("≥ " if self.capped else "") + grouped(sum(self.jobs.values()))


# One query for each partial index: a single query would make the planner read the whole table.
INDEXED: tuple[dict[str, Any], ...] = (
    {"state": State.AVAILABLE},
    {"state__in": (State.SCHEDULED, State.RETRYABLE)},
    {"state": State.ACTIVE, "reserved_for__isnull": False},
)

# Each count stops after MOST_COUNTED rows of the partial index: a queue with a million jobs costs
# no more than one with a few thousand. The state is a literal, for only that matches the index.
# The order is that of the index: without it, PostgreSQL expects to find enough rows wherever it
# starts reading the table, and reads most of it. As one text, because SQLite has no lateral joins
# and two subqueries would read the rows twice.
SOME = """
    (SELECT count(*) || ' ' || min(enqueued_at)
       FROM (SELECT enqueued_at
               FROM ojs_jobs_job AS job
              WHERE job.queue = queue.name AND job.state = 'available'
           ORDER BY rate_key, priority DESC, enqueued_at, id
              LIMIT {most}) AS first)"""
# Jobs that are due: their indexes do not separate scheduled from retryable, nor does the one for
# due jobs separate queues, so one bounded query over all is cheaper than one for each queue.
DEPTHS = """
    SELECT queue.name, 'available', NULL, {some}
      FROM ojs_jobs_queue AS queue
     WHERE queue.name IN ({names})
 UNION ALL
    SELECT queue, state, count(*), NULL
      FROM (SELECT queue, state
              FROM ojs_jobs_job
             WHERE state IN ('scheduled', 'retryable')
          ORDER BY scheduled_at
             LIMIT {most}) AS first
  GROUP BY queue, state
 UNION ALL
    SELECT queue, 'active', count(*), NULL
      FROM (SELECT queue
              FROM ojs_jobs_job
             WHERE reserved_for IS NOT NULL AND state = 'active'
             LIMIT {most_active}) AS first
  GROUP BY queue
 UNION ALL
    SELECT queue, 'sampled available', available, CAST(waiting_since AS text)
      FROM ojs_jobs_queuesample
 UNION ALL
    SELECT queue, 'sampled scheduled', scheduled, NULL
      FROM ojs_jobs_queuesample
 UNION ALL
    SELECT queue, 'sampled retryable', retryable, NULL
      FROM ojs_jobs_queuesample
 UNION ALL
    SELECT queue, 'sampled active', active, NULL
      FROM ojs_jobs_queuesample
"""
SAMPLE = "sampled "


def _depths_statement(names: int) -> str:
    return DEPTHS.format(
        some=SOME.format(most=MOST_COUNTED + 1),
        names=", ".join(["%s"] * names),
        most=MOST_DUE_COUNTED + 1,
        most_active=MOST_ACTIVE_COUNTED + 1,
    )


def depths(queues: Collection[str]) -> dict[str, Depth]:
    """Return how deep each of `queues` is: available, scheduled, retryable and active jobs.

    Beyond the counted number, the last sample is used, up to a minute old.
    """
    found = {queue: Depth() for queue in queues}
    if not found:
        return found
    rows = _rows(_depths_statement(len(found)), list(found))
    samples = []
    for name, state, jobs, since in rows:
        if name not in found:
            continue
        if state == State.AVAILABLE:
            jobs, since = since.split(" ", 1) if since else (0, None)
        if state.startswith(SAMPLE):
            samples.append((found[name], state.removeprefix(SAMPLE), jobs, moment_of(since)))
        else:
            found[name].jobs[State(state)] = int(jobs)
            found[name].waiting_since = found[name].waiting_since or moment_of(since)
    due = sum(jobs for _name, state, jobs, _since in rows if state in DUE_STATES)
    active = sum(jobs for _name, state, jobs, _since in rows if state == State.ACTIVE)
    for depth in found.values():
        if depth.of(State.AVAILABLE) > MOST_COUNTED:
            depth.jobs[State.AVAILABLE] = MOST_COUNTED
            depth.capped.add(State.AVAILABLE)
        if due > MOST_DUE_COUNTED:
            depth.capped |= set(DUE_STATES)
        if active > MOST_ACTIVE_COUNTED:
            depth.capped.add(State.ACTIVE)
    for depth, state, jobs, since in samples:
        if state in depth.capped:
            _add_sample(depth, State(state), jobs, since)
    return found


# The jobs that a fetch would look at first: those that no worker takes come to the front.
PROJECTS = """
    SELECT queue.name, (
           SELECT {pairs}
             FROM (SELECT project, min(enqueued_at) AS since
                     FROM (SELECT project, enqueued_at
                             FROM ojs_jobs_job AS job
                            WHERE job.queue = queue.name AND job.state = 'available'
                         ORDER BY rate_key, priority DESC, enqueued_at, id
                            LIMIT {most}) AS first
                 GROUP BY project) AS waiting)
      FROM ojs_jobs_queue AS queue
     WHERE queue.name IN ({names})
"""


def waiting_by_project(queues: Collection[str]) -> dict[str, dict[str, datetime]]:
    """Return since when the oldest available job of each project has been waiting in each of
    `queues`, among the first `MOST_COUNTED`; the empty text stands for no project."""
    if not queues:
        return {}
    names = ", ".join(["%s"] * len(queues))
    pairs = json_pairs("project", "since")
    statement = PROJECTS.format(pairs=pairs, most=MOST_COUNTED, names=names)
    found: dict[str, dict[str, datetime]] = {}
    for name, listed in _rows(statement, list(queues)):
        waiting = json.loads(listed) if isinstance(listed, str) else listed
        since = {project: moment_of(text) for project, text in waiting or ()}
        found[name] = {project: moment for project, moment in since.items() if moment}
    return found


def next_of(queue: str) -> Job | None:
    """Return the job that a fetch from this queue would look at first.

    It is looked for among the first `MOST_COUNTED` in the order of the index, which has jobs
    without a rate limit first.
    """
    waiting = Job.objects.filter(queue=queue, state=State.AVAILABLE)
    first = waiting.order_by("rate_key", "-priority", "enqueued_at", "pk").values("pk")
    found = Job.objects.unexpired().filter(pk__in=first[:MOST_COUNTED])
    return found.defer("args", "meta").order_by("-priority", "enqueued_at", "pk").first()


def _rows(statement: str, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connection().cursor() as cursor:
        cursor.execute(statement, parameters)
        return list(cursor.fetchall())


def _add_sample(depth: Depth, state: State, jobs: int, since: datetime | None) -> None:
    depth.jobs[state] = max(depth.of(state), jobs)
    depth.sampled.add(state)
    if state == State.AVAILABLE:
        known = [moment for moment in (depth.waiting_since, since) if moment]
        depth.waiting_since = min(known, default=None)


def moment_of(value: Any) -> datetime | None:
    """A timestamp as the database's driver gives it: SQLite's is a text, or has no time zone."""
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if value is not None and value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    found: datetime | None = value
    return found


MOST_SHOWN = 1_000
"""Jobs of a state that are counted above a list."""
STATE_CONDITIONS = {
    # These conditions follow from the state. They lead PostgreSQL to the right partial index, and
    # so does the order.
    State.ACTIVE: "reserved_for IS NOT NULL AND state = 'active' ORDER BY reserved_by",
    **{state: f"state = '{state}' ORDER BY queue" for state in (State.AVAILABLE, State.PENDING)},
    **{
        state: f"finished_at IS NOT NULL AND state = '{state}' ORDER BY finished_at"
        for state in (State.COMPLETED, State.CANCELLED, State.DISCARDED)
    },
    **{
        state: f"state IN ('scheduled', 'retryable') AND state = '{state}' ORDER BY scheduled_at"
        for state in (State.SCHEDULED, State.RETRYABLE)
    },
}


def state_counts() -> list[tuple[State, str]]:
    """How many jobs are in each state: counted up to `MOST_SHOWN`, then from the last sample."""
    counts = ", ".join(
        f"(SELECT count(*) FROM (SELECT 1 FROM ojs_jobs_job WHERE {condition}"
        f" LIMIT {MOST_SHOWN + 1}) AS first)"
        for condition in (STATE_CONDITIONS[state] for state in State)
    )
    (row,) = _rows(f"SELECT {counts}", ())
    found = dict(zip(State, row, strict=True))
    samples: dict[str, int | None] = {}
    if any(found[state] > MOST_SHOWN for state in SAMPLED):
        samples = QueueSample.objects.aggregate(
            **{str(state): Sum(str(state)) for state in SAMPLED}
        )
    return [(state, _shown(count, samples.get(state) or 0)) for state, count in found.items()]


SAMPLED = (State.AVAILABLE, State.SCHEDULED, State.RETRYABLE, State.ACTIVE)


def _shown(count: int, sample: int) -> str:
    if count <= MOST_SHOWN:
        return grouped(count)
    return f"≈ {grouped(sample)}" if sample > MOST_SHOWN else f"{grouped(MOST_SHOWN)}+"


# The conditions and orders of the partial indexes; the states are literals, as above.
WAITING_OF_QUEUE = {
    State.AVAILABLE: "state = 'available' ORDER BY rate_key, priority DESC, enqueued_at, id",
    **{
        state: f"state IN ('scheduled', 'retryable') AND state = '{state}' ORDER BY scheduled_at"
        for state in DUE_STATES
    },
    State.PENDING: "state = 'pending'",
}


def waiting(queues: Collection[str], *, most: int) -> dict[str, Depth]:
    """Return how many jobs wait in each of `queues`: up to `most` of each state are counted.

    Unlike `depths()`, it leaves out no state, and uses no samples.
    """
    found = {queue: Depth() for queue in queues}
    if not found:
        return found
    counts = ", ".join(
        "(SELECT count(*) FROM (SELECT 1 FROM ojs_jobs_job AS job"
        f" WHERE job.queue = queue.name AND {condition} LIMIT {most + 1}) AS first)"
        for condition in WAITING_OF_QUEUE.values()
    )
    names = ", ".join(["%s"] * len(found))
    statement = f"SELECT name, {counts} FROM ojs_jobs_queue AS queue WHERE name IN ({names})"
    for name, *row in _rows(statement, list(found)):
        for state, count in zip(WAITING_OF_QUEUE, row, strict=True):
            found[name].jobs[state] = min(count, most)
            if count > most:
                found[name].capped.add(state)
    return found


def pending(queue: str) -> int:
    return Job.objects.filter(queue=queue, state=State.PENDING).count()


def held(worker_ids: Iterable[str]) -> JobQuerySet:
    """Jobs held by these workers, oldest first."""
    # `reserved_for` lets PostgreSQL use the partial index on `reserved_by`.
    return (
        Job.objects.active()
        .filter(reserved_by__in=list(worker_ids), reserved_for__isnull=False)
        .order_by("reserved_by", "started_at", "pk")
    )


RECENT = 10_000


def lost_with(worker_id: str, death: str) -> QuerySet[JobError]:
    """Attempts that ended because this worker died or left, newest first.

    Searched among the latest `RECENT` failed attempts: no index has them by worker.

    Args:
        death: the type of such an error.
    """
    recent = JobError.objects.order_by("-occurred_at").values("pk")[:RECENT]
    lost = JobError.objects.filter(pk__in=recent, worker_id=worker_id, type=death)
    return (
        lost.select_related("job")
        .only("attempt", "occurred_at", "job__type", "job__queue", "job__state")
        .order_by("-occurred_at")
    )


def unfenced_by(worker_id: str) -> JobQuerySet:
    """Jobs that this worker held when an ACK came that named no worker, newest first.

    Searched among the latest `RECENT` completions: no index has them by worker.
    """
    recent = (
        Job.objects.filter(state=State.COMPLETED, finished_at__isnull=False)
        .order_by("-finished_at")
        .values("pk")[:RECENT]
    )
    return Job.objects.filter(pk__in=recent, unfenced=True, finished_by=worker_id).order_by(
        "-finished_at"
    )
