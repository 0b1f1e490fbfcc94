"""Continues dependents and workflows when jobs have ended.

Every verb that may end jobs does so inside `ending()`; a plain job without dependents or a
workflow (see `Job.followed`) costs nothing here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Now

from ..models import Dependency, Job, PendingRelease, Workflow
from ..store import awaited, looks, pace
from ..store.database import atomic, connection
from ..store.expressions import Among
from ..store.queries import compiled_once
from . import dependencies, workflow_progress

BATCH_SIZE = 500
SETTLING = timedelta(seconds=5)
"""Grace period before a repair: what looks stuck may be in the middle of a transaction."""


@contextlib.contextmanager
def ending() -> Iterator[list[UUID]]:
    """Open a transaction in which jobs may end.

    Add to the list the ids of ended jobs that have dependents or a workflow. These continue before
    the transaction commits.
    """
    with atomic():
        ended: list[UUID] = []
        yield ended
        follow(ended)


def follow(job_ids: Collection[UUID]) -> None:
    """Continue what waited for these jobs, which have reached a terminal state."""
    ended = list(job_ids)
    while ended:
        settled: list[Job] = []
        while ended:
            jobs = _ended(ended)
            settled += jobs
            predecessors = [job for job in jobs if job.is_awaited]
            released = dependencies.release(predecessors)
            if released.has_more:
                dependencies.leave(job.pk for job in predecessors)
            # Dependents cancelled because a predecessor failed have ended as well.
            ended = list(released.cancelled)
        workflows = workflow_progress.tell(settled)
        awaited.tell(awaited.job_name(job.pk) for job in settled)
        # Starting a step may end other jobs.
        ended = workflow_progress.advance(workflows)


@compiled_once
def _ended(ids: Any) -> QuerySet[Job]:
    jobs = Job.objects.filter(Among("pk", ids), finished_at__isnull=False)
    return jobs.only(*COLUMNS).annotate(is_awaited=dependencies.is_awaited())


def release_dependents(job_ids: Sequence[UUID]) -> None:
    """Release dependents of jobs that have ended, without telling their workflows."""
    with ending() as ended:
        released = _release(job_ids)
        ended += released.cancelled
        if released.has_more:
            dependencies.leave(job_ids)


def _release(job_ids: Sequence[UUID], *, patient: bool = False) -> dependencies.Released:
    # A job that was retried meanwhile has not ended.
    jobs = Job.objects.filter(Among("pk", job_ids), finished_at__isnull=False)
    return dependencies.release(jobs.only("state"), patient=patient)


def _left() -> QuerySet[PendingRelease]:
    return PendingRelease.objects.all()


@looks.only_if_any(_left)
def release_more() -> int:
    """Go on with what the ends of jobs have left, for a turn (a chore of the reaper).

    Returns how many edges were followed. A job with a hundred thousand dependents keeps neither
    the worker that acknowledges it nor the other chores waiting.
    """
    total = 0
    for _ in pace.turn():
        count = _release_next()
        if count is None:
            break
        total += count
    return total


def _release_next() -> int | None:
    """Release the next dependents of the first job with some left; None if there is no such job."""
    skip = connection().features.has_select_for_update_skip_locked
    with ending() as ended:
        # Another process that holds the row is doing the same.
        rows = _left().order_by("pk").select_for_update(skip_locked=skip)
        job_id = rows.values_list("pk", flat=True).first()
        if job_id is None:
            return None
        released = _release([job_id], patient=True)
        ended += released.cancelled
        if not released.has_more:
            _left().filter(pk=job_id).delete()
    return released.edges


COLUMNS = (
    "type",
    "queue",
    "state",
    "attempt",
    "workflow_id",
    "workflow_index",
    "started_at",
    "finished_at",
)


def repair() -> int:
    """Finish what a crash, a deletion or a host's own SQL left undone; one batch (a sweep).

    Normally there is nothing to do: the transaction that ends a job does all of it.
    """
    with ending() as ended:
        missed = list(
            Dependency.objects.filter(settled=False, predecessor__finished_at__lte=Now() - SETTLING)
            .exclude(Exists(PendingRelease.objects.filter(pk=OuterRef("predecessor"))))
            .values_list("predecessor_id", flat=True)[:BATCH_SIZE]
        )
        # If some of a job's dependents have been released, its workflow already knows that the job
        # has ended. Telling it again would record a second event.
        begun = Dependency.objects.filter(predecessor__in=set(missed), settled=True)
        more = set(begun.values_list("predecessor_id", flat=True))
        follow(set(missed) - more)
        dependencies.leave(more)
        stuck = list(
            Workflow.objects.only("depth")
            .filter(finished_at__isnull=True, created_at__lte=Now() - SETTLING)
            .exclude(Exists(Job.objects.filter(workflow=OuterRef("pk"), finished_at__isnull=True)))
            .exclude(
                Exists(Workflow.objects.filter(parent=OuterRef("pk"), finished_at__isnull=True))
            )
            .order_by("pk")[:BATCH_SIZE]
        )
        ended += workflow_progress.advance(stuck)
        stray = list(
            dependencies.strays()
            .filter(workflow__finished_at__lte=Now() - SETTLING)
            .exclude(workflow__in=dependencies.being_cancelled())
            .values_list("pk", flat=True)[:BATCH_SIZE]
        )
        ended += dependencies.cancel_waiting(stray, dependencies.CANCELLED)
    return len(missed) + len(stuck) + len(stray)
