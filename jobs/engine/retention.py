"""Deletes what is past its retention, in bounded batches (OJS dead letter §5, §8)."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Exists, F, OuterRef, Q, QuerySet
from django.db.models.functions import Now

from ..conf import ojs_settings
from ..models import (
    BulkRequest,
    CronRun,
    Dependency,
    Event,
    Job,
    Listener,
    Queue,
    RefusedFinish,
    Workflow,
    WorkflowState,
)
from ..models.querysets import JobQuerySet
from ..record.events import queue_event, record
from ..spec import queue_config
from ..spec.lifecycle import State
from ..store import clock, references, removal
from ..store.database import alias, atomic
from ..store.expressions import Among
from . import event_partitions, stored_arguments

BATCH_SIZE = 1000
WORKFLOWS = 20
HAS_RESULT = Q(state=State.COMPLETED, result_pruned=False)
IDEMPOTENT = timedelta(hours=24)
"""How long responses to bulk requests are kept (OJS bulk operations §10.2)."""

_ended: ContextVar[dict[str, Any] | None] = ContextVar("ojs_ended", default=None)
"""Where the last batch of each kind ended, during a pass; `NOTHING_LEFT` if it was not full."""
NOTHING_LEFT = object()


class Place(NamedTuple):
    """Where passes begin after a long look at the oldest rows."""

    at: Any
    until: float
    """Monotonic time of the next look at the oldest rows."""


class Batch(NamedTuple):
    """Rows that a retention concerns, the oldest first."""

    found: int
    last: Any = None
    """The last one's value of the column that they are ordered by."""
    ids: Sequence[Any] = ()
    """Primary keys, of rows that are still there."""
    deleted: int = 0


NONE = Batch(0)
SHARE = 20
"""The time until that is so many times as long as the last such look took."""
_places: dict[str, Place] = {}
"""By kind."""

WINDOW = 1_000_000
"""Finished jobs that a pass looks through, at most, for those of some queues."""
ALL_AGAIN = 3600.0
"""Seconds after which jobs that are few among others are looked for from the oldest on."""
LATE = timedelta(minutes=5)
"""How long after a job's end it may become visible, as its transaction was still open."""


class Search(NamedTuple):
    """How far jobs that no index tells from other finished ones have been looked for."""

    began: float
    """Monotonic time at which it began with the oldest."""
    at: datetime | None = None
    """The end of the last job looked at, or somewhat earlier."""
    end: datetime | None = None
    """The end of the window that is being looked through; None between two windows."""
    is_last: bool = False
    """Whether no finished job past its retention is later than that window."""


_searches: dict[str, Search] = {}
"""By kind of jobs."""


@contextlib.contextmanager
def in_one_pass() -> Iterator[None]:
    """Let each batch begin where the one before it ended, instead of with the oldest row.

    After one that was not full, nothing of its kind is looked for until the next pass.

    Deleted rows stay in an index until vacuum removes them, which an open transaction prevents. If
    every batch began with the oldest row, it would read those of all batches before it again. So a
    pass may begin where the one before it ended, too: the longer a look at the oldest rows takes,
    the seldomer it is taken.
    """
    token = _ended.set({})
    try:
        yield
    finally:
        _ended.reset(token)


def _oldest(rows: QuerySet[Any], by: str) -> Batch:
    """Find a batch, in the order of the column `by`."""
    found = list(rows.order_by(by).values_list("pk", by)[:BATCH_SIZE])
    return Batch(len(found), found[-1][1], [pk for pk, _ in found]) if found else NONE


def _delete_oldest(jobs: QuerySet[Job], by: str) -> Batch:
    """Delete a batch of finished jobs, in the order of the column `by`."""
    if removal.is_possible(Job) and not ojs_settings.PAYLOAD_STORAGE:
        count, last, followed = removal.delete_oldest(jobs, BATCH_SIZE)
        return Batch(count + len(followed), last, deleted=count + _delete(jobs, followed))
    batch = _oldest(jobs, by)
    return batch._replace(deleted=_delete(jobs, batch.ids))


