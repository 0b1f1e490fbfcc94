"""Bulk operations: a verb for all jobs of a filter, carried out in the background."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .audit import Source


class BulkVerb(models.TextChoices):
    RETRY = "retry", _("retry")
    CANCEL = "cancel", _("cancel")
    DELETE = "delete", _("delete")


class BulkState(models.TextChoices):
    RUNNING = "running", _("running")
    STOPPED = "stopped", _("stopped")
    """Changes no more jobs until it is continued."""
    COMPLETED = "completed", _("completed")


class BulkOperation(models.Model):
    """A verb for all jobs that match a filter, however many: the reaper takes batch after batch."""

    verb = models.CharField(max_length=6, choices=BulkVerb)
    filter = models.JSONField()
    """As in bulk requests of the HTTP API (OJS bulk operations §6.1)."""
    state = models.CharField(max_length=9, choices=BulkState, default=BulkState.RUNNING)
    total = models.PositiveIntegerField(null=True, blank=True)
    """How many jobs matched at its start; null if they were too many to count."""
    done = models.PositiveIntegerField(default=0)
    """How many jobs it has changed."""
    last_id = models.UUIDField(null=True, blank=True)
    """How far it is: jobs are taken in the order of their ids."""
    started_by = models.CharField(max_length=255)
    source = models.CharField(max_length=6, choices=Source)
    reason = models.TextField(blank=True, default="")
    action_id = models.BigIntegerField(null=True, blank=True)
    """The operator's action in the audit."""
    started_at = models.DateTimeField()
    """Jobs enqueued later are left alone."""
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("bulk operation")
        verbose_name_plural = _("bulk operations")
        ordering = ("-id",)
        permissions = [
            (
                "run_bulkoperation",
                _("Can retry, cancel and delete all jobs of a filter in the background"),
            )
        ]

    def __str__(self) -> str:
        return f"#{self.pk}"
