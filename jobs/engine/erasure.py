"""Erases jobs with every trace of what they were about: for a person who asks for it.

Deleting a job leaves its events until their retention ends, copies of its result with the jobs that
got it, and what operators wrote down when they chose it. This deletes those as well. What remains
are sums, which say nothing about one job, and ids, which lead nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any
from uuid import UUID

from django.db.models import Q, TextField
from django.db.models.functions import Cast

from ..models import (
    BulkRequest,
    Dependency,
    Event,
    Job,
    OperatorAction,
    RefusedFinish,
    Workflow,
)
from ..models.querysets import JobQuerySet
from ..spec.batches import in_parts
from ..store.database import atomic
from . import stored_arguments
from .history import catch_up
from .retention import erase as delete

BATCH = 100
ERASED = "[erased]"
forgetting: list[Callable[[Sequence[str]], object]] = []
"""Called with the ids of erased jobs, in their transaction: for tables of other apps that hold
copies of events."""


@dataclass(slots=True)
class Erased:
    """What was erased, and what could not be."""

    jobs: int = 0
    events: int = 0
    left: list[UUID] = field(default_factory=list)
    """Jobs that have not finished, on whose results unfinished ones depend, or that a row of the
    site's own keeps."""


def erase(
    jobs: JobQuerySet,
    *,
    gone: Iterable[UUID] = (),
    words: Collection[str] = (),
    record: Callable[[int], object] | None = None,
    progress: Callable[[Erased], object] | None = None,
) -> Erased:
    """Erase the finished jobs among `jobs`, batch by batch; call again for those that are left.

    A job of a finished workflow is erased with the whole workflow, which has its arguments and
    results as well.

    Args:
        gone: ids of jobs that may be deleted already: what the record knows of them goes, too.
        words: texts that operators may have searched by; the audit keeps no filter with them.
        record: called in the transaction of each batch, with the number of jobs erased in it.
        progress: called after each batch, with what was erased so far.
    """
    catch_up()
    done = Erased()
    ids = list(jobs.order_by("pk").values_list("pk", flat=True))
    handled: set[UUID] = set()
    for batch in in_parts(ids, BATCH):
        with atomic():
            before = done.jobs
            handled |= _erase_batch([job_id for job_id in batch if job_id not in handled], done)
            if record is not None:
                record(done.jobs - before)
        if progress is not None:
            progress(done)
    absent = [job_id for job_id in gone if job_id not in handled and job_id not in done.left]
    for batch in in_parts(absent, BATCH):
        with atomic():
            _forget(batch, done)
            if record is not None:
                record(0)
    if words:
        _forget_filters(words)
    return done


def _erase_batch(ids: Sequence[UUID], done: Erased) -> set[UUID]:
    """Erase those of a batch that can be; return their ids, and those of their workflows' jobs."""
    inside, busy = _workflows_of(ids)
    wanted = Job.objects.filter(Q(pk__in=ids) | Q(workflow__in=inside))
    locked = list(wanted.order_by("pk").select_for_update().only("workflow_id", "finished_at"))
    # A workflow is erased as a whole, or not yet.
    roots = {job.workflow_id: inside.get(job.workflow_id) for job in locked}
    awaited = _awaited([job.pk for job in locked])
    kept = set(Job.objects.these(locked).protected().values_list("pk", flat=True))
    kept |= {job.pk for job in locked if job.finished_at is None}
    later = {roots[job.workflow_id] for job in locked if job.pk in kept} - {None}
    erased: list[UUID] = []
    left: list[UUID] = []
    for job in locked:
        stays = job.pk in kept or job.pk in awaited or job.workflow_id in busy
        stays = stays or roots[job.workflow_id] in later
        (left if stays else erased).append(job.pk)
    done.left += [job_id for job_id in left if job_id in set(ids)]
    done.jobs += len(erased)
    # Jobs that got their results may stay, without them.
    heirs = Dependency.objects.filter(predecessor__in=erased).values_list("waiter_id", flat=True)
    Job.objects.filter(pk__in=list(heirs), finished_at__isnull=False).update(parent_results=None)
    _forget(erased, done)
    delete(erased)
    _delete_workflows({pk for pk, root in inside.items() if root not in later}, done)
    return set(erased)


def _workflows_of(ids: Sequence[UUID]) -> tuple[dict[Any, Any], set[Any]]:
    """Return the finished workflows around these jobs, each with its outermost one, and those of
    the jobs whose workflows have not finished.
    """
    rows = Job.objects.filter(pk__in=ids, workflow__isnull=False)
    around = dict(rows.values_list("workflow_id", "workflow__root_id"))
    whole = Workflow.objects.filter(pk__in=set(around.values()), finished_at__isnull=False)
    finished = set(whole.values_list("pk", flat=True))
    inside = dict(Workflow.objects.filter(root_id__in=finished).values_list("pk", "root_id"))
    return inside, {pk for pk, root in around.items() if root not in finished}


def _awaited(ids: Sequence[UUID]) -> set[UUID]:
    """Return those of `ids` on whose results unfinished jobs depend."""
    edges = Dependency.objects.filter(predecessor__in=ids, waiter__finished_at__isnull=True)
    return set(edges.values_list("predecessor_id", flat=True))


def _delete_workflows(ids: Collection[Any], done: Erased) -> None:
    rest = Job.objects.filter(workflow__in=ids).values_list("workflow__root_id", flat=True)
    # A workflow takes those inside it along.
    gone = Workflow.objects.filter(pk__in=ids).exclude(root_id__in=set(rest))
    names = [str(pk) for pk in gone.values_list("pk", flat=True)]
    done.events += Event.objects.filter(subject__in=names).delete()[0]
    stored_arguments.release_workflows(gone)
    gone.delete()


def _forget(ids: Sequence[UUID], done: Erased) -> None:
    """Delete what other tables know of these jobs."""
    names = [str(job_id) for job_id in ids]
    if not names:
        return
    done.events += Event.objects.filter(subject__in=names).delete()[0]
    RefusedFinish.objects.filter(job_id__in=ids).delete()
    for forget in forgetting:
        forget(names)
    # The answers that are repeated for a day to clients that repeat their request.
    BulkRequest.objects.annotate(text=Cast("response", TextField())).filter(
        _contains(names)
    ).delete()
    for action in OperatorAction.objects.annotate(text=Cast("selection", TextField())).filter(
        _contains(names)
    ):
        chosen = _without(action.selection, set(names))
        OperatorAction.objects.filter(pk=action.pk).update(selection=chosen)


def _forget_filters(words: Collection[str]) -> None:
    """Remove from the audit the filters that contain one of the words."""
    for action in OperatorAction.objects.filter(selection__has_key="filter").iterator():
        texts = _texts(action.selection["filter"])
        if any(word in text for text in texts for word in words):
            chosen = action.selection | {"filter": ERASED}
            OperatorAction.objects.filter(pk=action.pk).update(selection=chosen)


def _contains(names: Iterable[str]) -> Q:
    return reduce(or_, (Q(text__contains=name) for name in names))


def _without(value: Any, names: Collection[str]) -> Any:
    """Return a selection without these ids."""
    if isinstance(value, dict):
        return {name: _without(inner, names) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without(inner, names) for inner in value if inner not in names]
    if isinstance(value, str) and any(name in value for name in names):
        return ERASED
    return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for inner in value.values() for text in _texts(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in _texts(inner)]
    return [str(value)]