def _batch(
    rows: QuerySet[Any], by: str, kind: str, take: Callable[[QuerySet[Any], str], Batch] = _oldest
) -> Batch:
    """Take a batch of rows, in the order of the column `by`.

    Args:
        kind: where a batch of these rows ended is remembered under this name.
    """
    ended = _ended.get()
    if ended is None:
        return take(rows, by)
    began, place = time.monotonic(), _places.get(kind)
    since = ended.get(kind)
    if since is NOTHING_LEFT:
        return NONE
    if since is None and place is not None and began < place.until:
        since = place.at
    batch = take(rows if since is None else rows.filter(**{f"{by}__gte": since}), by)
    now = time.monotonic()
    until = now + SHARE * (now - began) if since is None or place is None else place.until
    if batch.found:
        _places[kind] = Place(batch.last, until)
    ended[kind] = batch.last if batch.found == BATCH_SIZE else NOTHING_LEFT
    return batch


def prune_jobs() -> int:
    """Delete one batch of finished jobs past their retention; return how many."""
    finished = unattached(Job.objects.filter(finished_at__isnull=False))
    for state, keep in (
        (State.COMPLETED, ojs_settings.COMPLETED_RETENTION),
        (State.CANCELLED, ojs_settings.CANCELLED_RETENTION),
        (State.DISCARDED, ojs_settings.DISCARDED_RETENTION),
    ):
        jobs = finished.filter(state=state)
        if state == State.DISCARDED:
            jobs = jobs.filter(dead_letter=False)
        own = _own_retention(state)
        named = [queue for queues in own.values() for queue in queues]
        others = jobs.exclude(queue__in=named) if own else jobs
        # Where a queue keeps its jobs for longer, they would be read each time.
        if any(period > keep for period in own):
            batch = _delete_older_among_others(others, state, keep, f"{state} in others")
        else:
            batch = _delete_older(others, keep, state)
        for period, queues in own.items():
            if not batch.found:
                among = jobs.filter(queue__in=queues)
                kind = f"{state} in {', '.join(queues)}"
                batch = _delete_older_among_others(among, state, period, kind)
        if batch.found:
            return batch.deleted
    return _prune_dead()


def deletable(jobs: JobQuerySet) -> JobQuerySet:
    """Return the finished jobs that nothing asks for any more."""
    return jobs.unprotected().exclude(is_asked_for())


def lock_deletable(jobs: QuerySet[Any]) -> list[UUID]:
    """Lock the jobs; return those of them that may be deleted, in the order of ids.

    A job that comes to need another locks it first, so none is added from now on.

    Args:
        jobs: with all conditions by which they were chosen, not just their ids: one that was
            retried in the meantime may have ended again, and its new outcome is to be kept.
    """
    ids = list(jobs.order_by("pk").select_for_update().values_list("pk", flat=True))
    # Of other rows, the statement that waits for a lock knows only how they were before.
    locked = Job.objects.filter(Among("pk", ids))
    free = set(deletable(locked).values_list("pk", flat=True))
    return [job_id for job_id in ids if job_id in free]


def unattached(jobs: JobQuerySet) -> JobQuerySet:
    """Return the deletable jobs of no workflow: those of one are deleted with it."""
    return deletable(jobs.filter(workflow__isnull=True))


def attached(jobs: JobQuerySet) -> JobQuerySet:
    """Return the others."""
    return jobs.filter(Q(workflow__isnull=False) | is_asked_for()) | jobs.protected()


def is_asked_for() -> Q:
    """Whether a workflow or a waiting job has yet to see how a job of the outer query ended.

    Without the job, a workflow would count its failure as a success (OJS workflows §6.4).
    """
    # Of the outermost workflow: those inside it that have ended are part of its outcome.
    roots = Workflow.objects.filter(pk=OuterRef("root_id"), finished_at__isnull=True)
    running = Workflow.objects.filter(Exists(roots), pk=OuterRef("workflow"))
    awaited = Dependency.objects.filter(predecessor=OuterRef("pk"), waiter__state=State.PENDING)
    return Q(followed=True) & (Exists(running) | Exists(awaited))


