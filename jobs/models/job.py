"""Jobs, their errors, and refused ACKs and FAILs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.lookups import Exact, In, IsNull
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..spec.identifiers import uuid7
from ..spec.lifecycle import TERMINAL, WAITING, State
from ..spec.lineage import PARENT
from ..store.expressions import MemberText
from .querysets import JobQuerySet

DUE_STATES = (State.SCHEDULED, State.RETRYABLE)


PARENT_KEY = MemberText("attributes", PARENT)
"""The id of the job's parent, as text; null for most."""
HAS_PARENT = Q(IsNull(PARENT_KEY, False))


class Job(models.Model):
    """A job envelope and its state (OJS core §5)."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    type = models.CharField(max_length=255)
    queue = models.CharField(max_length=128, default="default")
    args = models.JSONField(default=list)
    meta = models.JSONField(default=dict, blank=True)
    project = models.CharField(max_length=100, blank=True, default="", db_default="")
    """The project of the key it was enqueued with; never changes; empty means none."""
    priority = models.SmallIntegerField(default=0)
    rate_key = models.CharField(max_length=255, blank=True, default="", db_default="")
    """The rate limit partition the job belongs to; empty for one without a limit."""
    state = models.CharField(max_length=9, choices=State, default=State.AVAILABLE)

    # Numbers without a check that they are positive: PostgreSQL parses the conditions of a table
    # anew for each statement that writes to it.
    attempt = models.IntegerField(default=0)
    """Number of the current attempt or, after a recovery, of the next one."""
    attempt_counted = models.BooleanField(default=False)
    """The next FETCH takes `attempt` as it is: a recovery has already counted it."""
    max_attempts = models.IntegerField(default=3)
    retry = models.JSONField(null=True, blank=True)
    """The retry policy as the client sent it; null means the default (OJS retry §8)."""
    retry_delay = models.DurationField(null=True, blank=True)
    """The backoff chosen at the last failure."""

    timeout = models.DurationField(null=True, blank=True)
    """Longest execution; null means no limit of its own."""
    grace_period = models.DurationField(null=True, blank=True)
    """Grace for cleaning up after the worker is notified of the timeout (OJS timeouts §5.4)."""
    visibility_timeout = models.DurationField(null=True, blank=True)
    """The job's own visibility timeout, which overrides that of a fetch (§5.3)."""
    reserved_for = models.DurationField(null=True, blank=True)
    """Length of the current reservation, which a heartbeat restarts (§5.4); null without one."""
    reserved_by = models.CharField(max_length=255, blank=True, default="")
    """Id of the worker that holds the job; empty if the fetch named no worker."""
    # In no index, nor in the condition of one: every heartbeat rewrites it, which would rule out
    # PostgreSQL's cheap in-page update. Active jobs are few; the reaper can scan them.
    reserved_until = models.DateTimeField(null=True, blank=True)
    finished_by = models.CharField(max_length=255, blank=True, default="")
    """The worker that settled the job for good."""
    unfenced = models.BooleanField(default=False)
    """Settled by a request that did not name its worker (docs/architecture.md)."""

    scheduled_at = models.DateTimeField(null=True, blank=True)
    """When a scheduled or retryable job is due."""
    expires_at = models.DateTimeField(null=True, blank=True)
    """Latest start: `expires_at`, or `enqueue_ttl` if that is sooner."""
    deadline = models.DateTimeField(null=True, blank=True)
    """Latest end, over all attempts: `total_timeout` (OJS timeouts §5.2)."""
    created_at = models.DateTimeField()
    enqueued_at = models.DateTimeField()
    """When the job last became available or, while it still waits, was accepted."""
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    """When the job reached a terminal state."""

    result = models.JSONField(null=True, blank=True)
    tags = models.JSONField(default=list, blank=True)
    attributes = models.JSONField(default=dict, blank=True)
    """Fields of the envelope without a column, returned as they were sent (OJS core §5.5.4)."""
    needs = models.JSONField(null=True, blank=True)
    """Capabilities that a worker needs to get it, from `meta.capabilities`; null for nearly all."""
    version_number = models.BigIntegerField(null=True, blank=True)
    """The version of its arguments as one sortable number (`versions`); null for most. The
    attributes have it as it was sent."""
    unique_key = models.CharField(max_length=64, null=True, blank=True)  # noqa: DJ001 (see index)
    """What the job's unique policy compares; null for most (OJS unique jobs §4)."""
    dead_letter = models.BooleanField(default=False)
    """Discarded, and kept for an operator to review (OJS dead letter §4.2)."""

    # Neither constraint nor plain index: a job outside of workflows pays for neither.
    workflow = models.ForeignKey(
        "Workflow",
        null=True,
        blank=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="jobs",
    )
    workflow_index = models.IntegerField(null=True, blank=True)
    """Position among the workflow's nodes; null for a callback."""
    followed = models.BooleanField(default=False, db_default=False)
    """A workflow, or a job that depends on this one, waits for its end."""
    parent_results = models.JSONField(null=True, blank=True)
    """Results of the jobs before it (OJS workflows §7); null outside of workflows."""
    result_ttl = models.DurationField(null=True, blank=True)
    """How long the result is kept, if the client gave a time (OJS results §7.1)."""
    result_pruned = models.BooleanField(default=False, db_default=False)

    objects = JobQuerySet.as_manager()

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions = [
            ("cancel_job", _("Can cancel jobs")),
            ("retry_job", _("Can retry discarded jobs")),
            ("discard_job", _("Can delete jobs from the dead letter")),
            ("erase_job", _("Can erase finished jobs with every trace")),
            ("run_job", _("Can run waiting jobs now")),
            ("enqueue_job", _("Can enqueue jobs by hand")),
            ("view_job_args", _("Can see arguments that are redacted for others")),
        ]
        indexes = [
            # FETCH: one range scan a queue, already in order; and one for each key of rate-limited
            # jobs, so that jobs that have to wait are never read.
            models.Index(
                "queue",
                "rate_key",
                F("priority").desc(),
                "enqueued_at",
                "id",
                name="ojs_job_fetchable",
                condition=Q(state=State.AVAILABLE),
            ),
            # The same for a project's fetch, which must not walk through the jobs of others. An
            # index for jobs without a project would only cost: their fetches do not filter by
            # project.
            models.Index(
                "project",
                "queue",
                F("priority").desc(),
                "enqueued_at",
                "id",
                name="ojs_job_project",
                condition=Q(state=State.AVAILABLE) & ~Q(project=""),
            ),
            models.Index(
                "project",
                "queue",
                "scheduled_at",
                name="ojs_job_project_due",
                condition=Q(state__in=DUE_STATES) & ~Q(project=""),
            ),
            # A fetch checks one queue, the reaper all of them.
            models.Index(
                "queue", "scheduled_at", name="ojs_job_due_queue", condition=Q(state__in=DUE_STATES)
            ),
            models.Index("scheduled_at", name="ojs_job_due", condition=Q(state__in=DUE_STATES)),
            # Not `state = 'active'`: an ack has that condition too, and the planner would use this
            # index for it, slower with every job in flight. Nor `reserved_until`, which heartbeats
            # rewrite: a column in a condition counts as indexed.
            models.Index(
                "reserved_by", name="ojs_job_held", condition=Q(reserved_for__isnull=False)
            ),
            # For counting the running jobs of a rate limit. An ack does not imply the second
            # condition.
            models.Index(
                "rate_key",
                name="ojs_job_rate_active",
                condition=Q(state=State.ACTIVE) & Q(rate_key__gt=""),
            ),
            models.Index(
                "state",
                "finished_at",
                name="ojs_job_finished",
                condition=Q(finished_at__isnull=False),
            ),
            # The dead letter, newest first: a few among millions.
            models.Index(
                F("finished_at").desc(),
                F("id").desc(),
                name="ojs_job_dead",
                condition=Q(dead_letter=True),
            ),
            # The same of one type and of one queue: the others' rows are not read.
            models.Index(
                "type",
                F("finished_at").desc(),
                F("id").desc(),
                name="ojs_job_dead_type",
                condition=Q(dead_letter=True),
            ),
            models.Index(
                "queue",
                F("finished_at").desc(),
                F("id").desc(),
                name="ojs_job_dead_queue",
                condition=Q(dead_letter=True),
            ),
            models.Index(
                "expires_at",
                name="ojs_job_expires",
                condition=Q(expires_at__isnull=False, state__in=sorted(WAITING)),
            ),
            models.Index(
                "deadline",
                name="ojs_job_deadline",
                condition=Q(deadline__isnull=False, finished_at__isnull=True),
            ),
            # Without it, counting the pending jobs would read the whole table.
            models.Index("queue", name="ojs_job_pending", condition=Q(state=State.PENDING)),
            models.Index(
                "workflow",
                "workflow_index",
                name="ojs_job_workflow",
                condition=Q(workflow__isnull=False),
            ),
            models.Index(
                "workflow",
                name="ojs_job_workflow_open",
                condition=Q(workflow__isnull=False, finished_at__isnull=True),
            ),
            models.Index(
                "finished_at",
                name="ojs_job_result_ttl",
                condition=Q(
                    result_ttl__isnull=False, finished_at__isnull=False, result_pruned=False
                ),
            ),
            # Null, not empty, for jobs that are not unique: those are in no index.
            models.Index(
                "unique_key",
                "state",
                "created_at",
                name="ojs_job_unique",
                condition=Q(unique_key__isnull=False),
            ),
            # The children of a job. Jobs without a parent are in no index; no statement changes the
            # attributes later. With the id, for otherwise the first children are looked for among
            # all jobs, by primary key.
            models.Index(
                PARENT_KEY,
                "id",
                name="ojs_job_parent",
                condition=HAS_PARENT,
            ),
        ]
        constraints = [
            models.CheckConstraint(
                name="ojs_job_active_is_reserved",
                condition=Exact(
                    IsNull(F("reserved_until"), False), Exact(F("state"), State.ACTIVE)
                ),
            ),
            models.CheckConstraint(
                name="ojs_job_terminal_is_finished",
                condition=Exact(IsNull(F("finished_at"), False), In(F("state"), sorted(TERMINAL))),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.id}"

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def has_attempts_left(self) -> bool:
        """Whether another attempt is left after a failure of the current one (OJS retry §2.2)."""
        return self.attempt < self.max_attempts


class JobError(models.Model):
    """One failed attempt (OJS core §8, errors §6)."""

    # This and the other keys to jobs are none to PostgreSQL: see `store.references`.
    job = models.ForeignKey(
        Job, on_delete=models.CASCADE, related_name="errors", db_constraint=False
    )
    attempt = models.PositiveIntegerField()
    type = models.CharField(max_length=255)
    code = models.CharField(max_length=255, blank=True, default="")
    message = models.TextField(blank=True, default="")
    backtrace = models.JSONField(null=True, blank=True)
    details = models.JSONField(null=True, blank=True)
    retryable = models.BooleanField(null=True, blank=True)
    """What the worker declared about it; null if nothing."""
    worker_id = models.CharField(max_length=255, blank=True, default="")
    occurred_at = models.DateTimeField()

    class Meta:
        verbose_name = _("job error")
        verbose_name_plural = _("job errors")
        ordering = ("id",)
        # What failed in the last minute or day; written where an attempt fails, and only there.
        indexes = [models.Index("occurred_at", name="ojs_joberror_time")]

    def __str__(self) -> str:
        return f"attempt {self.attempt}: {self.type}"


class DeadJobManager(models.Manager["DeadJob"]):
    def get_queryset(self) -> Any:
        return JobQuerySet(self.model, using=self._db).dead()


class DeadJob(Job):
    """The dead letter: discarded jobs, as a view (OJS dead letter §4)."""

    objects: ClassVar[Any] = DeadJobManager()

    class Meta:
        proxy = True
        verbose_name = _("dead letter job")
        verbose_name_plural = _("dead letter")

    @property
    def discarded_at(self) -> datetime | None:
        return self.finished_at


class RefusedFinish(models.Model):
    """An ACK or FAIL that arrived too late or from the wrong worker (OJS worker protocol §10.4)."""

    # No foreign key: the record outlives its job.
    job_id = models.UUIDField(db_index=True)
    operation = models.CharField(max_length=4)
    worker_id = models.CharField(max_length=255, blank=True, default="", db_index=True)
    attempt = models.PositiveIntegerField(null=True, blank=True)
    held_by = models.CharField(max_length=255, blank=True, default="")
    """The worker that holds the job instead, if any."""
    state = models.CharField(max_length=9, choices=State)
    """The job's state when the finish was refused."""
    refused_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = _("refused finish")
        verbose_name_plural = _("refused finishes")
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.operation} of {self.job_id} by {self.worker_id or '?'}"
