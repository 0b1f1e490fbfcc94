"""Starts a workflow, or the next part of one: rows are collected, then stored in sets."""

from __future__ import annotations

from datetime import datetime
from graphlib import TopologicalSorter
from typing import Any
from uuid import UUID

from ..access.projects import assign_project
from ..errors import DuplicateJob
from ..models import Workflow, WorkflowType
from ..record import tracing
from ..spec import traces
from ..spec.identifiers import uuid7
from ..spec.validation import NewJob
from ..spec.workflow_plans import SEQUENCES, Plan, Step
from ..store.rows import insert_rows
from .dependencies import insert_after
from .insertion import insert_jobs


class WorkflowBuilder:
    """Collects workflows and jobs to be stored, all or none."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.workflows: list[Workflow] = []
        self.jobs: list[NewJob] = []
        self.depends_on: dict[UUID, list[UUID]] = {}

    def add_member(self, plan: Plan, project: str = "") -> Workflow:
        """Add a top-level workflow."""
        identifier = plan.id or uuid7()
        if plan.id and Workflow.objects.filter(pk=plan.id).exists():
            raise DuplicateJob(f"A workflow with id '{plan.id}' already exists.")
        return self._workflow(plan, identifier, identifier, project, None, None, [])

    def add(
        self,
        parent: Workflow,
        index: int,
        node: Step | Plan,
        parent_results: list[Any],
        previous: str = "",
    ) -> None:
        """Add a node of `parent`: a job or a nested workflow.

        Args:
            previous: the trace context of the step before it.
        """
        if isinstance(node, Plan):
            self._workflow(
                node, uuid7(), parent.root_id, parent.project, parent, index, parent_results
            )
            return
        job = node.job
        traces.follow(job.meta, parent.type, index, previous, untraced=tracing.recorder is not None)
        job.workflow_id, job.workflow_index = parent.pk, index
        job.followed, job.parent_results = True, parent_results
        self.jobs += assign_project([job], parent.project, lenient=True)

    def _workflow(
        self,
        plan: Plan,
        identifier: UUID,
        root_id: UUID,
        project: str,
        parent: Workflow | None,
        index: int | None,
        parent_results: list[Any],
    ) -> Workflow:
        workflow = Workflow(
            id=identifier,
            type=plan.type,
            name=plan.name,
            project=project,
            parent=parent,
            root_id=root_id,
            index=index,
            depth=parent.depth + 1 if parent else 1,
            steps=_remembered(plan),
            size=len(plan.nodes),
            job_count=plan.job_count,
            callbacks=plan.callbacks,
            compensations=plan.compensations or None,
            parent_results=parent_results,
            created_at=self.now,
        )
        self.workflows.append(workflow)
        if plan.type == WorkflowType.DAG:
            self._connect(plan)
        # The other steps of a chain or saga are created when their turn comes.
        begun = plan.nodes[:1] if plan.type in SEQUENCES else plan.nodes
        for place, node in enumerate(begun):
            self.add(workflow, place, node, parent_results)
        return workflow

    def _connect(self, plan: Plan) -> None:
        steps = {step.name: step for step in plan.nodes if isinstance(step, Step)}
        order = TopologicalSorter({name: step.depends_on for name, step in steps.items()})
        # When a job ends, it is locked first and its dependents next; everything else locks jobs
        # in id order. So ids increase along the edges.
        ids = sorted(step.job.id for step in steps.values())
        for name, job_id in zip(order.static_order(), ids, strict=True):
            steps[name].job.id = job_id
        for step in steps.values():
            if step.depends_on:
                self.depends_on[step.job.id] = [steps[name].job.id for name in step.depends_on]

    def store(self) -> list[UUID]:
        """Store everything in the caller's transaction; return the jobs that ended to make room."""
        insert_rows(self.workflows)
        with tracing.enqueueing(self.jobs):
            if self.depends_on:
                return insert_after(self.jobs, self.depends_on)
            return insert_jobs(self.jobs)


def _remembered(plan: Plan) -> list[Any]:
    if plan.type in SEQUENCES:
        return [node.document for node in plan.nodes]
    return plan.drawn