def _own_retention(state: State) -> dict[timedelta, list[str]]:
    """Return the queues with their own retention for `state` (OJS queue configuration §6.3), by how
    long they keep their jobs."""
    queues = Queue.objects.filter(config__has_key="retention").order_by("pk")
    kept: defaultdict[timedelta, list[str]] = defaultdict(list)
    for queue, config in queues.values_list("pk", "config"):
        if (keep := queue_config.retention(config, state)) is not None:
            kept[keep].append(queue)
    return kept


def _past(jobs: QuerySet[Job], keep: timedelta) -> QuerySet[Job]:
    """Return the jobs that have been finished for as long as they are kept."""
    old = jobs.filter(finished_at__lte=Now() - keep)
    # A result that must outlive the job's retention keeps the job (OJS results §7.1).
    return old.filter(
        Q(result_ttl__isnull=True) | Q(finished_at__lte=Now() - F("result_ttl")) | ~HAS_RESULT
    )


def _delete_older(jobs: QuerySet[Job], keep: timedelta, kind: str) -> Batch:
    return _batch(_past(jobs, keep), "finished_at", kind, _delete_oldest)


def _delete_older_among_others(
    jobs: QuerySet[Job], state: State, keep: timedelta, kind: str
) -> Batch:
    """`_delete_older` for jobs that no index tells from other finished ones: those of some queues.

    A pass looks through a window of all finished jobs, and the next one goes on there, so that a
    hundred million of them do not keep the reaper from everything else. What has been looked
    through is not read again, except once an hour: jobs that were waited for or locked, or whose
    result was kept, are found then.
    """
    ended = _ended.get()
    if ended is not None and ended.get(kind) is NOTHING_LEFT:
        return NONE
    now = time.monotonic()
    search = _searches.get(kind) or Search(now)
    end, is_last = search.end, search.is_last
    if end is None:
        end, is_last = _window(state, clock.now() - keep, search.at)
    window = _past(jobs, keep).filter(finished_at__lte=end)
    if search.at is not None:
        window = window.filter(finished_at__gte=search.at)
    batch = _delete_oldest(window, "finished_at")
    if batch.found == BATCH_SIZE:
        search = Search(search.began, batch.last, end, is_last)
    elif not is_last:
        search = Search(search.began, end)
    elif now - search.began < ALL_AGAIN:
        search = Search(search.began, end - LATE)
    else:
        search = Search(now)
    _searches[kind] = search
    if ended is not None and batch.found < BATCH_SIZE:
        ended[kind] = NOTHING_LEFT
    return batch


def _window(state: State, until: datetime, since: datetime | None) -> tuple[datetime, bool]:
    """Return the end of the next `WINDOW` finished jobs, by the index alone; and whether that is
    `until`, because there are not so many."""
    finished = Job.objects.filter(state=state, finished_at__lte=until)
    if since is not None:
        # Later than that: however many finished at one moment, the search goes on.
        finished = finished.filter(finished_at__gt=since)
    ends = finished.order_by("finished_at").values_list("finished_at", flat=True)
    end = next(iter(ends[WINDOW : WINDOW + 1]), None)
    return (until, True) if end is None else (end, False)


def forget_looks() -> None:
    """Look for everything from the oldest on, as a new process does."""
    _searches.clear()
    _places.clear()


def _prune_dead() -> int:
    """Delete one batch of the dead letter: first what is too old, then what is too much (OJS dead
    letter §8.1). Queues may have limits of their own (§5.3)."""
    dead = unattached(Job.objects.dead())
    limited = Q(config__has_key="dead_letter_ttl") | Q(config__has_key="dead_letter_max_size")
    ages: dict[str, timedelta] = {}
    sizes: dict[str, int] = {}
    for queue, config in Queue.objects.filter(limited).values_list("pk", "config"):
        if (age := queue_config.dead_letter_age(config)) is not None:
            ages[queue] = age
        if (size := config.get("dead_letter_max_size")) is not None:
            sizes[queue] = size
    for jobs, ids in _dead_to_delete(dead, ages, sizes):
        if ids:
            return _delete(jobs, ids, event="dead_letter.pruned")
    return 0


