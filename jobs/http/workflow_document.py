"""Serializes workflows: a superset of both documents' shapes (OJS workflows §11, HTTP §14)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Count, Q

from ..engine.inheritance import outcomes, subtree
from ..engine.progress import progress_state
from ..models import Job, ProgressReport, Workflow, WorkflowState, WorkflowType
from ..spec.lifecycle import State
from ..spec.timestamps import format_timestamp

STEP_STATE = {
    State.PENDING: "waiting",
    State.AVAILABLE: "pending",
    State.SCHEDULED: "pending",
    State.RETRYABLE: "pending",
    State.DISCARDED: "failed",
}
"""A step's state by OJS workflows §4.4; a graph shows the state of the job (HTTP §14)."""
GRAPH_STATE = {"waiting": "pending", "not_fired": "cancelled"}
"""The same for what has no job."""
FAILED = (State.DISCARDED, *WorkflowState.failures())
"""States of a job or nested workflow that has failed."""
SHORT = ("index", "id", "job_id", "type")
COLUMNS = (
    "type",
    "state",
    "attempt",
    "workflow_id",
    "workflow_index",
    "enqueued_at",
    "started_at",
    "finished_at",
)


class Tree:
    """A workflow with everything inside, read in a fixed number of queries."""

    def __init__(self, root: Workflow, *, most: int | None = None) -> None:
        """
        Args:
            most: read only so many of the first nodes of each workflow.
        """
        self.root = root
        self.inside = subtree(root, whole=True)
        ids = [item.pk for item in self.inside]
        self.rows = Job.objects.filter(workflow__in=ids).order_by("pk")
        if most is not None:
            self.rows = self.rows.filter(Q(workflow_index__lt=most) | Q(workflow_index=None))
        self.jobs: list[Job] = list(self.rows.only(*COLUMNS))
        self.at = {(job.workflow_id, job.workflow_index): job for job in self.jobs}
        self.calls = {str(job.pk): job for job in self.jobs if job.workflow_index is None}
        self.workflows = {(item.parent_id, item.index): item for item in self.inside}
        found = ProgressReport.objects.filter(job__in=self.rows.values("pk"))
        self.reports: dict[UUID, ProgressReport] = {report.pk: report for report in found}

    def node(self, workflow: Workflow, index: int) -> Job | Workflow | None:
        return self.workflows.get((workflow.pk, index)) or self.at.get((workflow.pk, index))

    def called(self, workflow: Workflow, name: str) -> Job | None:
        """Return the job of a callback or compensation, if it was enqueued and still exists."""
        return self.calls.get((workflow.fired or {}).get(name, ""))

    def progress(self, node: Job | Workflow | None) -> float | None:
        """A node's progress, 0 to 1; None if not begun or none reported (OJS progress §9.1)."""
        if node is None:
            return None
        if isinstance(node, Job):
            if node.state == State.COMPLETED:
                return 1.0
            return progress_state(node, self.reports.get(node.pk)).value
        if node.state == WorkflowState.COMPLETED:
            return 1.0
        parts = [self.node(node, index) for index in range(node.size)]
        if node.type == WorkflowType.BATCH:
            done = float(sum(part is not None and part.state == "completed" for part in parts))
        else:
            done = sum(self.progress(part) or 0.0 for part in parts)
        return round(done / node.size, 4) if node.size else 0.0


def workflow_document(workflow: Workflow, tree: Tree | None = None) -> dict[str, Any]:
    """Everything about a workflow and its nodes (OJS workflows §11.2).

    Args:
        tree: what has been read of it; by default it is read now.
    """
    tree = tree or Tree(workflow)
    left = outcomes(tree.rows.filter(state=State.COMPLETED))
    return _document(tree, workflow, left)


def _document(tree: Tree, workflow: Workflow, left: dict[UUID, Any]) -> dict[str, Any]:
    nodes = [_node(tree, workflow, index, left) for index in range(workflow.size)]
    kind = "steps" if workflow.has_steps else "jobs"
    states = [node["state"] for node in nodes]
    document = _summary(workflow)
    document |= {
        kind: nodes,
        f"{kind}_total": workflow.size,
        f"{kind}_completed": states.count("completed"),
        f"{kind}_failed": sum(state in FAILED for state in states),
        "progress": tree.progress(workflow),
    }
    members = [job.state for job in tree.jobs if job.workflow_index is not None]
    if workflow.pk == tree.root.pk:
        document["metadata"] |= {
            "completed_count": members.count(State.COMPLETED),
            "failed_count": members.count(State.DISCARDED),
        }
    if workflow.callbacks:
        document["callbacks"] = _callbacks(tree, workflow, left)
        if workflow.is_drawn:
            document["steps"] = _drawn(workflow, nodes, document["callbacks"])
    return document


