"""Workflows, and jobs that wait for others."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from ..spec.identifiers import uuid7
from ..spec.workflow_plans import NAMED, SEQUENCES, WorkflowType
from .job import Job


class WorkflowState(models.TextChoices):
    """OJS workflows §8.1; of sagas §14.4."""

    PENDING = "pending", _("Pending")
    RUNNING = "running", _("Running")
    COMPLETED = "completed", _("Completed")
    FAILED = "failed", _("Failed")
    CANCELLED = "cancelled", _("Cancelled")
    COMPENSATING = "compensating", _("Compensating")
    COMPENSATED = "compensated", _("Compensated")

    @classmethod
    def failures(cls) -> tuple[WorkflowState, ...]:
        """Terminal states of a workflow in which something failed."""
        return cls.FAILED, cls.COMPENSATED


class Workflow(models.Model):
    """A chain, group, batch, graph or saga of jobs; inside another workflow, a node of it."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    type = models.CharField(max_length=5, choices=WorkflowType)
    name = models.CharField(max_length=255, blank=True, default="")
    project = models.CharField(max_length=100, blank=True, default="", db_default="")
    """The project of the workflow and all its jobs: that of the key it was created with."""
    state = models.CharField(max_length=12, choices=WorkflowState, default=WorkflowState.RUNNING)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.CASCADE, related_name="children"
    )
    index = models.PositiveIntegerField(null=True, blank=True)
    """Position among the parent's nodes; null at the top and for a callback."""
    root_id = models.UUIDField(db_index=True)
    """The outermost workflow: its own id at the top."""
    depth = models.PositiveSmallIntegerField(default=1)
    steps = models.JSONField(default=list)
    """The nodes of a chain or saga as sent: what has not been created yet; of a graph, its names
    and edges. Of a batch that was sent as a graph, those of its jobs and then of its callbacks."""
    size = models.PositiveIntegerField(default=0)
    """Number of nodes: jobs, and workflows inside."""
    job_count = models.PositiveIntegerField(default=0)
    """Jobs of this workflow and of those inside it, without callbacks (OJS workflows §3.3)."""
    callbacks = models.JSONField(default=dict, blank=True)
    fired = models.JSONField(null=True, blank=True)
    """Callback → id of its job; null until all jobs of the batch have settled. Of a saga: index of
    a step → id of the job that undoes it; null until a step has failed."""
    compensations = models.JSONField(null=True, blank=True)
    """Index of a step → the job that undoes it, as sent; null if no step names one."""
    parent_results = models.JSONField(default=list, blank=True)
    """The input of its first jobs."""
    problem = models.JSONField(null=True, blank=True)
    """Why it failed (OJS workflows §9.6), or what it compensates for."""
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    """When the first job began to execute."""
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("workflow")
        verbose_name_plural = _("workflows")
        permissions = [("cancel_workflow", _("Can cancel workflows"))]
        ordering = ("-id",)
        indexes = [
            models.Index(
                "state",
                "finished_at",
                name="ojs_workflow_finished",
                condition=Q(finished_at__isnull=False, parent__isnull=True),
            ),
            models.Index("id", name="ojs_workflow_open", condition=Q(finished_at__isnull=True)),
            models.Index(F("id").desc(), name="ojs_workflow_top", condition=Q(parent__isnull=True)),
        ]
        constraints = [
            models.CheckConstraint(
                name="ojs_workflow_terminal_is_finished",
                condition=Q(
                    state__in=("completed", "failed", "cancelled", "compensated"),
                    finished_at__isnull=False,
                )
                | Q(
                    state__in=("pending", "running", "compensating"),
                    finished_at__isnull=True,
                ),
            )
        ]

    def __str__(self) -> str:
        return f"{self.name or self.type} {self.id}"

    @property
    def is_terminal(self) -> bool:
        return self.finished_at is not None

    @property
    def is_decided(self) -> bool:
        """Whether no further node will begin: it has ended, or compensates."""
        return self.is_terminal or self.state == WorkflowState.COMPENSATING

    @property
    def is_sequence(self) -> bool:
        return self.type in SEQUENCES

    @property
    def has_steps(self) -> bool:
        """Whether its nodes are called steps, not jobs."""
        return self.is_sequence or self.type == WorkflowType.DAG

    @property
    def is_drawn(self) -> bool:
        """Whether it was sent as a graph: its nodes have names and edges."""
        return self.type in (WorkflowType.DAG, WorkflowType.BATCH) and bool(self.steps)

    @property
    def is_saga(self) -> bool:
        """Whether completed steps are undone when one fails (OJS workflows §14)."""
        return self.type == WorkflowType.SAGA or bool(self.compensations)

    def step_name(self, index: int) -> str:
        """Return the name of a step of a graph or saga; elsewhere its number."""
        if self.type in NAMED:
            step = self.steps[index]
            return str(step.get("id") or step.get("name") or index)
        return str(index)


class Dependency(models.Model):
    """One job waits for another (OJS HTTP §14.1, `depends_on`)."""

    SUCCESS = "success"
    SETTLED = "settled"

    waiter = models.ForeignKey(
        Job,
        on_delete=models.CASCADE,
        related_name="dependencies",
        db_index=False,
        db_constraint=False,
    )
    predecessor = models.ForeignKey(
        Job,
        on_delete=models.CASCADE,
        related_name="dependents",
        db_index=False,
        db_constraint=False,
    )
    position = models.PositiveIntegerField(default=0)
    """Position of the predecessor's result among the waiting job's `parent_results`."""
    condition = models.CharField(
        max_length=7, default=SUCCESS, choices=[(SUCCESS, SUCCESS), (SETTLED, SETTLED)]
    )
    """`success`: the waiting job is cancelled without it. `settled`: any outcome will do."""
    settled = models.BooleanField(default=False)
    """The predecessor has reached a terminal state, and the waiting job has been updated."""

    class Meta:
        verbose_name = _("dependency")
        verbose_name_plural = _("dependencies")
        indexes = [
            models.Index("predecessor", "waiter", name="ojs_dependency_from"),
            models.Index("waiter", "position", name="ojs_dependency_to"),
            models.Index("waiter", name="ojs_dependency_open", condition=Q(settled=False)),
        ]

    def __str__(self) -> str:
        return f"{self.waiter_id} after {self.predecessor_id}"


class PendingRelease(models.Model):
    """A job that has ended, and whose end has not reached all its dependents yet."""

    # No foreign key: once its job is gone, there is nothing left to release, and the row goes too.
    job_id = models.UUIDField(primary_key=True)

    class Meta:
        verbose_name = _("pending release")
        verbose_name_plural = _("pending releases")

    def __str__(self) -> str:
        return f"dependents of {self.job_id}"


class ProgressReport(models.Model):
    """The progress that a worker last reported for its job (OJS progress §5)."""

    job: Any = models.OneToOneField(
        Job,
        on_delete=models.CASCADE,
        primary_key=True,
        related_name="progress_report",
        db_constraint=False,
    )
    attempt = models.PositiveIntegerField()
    """Progress belongs to one attempt; that of an earlier one is ignored (§5.3)."""
    value = models.FloatField(null=True, blank=True)
    """0 to 1, never decreasing within an attempt."""
    data = models.JSONField(null=True, blank=True)
    message = models.TextField(blank=True, default="")
    updated_at = models.DateTimeField()
    told_at = models.DateTimeField()
    """When the last event was recorded: one a second at most (§6.2)."""

    class Meta:
        verbose_name = _("progress report")
        verbose_name_plural = _("progress reports")

    def __str__(self) -> str:
        return f"{self.job_id}: {self.value}"
