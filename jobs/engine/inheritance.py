"""Results that jobs inherit from their predecessors (OJS workflows §7, results §9.1).

Bounded: a result that would make the total too large is replaced by a reference to where it can
be read (§7.5).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast, Length

from ..models import Job, JobError, Workflow
from ..spec.lifecycle import State
from ..store.expressions import Among
from ..store.queries import compiled_once

MOST = 16 * 1024 * 1024
LEAST = 64 * 1024
TOGETHER = 256 * 1024 * 1024
"""Characters of JSON: for a single heir, for each of many, and for all of them."""
ERRORS = 100


def results_of_jobs(ids: Sequence[UUID], *, copies: int = 1) -> list[Any]:
    """Return the jobs' results, in the order given; for a failed job, its error."""
    found = _outcomes(_sized(_of_jobs(ids)), copies)
    return [found.get(job_id) for job_id in ids]


def results_of_workflow(workflow: Workflow, *, copies: int = 1) -> list[Any]:
    """Return the nodes' results, in order; a nested workflow contributes an array."""
    return results_of_workflows([workflow], copies=copies)[workflow.pk]


def results_of_workflows(
    workflows: Sequence[Workflow], *, copies: int = 1
) -> dict[UUID, list[Any]]:
    """Return what `results_of_workflow` returns for each, by id.

    Args:
        copies: of the results of each.
    """
    inside = {item.pk: (item, top) for top, items in subtrees(workflows).items() for item in items}
    jobs = _sized(_of_workflows(inside))
    known = _outcomes(jobs, copies, {pk: top for pk, (_, top) in inside.items()})
    left: dict[Any, dict[Any, Any]] = {pk: {} for pk in inside}
    for job in jobs:
        left[job.workflow_id][job.place] = known.get(job.pk)
    # Deepest first: each workflow is complete before it is put into its parent.
    for item, top in sorted(inside.values(), key=lambda each: -each[0].depth):
        if item.pk != top:
            left[item.parent_id][item.index] = _in_order(left[item.pk], item.size)
    return {item.pk: _in_order(left[item.pk], item.size) for item in workflows}


def _in_order(left: dict[int, Any], size: int) -> list[Any]:
    started = max(left, default=-1) + 1
    return [left.get(index) for index in range(min(size, started))]


def subtree(workflow: Workflow, *, whole: bool = False) -> list[Workflow]:
    """The workflow and all inside it, outermost first.

    Args:
        whole: with all columns, not only those that locate each workflow.
    """
    return subtrees([workflow], whole=whole)[workflow.pk]


def subtrees(workflows: Sequence[Workflow], *, whole: bool = False) -> dict[UUID, list[Workflow]]:
    """Like `subtree`, for each of several workflows of which none is inside another, by id."""
    parents = set(_parents([item.pk for item in workflows]))
    return {
        item.pk: _inside(item, whole=whole) if item.pk in parents else [item] for item in workflows
    }


@compiled_once
def _parents(ids: Any) -> QuerySet[Any]:
    """Return which of these workflows have others inside."""
    nested = Workflow.objects.filter(Among("parent", ids)).order_by()
    return nested.values_list("parent_id", flat=True).distinct()


def _inside(workflow: Workflow, *, whole: bool) -> list[Workflow]:
    deeper = Workflow.objects.filter(root_id=workflow.root_id, depth__gt=workflow.depth)
    inside = {workflow.pk: workflow}
    if not whole:
        deeper = deeper.only("parent_id", "index", "depth", "size")
    for item in deeper.order_by("depth"):
        if item.parent_id in inside:
            inside[item.pk] = item
    return list(inside.values())


def outcomes(jobs: Any) -> dict[UUID, Any]:
    """Return the result of each job of the queryset; for large ones, where to read them."""
    return _outcomes(_sized(_with_sizes(jobs)))


class _Sized(NamedTuple):
    """A job, and the characters of JSON of its result."""

    pk: UUID
    workflow_id: UUID | None
    place: int | None
    state: str
    characters: int | None


def _sized(rows: Iterable[Any]) -> list[_Sized]:
    return [_Sized(*row) for row in rows]


@compiled_once
def _of_jobs(ids: Any) -> QuerySet[Any]:
    return _with_sizes(Job.objects.filter(Among("pk", ids)))


@compiled_once
def _of_workflows(ids: Any) -> QuerySet[Any]:
    return _with_sizes(Job.objects.filter(Among("workflow", ids), workflow_index__isnull=False))


def _with_sizes(jobs: QuerySet[Job]) -> QuerySet[Any]:
    sizes = jobs.annotate(characters=Length(Cast("result", TextField())))
    columns = ("pk", "workflow_id", "workflow_index", "state", "characters")
    return sizes.order_by("pk").values_list(*columns)


def _outcomes(
    jobs: Iterable[_Sized], copies: int = 1, heirs: Mapping[UUID, UUID] | None = None
) -> dict[UUID, Any]:
    """
    Args:
        heirs: by workflow, who inherits what its jobs have as results; by default one inherits all.
            What each inherits is limited.
    """
    room: dict[UUID | None, int] = defaultdict(
        lambda: min(MOST, max(LEAST, TOGETHER // max(copies, 1)))
    )
    whole: list[UUID] = []
    left: dict[UUID, Any] = {}
    failed: list[UUID] = []
    for job in jobs:
        heir = heirs[job.workflow_id] if heirs and job.workflow_id else None
        if job.state != State.COMPLETED:
            failed.append(job.pk)
            left[job.pk] = {"state": job.state}
        elif (job.characters or 0) <= room[heir]:
            room[heir] -= job.characters or 0
            whole.append(job.pk)
        else:
            left[job.pk] = {
                "result_ref": f"/ojs/v1/jobs/{job.pk}/result",
                "result_size_bytes": job.characters,
                "result_content_type": "application/json",
            }
    left |= dict(_results(whole))
    for entry in errors_of(failed):
        left[UUID(entry["job_id"])]["error"] = entry
    return left


def errors_of(ids: Collection[UUID]) -> list[dict[str, Any]]:
    """Return why each of these jobs failed, in the order given (OJS workflows §9.6)."""
    last = {
        job_id: failure(code or kind, message, job_id, attempt)
        for job_id, code, kind, message, attempt in _errors(ids)
    }
    last |= {
        job_id: failure("job_cancelled", "The job was cancelled.", job_id, attempt)
        for job_id, attempt in _cancelled(ids)
    }
    return [last[job_id] for job_id in ids if job_id in last]


def failure(
    code: str, message: str, job_id: UUID | None = None, attempt: int = 0
) -> dict[str, Any]:
    """Return an error of a workflow (OJS workflows §9.6).

    Args:
        job_id: None if there is no job that failed.
    """
    return {
        "job_id": None if job_id is None else str(job_id),
        "code": code,
        "message": message[:1000],
        "attempt": attempt,
    }


@compiled_once
def _results(ids: Any) -> QuerySet[Any]:
    return Job.objects.filter(Among("pk", ids)).values_list("pk", "result")


@compiled_once
def _errors(ids: Any) -> QuerySet[Any]:
    errors = JobError.objects.filter(Among("job", ids)).order_by("pk")
    return errors.values_list("job_id", "code", "type", "message", "attempt")


@compiled_once
def _cancelled(ids: Any) -> QuerySet[Any]:
    jobs = Job.objects.filter(Among("pk", ids), state=State.CANCELLED)
    return jobs.values_list("pk", "attempt")
