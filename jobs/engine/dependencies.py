"""Jobs that wait for other jobs (OJS HTTP §14.1, `depends_on`): any graph without cycles.

A waiting job is pending. Whether it is freed is decided under a lock on its row, after its edges
were marked: if two predecessors end at the same instant on two servers, the second to get the lock
sees the first one's mark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.db.models.lookups import IsNull

from ..errors import InvalidRequest
from ..models import (
    BulkOperation,
    BulkState,
    BulkVerb,
    Dependency,
    Job,
    PendingRelease,
    Workflow,
    WorkflowState,
)
from ..models.querysets import JobQuerySet
from ..record.events import PREVIOUS, job_event, record
from ..signals import jobs_cancelled, send_on_commit
from ..spec.lifecycle import WAITING, Event, State
from ..spec.validation import NewJob
from ..spec.workflow_plans import find_cycle
from ..store import clock
from ..store.database import connection
from ..store.expressions import Among
from ..store.queries import compiled_once
from ..store.rows import insert_rows
from .inheritance import results_of_jobs, subtree
from .insertion import insert_jobs
from .ready import COLUMNS, make_ready

MOST = 1000
"""Edges that one transaction follows: thousands of jobs may wait for the same one."""
IN_VAIN = "A job it depends on did not complete."
CANCELLED = "Its workflow was cancelled."


def insert_after(
    new: Sequence[NewJob],
    depends_on: Mapping[UUID, Sequence[UUID]],
    *,
    condition: str = Dependency.SUCCESS,
    pass_results: bool = True,
) -> list[UUID]:
    """Store jobs that wait for others, in the caller's transaction; see `enqueue_after`.

    Returns the jobs that have already ended and now have dependents.
    """
    waiting = {job_id: list(dict.fromkeys(ids)) for job_id, ids in depends_on.items() if ids}
    _refuse_cycles(waiting)
    _prepare(new, waiting, pass_results)
    named = {job_id for ids in waiting.values() for job_id in ids}
    ended = _hold(named - {job.id for job in new})
    ended += insert_jobs(new)
    insert_rows(
        Dependency(waiter_id=job_id, predecessor_id=other, position=place, condition=condition)
        for job_id, ids in waiting.items()
        for place, other in enumerate(ids)
    )
    return ended


def _prepare(
    new: Sequence[NewJob], waiting: Mapping[UUID, Sequence[UUID]], pass_results: bool
) -> None:
    named = {job_id for ids in waiting.values() for job_id in ids}
    for job in new:
        job.followed = job.followed or job.id in named
        if job.id in waiting:
            job.hold()
            job.followed = True
            job.parent_results = [] if pass_results else None


def _hold(ids: Collection[UUID]) -> list[UUID]:
    """Lock the jobs that others will now wait for; return those that have already ended."""
    if not ids:
        return []
    named = Job.objects.filter(Among("pk", ids))
    jobs = named.order_by("pk").select_for_update().only("finished_at")
    found = {job.pk: job for job in jobs}
    unknown = next((job_id for job_id in ids if job_id not in found), None)
    if unknown is not None:
        raise InvalidRequest(
            f"The 'depends_on' field names a job that does not exist: '{unknown}'.",
            field="depends_on",
            validation="reference",
        )
    named.filter(followed=False).update(followed=True)
    return [job.pk for job in found.values() if job.finished_at is not None]


def _refuse_cycles(waiting: Mapping[UUID, Sequence[UUID]]) -> None:
    circle = find_cycle(waiting)
    if circle:
        raise InvalidRequest(
            "The jobs wait for each other in a circle.",
            field="depends_on",
            validation="cycle",
            job_ids=[str(job_id) for job_id in circle[:10]],
        )


class Released(NamedTuple):
    """What the end of jobs meant for those that wait for them."""

    edges: int = 0
    """How many were followed."""
    cancelled: Sequence[UUID] = ()
    """Dependents that ended with them, and have dependents of their own or a workflow."""
    has_more: bool = False
    """Whether there may be more dependents: see `leave`."""


def release(jobs: Collection[Job], *, patient: bool = False) -> Released:
    """Release the dependents of these jobs, which have ended, along `MOST` edges at most.

    Args:
        patient: wait for dependents that are locked and older than the job they depend on.
            Otherwise they are left to the chore `dependents`. The caller may hold the job they
            depend on, and to wait for an older job then is against the order of locks.
    """
    ended = {job.pk: job.state for job in jobs}
    if not ended:
        return Released()
    waits = Dependency.objects.filter(Among("predecessor", ended), settled=False)
    # In the order of the index, and of the locks below.
    edges = list(
        waits.order_by("predecessor", "waiter").values_list(
            "pk", "waiter_id", "predecessor_id", "condition"
        )[: MOST + 1]
    )
    if not edges:
        return Released()
    has_more = len(edges) > MOST
    del edges[MOST:]
    if not patient and (busy := _busy({edge[1] for edge in edges if edge[1] < edge[2]})):
        edges = [edge for edge in edges if edge[1] not in busy]
        has_more = True
    Dependency.objects.filter(Among("pk", [edge[0] for edge in edges])).update(settled=True)
    waiters = {edge[1] for edge in edges}
    # Locked before checking what each still waits for: see above.
    # Not compiled once: a plan of when no job was pending would read the index of all that are.
    waiting = Job.objects.filter(Among("pk", waiters), state=State.PENDING)
    locked = list(
        waiting.order_by("pk").select_for_update().only(*COLUMNS, "parent_results", "workflow_id")
    )
    if any(job.workflow_id is not None for job in locked):
        # These are not to run, and their turn to be cancelled comes.
        over = being_cancelled()
        locked = [job for job in locked if job.workflow_id not in over]
    in_vain = {
        waiter
        for _, waiter, predecessor, condition in edges
        if condition == Dependency.SUCCESS and ended[predecessor] != State.COMPLETED
    }
    # Not by reading what they wait for: one may wait for a hundred thousand others.
    still = set(_still_waiting([job.pk for job in locked]))
    _free([job for job in locked if job.pk not in in_vain and job.pk not in still])
    cancelled = cancel_waiting([job.pk for job in locked if job.pk in in_vain], IN_VAIN)
    return Released(len(edges), cancelled, has_more)


def _busy(ids: Collection[UUID]) -> set[UUID]:
    """Lock these jobs; return those that other transactions have locked."""
    if not ids or not connection().features.has_select_for_update_skip_locked:
        return set()
    jobs = Job.objects.filter(Among("pk", ids)).order_by("pk").select_for_update(skip_locked=True)
    return set(ids) - set(jobs.values_list("pk", flat=True))


@compiled_once
def _still_waiting(ids: Any) -> QuerySet[Any]:
    return Job.objects.filter(is_waiting(), Among("pk", ids)).values_list("pk", flat=True)


def leave(ids: Iterable[UUID]) -> None:
    """Leave the dependents that these jobs still have to the chore that releases them."""
    jobs = Job.objects.filter(is_awaited(), Among("pk", ids)).order_by("pk")
    PendingRelease.objects.bulk_create(
        [PendingRelease(job_id=job_id) for job_id in jobs.values_list("pk", flat=True)],
        ignore_conflicts=True,
    )


def being_cancelled() -> set[UUID]:
    """Return the cancelled workflows whose jobs a bulk operation still has to cancel."""
    named = [UUID(wanted["workflow"]) for wanted in _cancellations()]
    roots = Workflow.objects.filter(pk__in=named, state=WorkflowState.CANCELLED)
    roots = roots.only("root_id", "depth")
    return {item.pk for root in roots for item in subtree(root)}


@compiled_once
def _cancellations() -> QuerySet[Any]:
    """Return the filters of the bulk operations that still cancel a workflow."""
    unfinished = BulkOperation.objects.exclude(state=BulkState.COMPLETED)
    cancels = unfinished.filter(verb=BulkVerb.CANCEL, filter__has_key="workflow")
    return cancels.values_list("filter", flat=True)


def freed_by(job_id: UUID) -> int:
    """Return how many jobs were freed by the completion of this one."""
    edges = Dependency.objects.filter(predecessor=job_id, settled=True)
    return edges.exclude(waiter__state__in=(State.PENDING, State.CANCELLED)).count()


def _free(jobs: Sequence[Job]) -> None:
    """Make waiting jobs ready, with the results of what they waited for."""
    if not jobs:
        return
    _inherit([job.pk for job in jobs if job.parent_results is not None])
    make_ready(jobs)


def _inherit(waiters: Sequence[UUID]) -> None:
    """Give each waiter its predecessors' results; waiters with the same results share an UPDATE."""
    before: dict[UUID, list[UUID]] = {}
    for waiter, predecessor in _predecessors(waiters):
        before.setdefault(waiter, []).append(predecessor)
    alike: dict[tuple[UUID, ...], list[UUID]] = {}
    for waiter, predecessors in before.items():
        alike.setdefault(tuple(predecessors), []).append(waiter)
    for sources, heirs in alike.items():
        results = results_of_jobs(sources, copies=len(heirs))
        Job.objects.filter(Among("pk", heirs)).update(parent_results=results)


