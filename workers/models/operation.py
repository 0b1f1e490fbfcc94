"""Rolling drains and their workers."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from jobs.models import Source


class OperationState(models.TextChoices):
    RUNNING = "running", _("running")
    PAUSED = "paused", _("paused")
    """Quiets and terminates no further workers; quiet workers stay quiet."""
    COMPLETED = "completed", _("completed")
    ABORTED = "aborted", _("aborted")


UNFINISHED = (OperationState.RUNNING, OperationState.PAUSED)


class Phase(models.TextChoices):
    """The progress of an operation with one worker."""

    WAITING = "waiting", _("waiting for its turn")
    DRAINING = "draining", _("finishes its jobs")
    TERMINATING = "terminating", _("stops")
    HELD = "held", _("drained, and held quiet")
    GONE = "gone", _("gone")
    LEFT_ALONE = "left alone", _("an operator resumed it")
    RESUMED = "resumed", _("resumed")


IN_WORK = (Phase.DRAINING, Phase.TERMINATING)
FINAL = (Phase.HELD, Phase.GONE, Phase.LEFT_ALONE, Phase.RESUMED)


class FleetOperation(models.Model):
    """A drain of the selected workers, a few at a time."""

    selection = models.JSONField(default=dict)
    """How the workers were selected, in readable form."""
    max_unavailable = models.PositiveIntegerField()
    """Most workers to drain at once."""
    floors = models.JSONField(default=dict)
    """Queue → the least running capacity, in jobs at once, that the operation must leave."""
    idle_limit = models.DurationField(null=True, blank=True)
    """Longest wait for a worker's jobs; null means as long as they take."""
    terminates = models.BooleanField(default=True)
    """Drained workers are directed to terminate; otherwise they are kept quiet."""
    replacement_label = models.CharField(max_length=255, blank=True, default="")
    """Continue only while as many new workers with this label run as were taken away."""

    state = models.CharField(max_length=9, choices=OperationState, default=OperationState.RUNNING)
    waits_for = models.CharField(max_length=255, blank=True, default="")
    """Why no further worker is quieted at the moment."""
    started_by = models.CharField(max_length=255)
    source = models.CharField(max_length=6, choices=Source)
    reason = models.TextField(blank=True, default="")
    action_id = models.BigIntegerField(null=True, blank=True)
    """The operator's action in the audit."""
    started_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("fleet operation")
        verbose_name_plural = _("fleet operations")
        ordering = ("-id",)
        permissions = [("drain_fleet", _("Can drain workers one after the other"))]

    def __str__(self) -> str:
        return f"#{self.pk}"

    @property
    def is_finished(self) -> bool:
        return self.state not in UNFINISHED


class OperationStep(models.Model):
    """One worker of an operation."""

    operation = models.ForeignKey(FleetOperation, on_delete=models.CASCADE, related_name="steps")
    # No foreign key: the worker's record may be gone.
    worker_id = models.CharField(max_length=255)
    incarnation = models.PositiveIntegerField(default=1)
    """The incarnation to drain; a later one under the same id is a replacement."""
    position = models.PositiveIntegerField()
    phase = models.CharField(max_length=11, choices=Phase, default=Phase.WAITING)
    is_open = models.BooleanField(default=True)
    """The operation still controls this worker."""
    was_quiet = models.BooleanField(default=False)
    """The worker was quiet before the operation: an abort does not resume it."""
    quieted_at = models.DateTimeField(null=True, blank=True)
    terminated_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("step of an operation")
        verbose_name_plural = _("steps of an operation")
        ordering = ("operation", "position")
        constraints = [
            models.UniqueConstraint(
                "worker_id", name="ojs_one_operation_a_worker", condition=Q(is_open=True)
            )
        ]

    def __str__(self) -> str:
        return f"{self.worker_id}: {self.phase}"
