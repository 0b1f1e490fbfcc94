"""Continues dependents and workflows when jobs have ended.

Every verb that may end jobs does so inside `ending()`; a plain job without dependents or a
workflow (see `Job.followed`) costs nothing here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from functools import partial
from uuid import UUID

from django.db.models import Exists, OuterRef
from django.db.models.functions import Now

from ..models import Dependency, Job, Workflow
from ..spec.lifecycle import WAITING
from ..store import awaited
from ..store.database import atomic, on_commit
from ..store.expressions import Among
from . import dependencies, workflow_progress

BATCH_SIZE = 500
CANCELLED = "Its workflow was cancelled."
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
            jobs = list(
                Job.objects.filter(Among("pk", ended), finished_at__isnull=False).only(*COLUMNS)
            )
            settled += jobs
            # Dependents cancelled because a predecessor failed have ended as well.
            ended, has_more = dependencies.release(jobs)
            if has_more:
                on_commit(partial(release_more, [job.pk for job in jobs]), robust=True)
        workflow_progress.tell(settled)
        awaited.tell(awaited.job_name(job.pk) for job in settled)
        of = {job.workflow_id for job in settled if job.workflow_id is not None}
        # Starting a step may end other jobs.
        ended = workflow_progress.advance(of)


def release_more(job_ids: Sequence[UUID]) -> None:
    """Process the other dependents of jobs that have ended, in transactions of their own.

    If it fails or the process is killed, `repair` goes on.
    """
    has_more = True
    while has_more:
        with ending() as ended:
            jobs = Job.objects.filter(Among("pk", job_ids), finished_at__isnull=False).only("state")
            cancelled, has_more = dependencies.release(jobs)
            ended += cancelled


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
            Dependency.objects.filter(
                settled=False, predecessor__finished_at__lte=Now() - SETTLING
            ).values_list("predecessor_id", flat=True)[:BATCH_SIZE]
        )
        begun = Dependency.objects.filter(predecessor__in=set(missed), settled=True)
        more = set(begun.values_list("predecessor_id", flat=True))
        follow(set(missed) - more)
        if more:
            on_commit(partial(release_more, list(more)), robust=True)
        stuck = list(
            Workflow.objects.filter(finished_at__isnull=True, created_at__lte=Now() - SETTLING)
            .exclude(Exists(Job.objects.filter(workflow=OuterRef("pk"), finished_at__isnull=True)))
            .exclude(
                Exists(Workflow.objects.filter(parent=OuterRef("pk"), finished_at__isnull=True))
            )
            .order_by("pk")
            .values_list("pk", flat=True)[:BATCH_SIZE]
        )
        ended += workflow_progress.advance(stuck)
        stray = list(
            Job.objects.filter(
                state__in=sorted(WAITING),
                finished_at__isnull=True,
                workflow__isnull=False,
                workflow__state="cancelled",
                workflow__finished_at__lte=Now() - SETTLING,
            )
            .exclude(workflow__in=dependencies.being_cancelled())
            .values_list("pk", flat=True)[:BATCH_SIZE]
        )
        ended += dependencies.cancel_waiting(stray, CANCELLED)
    return len(missed) + len(stuck) + len(stray)