@compiled_once
def _predecessors(waiters: Any) -> QuerySet[Any]:
    edges = Dependency.objects.filter(Among("waiter", waiters)).order_by("waiter", "position")
    return edges.values_list("waiter_id", "predecessor_id")


def cancel_waiting(ids: Iterable[UUID], reason: str) -> list[UUID]:
    """Cancel those of `ids` that no worker runs yet; return those with dependents or a workflow."""
    wanted = list(ids)
    if not wanted:
        return []
    skip = connection().features.has_select_for_update_skip_locked
    jobs = list(
        Job.objects.filter(Among("pk", wanted), state__in=sorted(WAITING))
        .order_by("pk")
        .select_for_update(skip_locked=skip)
        .only("type", "queue", "state", "attempt", "followed")
    )
    Job.objects.these(jobs).transition(Event.CANCEL, State.CANCELLED)
    now = clock.now()
    record(
        job_event("job.cancelled", job, time=now, data={"reason": reason, PREVIOUS: str(job.state)})
        for job in jobs
    )
    if jobs:
        send_on_commit(jobs_cancelled, Job, job_ids=[job.pk for job in jobs])
    return [job.pk for job in jobs if job.followed]


def cancel_strays(ids: Collection[UUID]) -> list[UUID]:
    """Cancel those of `ids` that wait although their workflow was cancelled; return them.

    A worker may finish its attempt, but there is no other one (OJS workflows §11.3).
    """
    return cancel_waiting(_strays_among(ids), CANCELLED)