Chosen = tuple[QuerySet[Job], Sequence[UUID]]
"""Jobs, and the ids of a batch of them."""


def _dead_to_delete(
    dead: QuerySet[Job], ages: dict[str, timedelta], sizes: dict[str, int]
) -> Iterator[Chosen]:
    others = dead.exclude(queue__in=ages) if ages else dead
    yield _older(others, ojs_settings.DEAD_LETTER_RETENTION, "dead")
    for queue, age in ages.items():
        yield _older(dead.filter(queue=queue), age, f"dead in {queue}")
    others = dead.exclude(queue__in=sizes) if sizes else dead
    yield _beyond(others, ojs_settings.DEAD_LETTER_MAX)
    for queue, size in sizes.items():
        yield _beyond(dead.filter(queue=queue), size, queue=queue)


def _older(jobs: QuerySet[Job], keep: timedelta, kind: str) -> Chosen:
    old = _past(jobs, keep)
    return old, _batch(old, "finished_at", kind).ids


def _beyond(dead: QuerySet[Job], limit: int, **kind: str) -> Chosen:
    """Return the oldest jobs above a limit.

    Args:
        kind: the queue that all of them are of, if it is one.
    """
    # Whether there can be any: by the index alone, which takes a thirtieth of reading the rows.
    all_of_kind = Job.objects.dead().filter(**kind).order_by("-finished_at", "-pk")
    if not all_of_kind.values_list("finished_at")[limit : limit + 1]:
        return dead, []
    newest_first = dead.order_by("-finished_at", "-pk").values_list("pk", "finished_at")
    found = list(newest_first[limit : limit + BATCH_SIZE])
    # One that dies again is among the newest.
    old = dead.filter(finished_at__lte=found[0][1]) if found else dead
    return old, [pk for pk, _ in found]


def _delete(jobs: QuerySet[Job], ids: Sequence[UUID], event: str = "") -> int:
    """Delete a batch of `jobs`, if they still are; `event` is recorded for each of their queues."""
    if not ids:
        return 0
    with atomic():
        # One that an operator retried in the meantime stays, even if it has ended again.
        over = lock_deletable(jobs.filter(Among("pk", ids)))
        if event:
            of = Job.objects.filter(Among("pk", over)).values_list("queue", flat=True)
            pruned = sorted(Counter(of).items())
            record(queue_event(event, queue, pruned=count) for queue, count in pruned)
        erase(over)
    return len(over)


def erase(ids: list[UUID]) -> None:
    """Delete jobs the caller has locked, and what refers to them or belongs to them alone.

    Raises:
        django.db.models.ProtectedError, RestrictedError: see `JobQuerySet.unprotected`.
    """
    stored_arguments.release_jobs(ids)
    for field in references.going_with(Job):
        field.model._default_manager.filter(Among(field.name, ids)).delete()
    jobs = Job.objects.filter(Among("pk", ids))
    if references.references_of_sites(Job):
        # As Django deletes: a site's own rows go, or stay, as the `on_delete` of their key says.
        jobs.only("pk").delete()
    else:
        jobs._raw_delete(using=alias())


def prune_results() -> int:
    """Delete one batch of results whose `result_ttl` has passed (OJS results §5.3).

    Results that a workflow may still pass on stay until the workflow has ended (§9.1).
    """
    over = Job.objects.filter(
        result_ttl__isnull=False,
        result_pruned=False,
        finished_at__isnull=False,
        finished_at__lte=Now() - F("result_ttl"),
    ).exclude(is_asked_for())
    ids = _batch(over, "finished_at", "results").ids
    with atomic():
        # Locked in the order of ids, as every batch does.
        finished = Job.objects.filter(Among("pk", ids), finished_at__isnull=False).order_by("pk")
        ids = list(finished.select_for_update().values_list("pk", flat=True))
        # A job may have asked for one of them before it was locked.
        return over.filter(Among("pk", ids)).update(result=None, result_pruned=True)


