"""Results that jobs inherit from their predecessors (OJS workflows §7, results §9.1).

Bounded: a result that would make the total too large is replaced by a reference to where it can
be read (§7.5).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import TextField
from django.db.models.functions import Cast, Length

from ..models import Job, JobError, Workflow
from ..spec.lifecycle import State

MOST = 16 * 1024 * 1024
LEAST = 64 * 1024
TOGETHER = 256 * 1024 * 1024
"""Characters of JSON: for a single heir, for each of many, and for all of them."""
ERRORS = 100


def results_of_jobs(ids: Sequence[UUID], *, copies: int = 1) -> list[Any]:
    """Return the jobs' results, in the order given; for a failed job, its error."""
    found = outcomes(Job.objects.filter(pk__in=ids), copies)
    return [found.get(job_id) for job_id in ids]


def results_of_workflow(workflow: Workflow, *, copies: int = 1) -> list[Any]:
    """Return the nodes' results, in order; a nested workflow contributes an array."""
    inside = subtree(workflow)
    jobs = Job.objects.filter(workflow__in=[item.pk for item in inside])
    jobs = jobs.filter(workflow_index__isnull=False)
    known = outcomes(jobs, copies)
    left: dict[Any, dict[Any, Any]] = {item.pk: {} for item in inside}
    for job_id, parent, index in jobs.values_list("pk", "workflow_id", "workflow_index"):
        left[parent][index] = known.get(job_id)
    # Deepest first: each workflow is complete before it is put into its parent.
    for item in sorted(inside, key=lambda item: -item.depth):
        if item.pk != workflow.pk:
            left[item.parent_id][item.index] = _in_order(left[item.pk], item.size)
    return _in_order(left[workflow.pk], workflow.size)


def _in_order(left: dict[int, Any], size: int) -> list[Any]:
    started = max(left, default=-1) + 1
    return [left.get(index) for index in range(min(size, started))]


def subtree(workflow: Workflow, *, whole: bool = False) -> list[Workflow]:
    """The workflow and all inside it, outermost first.

    Args:
        whole: with all columns, not only those that locate each workflow.
    """
    if not Workflow.objects.filter(parent=workflow.pk).exists():
        return [workflow]
    deeper = Workflow.objects.filter(root_id=workflow.root_id, depth__gt=workflow.depth)
    inside = {workflow.pk: workflow}
    if not whole:
        deeper = deeper.only("parent_id", "index", "depth", "size")
    for item in deeper.order_by("depth"):
        if item.parent_id in inside:
            inside[item.pk] = item
    return list(inside.values())


def outcomes(jobs: Any, copies: int = 1) -> dict[UUID, Any]:
    """Return the result of each job of the queryset; for large ones, where to read them."""
    room = min(MOST, max(LEAST, TOGETHER // max(copies, 1)))
    whole: list[UUID] = []
    left: dict[UUID, Any] = {}
    failed: list[UUID] = []
    sizes = jobs.annotate(characters=Length(Cast("result", TextField())))
    for job_id, state, size in sizes.order_by("pk").values_list("pk", "state", "characters"):
        if state != State.COMPLETED:
            failed.append(job_id)
            left[job_id] = {"state": state}
        elif (size or 0) <= room:
            room -= size or 0
            whole.append(job_id)
        else:
            left[job_id] = {
                "result_ref": f"/ojs/v1/jobs/{job_id}/result",
                "result_size_bytes": size,
                "result_content_type": "application/json",
            }
    left |= dict(Job.objects.filter(pk__in=whole).values_list("pk", "result"))
    for entry in errors_of(failed):
        left[UUID(entry["job_id"])]["error"] = entry
    return left


def errors_of(ids: Collection[UUID]) -> Iterable[dict[str, Any]]:
    """Yield the last error of each failed job (OJS workflows §9.6)."""
    last: dict[UUID, dict[str, Any]] = {}
    rows = JobError.objects.filter(job__in=ids).order_by("pk")
    for job_id, code, kind, message, attempt in rows.values_list(
        "job_id", "code", "type", "message", "attempt"
    ):
        last[job_id] = {
            "job_id": str(job_id),
            "code": code or kind,
            "message": message[:1000],
            "attempt": attempt,
        }
    return last.values()