@compiled_once
def _strays_among(ids: Any) -> QuerySet[Any]:
    return strays().filter(Among("pk", ids)).values_list("pk", flat=True)


def strays() -> JobQuerySet:
    """Jobs that wait although their workflow was cancelled."""
    jobs: JobQuerySet = Job.objects.filter(
        state__in=sorted(WAITING),
        finished_at__isnull=True,
        workflow__isnull=False,
        workflow__state=WorkflowState.CANCELLED,
    )
    return jobs


def ended_with_workflow() -> Q:
    """Whether a job of the outer query never runs again, whatever its state (workflows §11.3).

    Its workflow was cancelled, or may never have reached it.
    """
    around = Workflow.objects.filter(pk=OuterRef("workflow"), state=WorkflowState.CANCELLED)
    return Q(state=State.CANCELLED, workflow__isnull=False) | Q(Exists(around))


def is_in_vain() -> Q:
    """Whether a job of the outer query was cancelled as a job it depends on did not complete."""
    edges = Dependency.objects.filter(waiter=OuterRef("pk"), condition=Dependency.SUCCESS)
    failed = edges.filter(predecessor__state__in=(State.CANCELLED, State.DISCARDED))
    return Q(Exists(failed), state=State.CANCELLED)


def is_waiting() -> IsNull:
    """Whether a job of the outer query waits for another one and so may not be activated."""
    return _has_edge(waiter=OuterRef("pk"))


def is_awaited() -> IsNull:
    """Whether other jobs wait for a job of the outer query."""
    return _has_edge(predecessor=OuterRef("pk"))


def _has_edge(**end: OuterRef) -> IsNull:
    """Whether an open edge has this end.

    A subquery for each job, which EXISTS need not be: with statistics of when there were few edges,
    PostgreSQL would join, and read all open edges for each of a thousand jobs.
    """
    edges = Dependency.objects.filter(**end, settled=False)
    return IsNull(Subquery(edges.values(*end)[:1]), False)