def prune_workflows() -> int:
    """Delete workflows past their retention, with all inside them; return how many."""
    over = Workflow.objects.filter(parent__isnull=True, finished_at__isnull=False)
    for state, keep in (
        (WorkflowState.COMPLETED, ojs_settings.COMPLETED_RETENTION),
        (WorkflowState.CANCELLED, ojs_settings.CANCELLED_RETENTION),
        (WorkflowState.FAILED, ojs_settings.DEAD_LETTER_RETENTION),
        (WorkflowState.COMPENSATED, ojs_settings.DEAD_LETTER_RETENTION),
    ):
        old = over.filter(state=state, finished_at__lte=Now() - keep).order_by("finished_at")
        ids = list(old.values_list("pk", flat=True)[:WORKFLOWS])
        if ids:
            return sum(_delete_workflow(pk) for pk in ids)
    return 0


def _delete_workflow(root_id: UUID) -> int:
    """Delete a workflow; one with more jobs than a batch takes several rounds."""
    inside = Workflow.objects.filter(root_id=root_id)
    with atomic():
        jobs = Job.objects.filter(workflow__in=inside.values("pk"))
        # Jobs that are dead, unfinished, asked for or protected remain as independent jobs.
        for stays in (
            jobs.filter(finished_at__isnull=True),
            jobs.dead(),
            jobs.filter(is_asked_for()),
            jobs.protected(),
        ):
            # Locked in the order of ids, as every batch does.
            staying = stays.order_by("pk").select_for_update()
            ids = list(staying.values_list("pk", flat=True)[:BATCH_SIZE])
            Job.objects.filter(Among("pk", ids)).update(workflow=None, workflow_index=None)
            if len(ids) == BATCH_SIZE:
                return 1
        over = jobs.filter(finished_at__isnull=False, dead_letter=False)
        _delete(over, list(over.values_list("pk", flat=True)[:BATCH_SIZE]))
        # Locked after its jobs, as wherever jobs end. Now no step begins any more.
        list(inside.order_by("-depth", "pk").select_for_update().values_list("pk"))
        # A job that was retried, or began, in the meantime needs another round.
        if not jobs.exists():
            stored_arguments.release_workflows(inside)
            inside.delete()
    return 1


def prune_events() -> int:
    """Delete one batch of events and refused finishes past their retention; return how many."""
    keep = ojs_settings.EVENT_RETENTION
    deleted = event_partitions.drop_old()
    # The oldest come first by primary key: no index on time is needed.
    oldest = _batch(Event.objects.all(), "pk", "events").ids
    late = Now() - keep - event_partitions.grace()
    deleted += Event.objects.filter(Among("pk", oldest), time__lte=late).delete()[0]
    # A killed listener could not remove its row, and each NOTIFY has a cost.
    Listener.objects.filter(seen_at__lte=Now() - timedelta(minutes=1)).delete()
    BulkRequest.objects.filter(created_at__lte=Now() - IDEMPOTENT).delete()
    # Unfinished runs are tracked by their jobs (OJS cron §6.3), however old.
    runs = CronRun.objects.filter(decided_at__lte=Now() - keep, unfinished=False).order_by("pk")
    old = list(runs.values_list("pk", flat=True)[:BATCH_SIZE])
    deleted += CronRun.objects.filter(Among("pk", old)).delete()[0]
    refused = RefusedFinish.objects.filter(refused_at__lte=Now() - keep).order_by("pk")
    ids = list(refused.values_list("pk", flat=True)[:BATCH_SIZE])
    return deleted + RefusedFinish.objects.filter(Among("pk", ids)).delete()[0]