def _drawn(
    workflow: Workflow, jobs: Sequence[dict[str, Any]], callbacks: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """The jobs and callbacks of a batch in the form in which it was sent, as a graph (HTTP §14)."""
    found = [*jobs]
    for index, step in enumerate(workflow.steps[workflow.size :], start=workflow.size):
        edges = {name: step[name] for name in ("id", "depends_on")}
        found.append({"index": index, **edges, **callbacks[step["callback"]]})
    steps = []
    for node in found:
        state = node.get("job_state") or GRAPH_STATE.get(node["state"], node["state"])
        steps.append(node | {"state": state})
    return steps


def _summary(workflow: Workflow) -> dict[str, Any]:
    times: dict[str, Any] = {"created_at": format_timestamp(workflow.created_at)}
    if workflow.started_at is not None:
        times["started_at"] = format_timestamp(workflow.started_at)
    if workflow.finished_at is not None:
        word = "cancelled_at" if workflow.state == WorkflowState.CANCELLED else "completed_at"
        times[word] = format_timestamp(workflow.finished_at)
    document = {
        "id": str(workflow.pk),
        "type": workflow.type,
        "name": workflow.name,
        "state": workflow.state,
        **times,
        "metadata": {**times, "job_count": workflow.job_count},
    }
    if workflow.parent_id is not None:
        document["parent_id"] = str(workflow.parent_id)
    if workflow.problem:
        document |= workflow.problem
        document["metadata"] |= workflow.problem
    return document


def _node(tree: Tree, workflow: Workflow, index: int, left: dict[UUID, Any]) -> dict[str, Any]:
    node = tree.node(workflow, index)
    graph = workflow.type == WorkflowType.DAG
    document: dict[str, Any] = {"index": index}
    if workflow.is_drawn:
        document |= {name: workflow.steps[index][name] for name in ("id", "depends_on")}
    if workflow.type == WorkflowType.SAGA:
        name = workflow.step_name(index)
        document |= {"id": name, "name": name}
    if str(index) in (workflow.compensations or {}):
        document["compensation"] = _compensation(tree, workflow, index, left)
    if isinstance(node, Workflow):
        return document | _document(tree, node, left) | {"workflow_id": str(node.pk)}
    if node is None:
        step = workflow.steps[index] if index < len(workflow.steps) else {}
        state = "cancelled" if workflow.is_decided else "waiting"
        if index == (workflow.problem or {}).get("failed_step_index"):
            state = "failed"  # it was refused
        return document | {"type": step.get("type", ""), "state": state, "job_id": None}
    return document | _job(tree, node, left, graph=graph)


def _job(tree: Tree, job: Job, left: dict[UUID, Any], *, graph: bool = False) -> dict[str, Any]:
    state = State(job.state)
    document: dict[str, Any] = {
        "type": job.type,
        "state": str(state) if graph else STEP_STATE.get(state, str(state)),
        "job_id": str(job.pk),
        "job_state": str(state),
    }
    if left.get(job.pk) is not None:
        document["result"] = left[job.pk]
    if job.started_at is not None:
        document["started_at"] = format_timestamp(job.started_at)
    if job.finished_at is not None:
        document["completed_at"] = format_timestamp(job.finished_at)
    progress = tree.progress(job)
    if progress is not None:
        document["progress"] = progress
    return document


def _callbacks(tree: Tree, workflow: Workflow, left: dict[UUID, Any]) -> dict[str, Any]:
    """Each callback, and the job that it enqueued if it was triggered."""
    documents: dict[str, Any] = {}
    for name, callback in workflow.callbacks.items():
        job = tree.called(workflow, name)
        if job is not None:
            documents[name] = _job(tree, job, left)
        else:
            decided = workflow.fired is not None or workflow.is_terminal
            state = "not_fired" if decided else "waiting"
            documents[name] = {"type": callback["type"], "state": state, "job_id": None}
    return documents


def _compensation(
    tree: Tree, workflow: Workflow, index: int, left: dict[UUID, Any]
) -> dict[str, Any]:
    """The compensation of a step, and the job that was enqueued for it, if one was."""
    job = tree.called(workflow, str(index))
    if job is not None:
        return _job(tree, job, left)
    kind = (workflow.compensations or {})[str(index)]["type"]
    state = "not_fired" if workflow.is_terminal else "waiting"
    return {"type": kind, "state": state, "job_id": None}


def progress_document(workflow: Workflow) -> dict[str, Any]:
    """The progress of a workflow and of each of its nodes (OJS progress §9.2)."""
    tree = Tree(workflow)
    steps = []
    for index in range(workflow.size):
        node = tree.node(workflow, index)
        step = _node(tree, workflow, index, {})
        entry: dict[str, Any] = {name: step[name] for name in SHORT if name in step}
        entry |= {"state": step["state"], "progress": tree.progress(node)}
        if isinstance(node, Job) and node.pk in tree.reports:
            entry["data"] = progress_state(node, tree.reports[node.pk]).data
        steps.append(entry)
    return {
        "workflow_id": str(workflow.pk),
        "type": workflow.type,
        "state": workflow.state,
        "progress": tree.progress(workflow) or 0.0,
        "steps": steps,
    }


def summaries(workflows: Sequence[Workflow]) -> list[dict[str, Any]]:
    """A list's entry for each workflow: how many of its nodes are done, not which."""
    ids = [workflow.pk for workflow in workflows]
    done: dict[Any, dict[str, int]] = {pk: {} for pk in ids}
    for rows, owner in (
        (Job.objects.filter(workflow__in=ids, workflow_index__isnull=False), "workflow_id"),
        (Workflow.objects.filter(parent__in=ids), "parent_id"),
    ):
        counts = rows.order_by().values_list(owner, "state").annotate(count=Count("pk"))
        for pk, state, count in counts:
            done[pk][state] = done[pk].get(state, 0) + count
    documents = []
    for workflow in workflows:
        completed = done[workflow.pk].get("completed", 0)
        failed = sum(done[workflow.pk].get(state, 0) for state in FAILED)
        document = _summary(workflow)
        document["metadata"] |= {"completed_count": completed, "failed_count": failed}
        kind = "steps" if workflow.has_steps else "jobs"
        document |= {f"{kind}_total": workflow.size, f"{kind}_completed": completed}
        document |= {"steps_total": workflow.size, "steps_completed": completed}
        documents.append(document | {"step_count": workflow.size})
    return documents
