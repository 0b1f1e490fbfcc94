"""Checkpoints: the saved state of a job, so that the next attempt need not start over."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Checkpoint(models.Model):
    """The last state a job saved (OJS durable execution §5); deleted with its job."""

    # No foreign key: the row is looked up with each job that is fetched, and retention deletes it
    # together with the job.
    job_id = models.UUIDField(primary_key=True)
    state = models.JSONField(null=True)
    sequence = models.PositiveIntegerField(default=1)
    """Counts the checkpoints of the job, including those that were cleared (§10, DUR-008)."""
    attempt = models.PositiveIntegerField(default=0)
    """The attempt that saved it: a late checkpoint of an earlier attempt is refused."""
    is_cleared = models.BooleanField(default=False)
    saved_at = models.DateTimeField(default=timezone.now)

    objects: ClassVar[models.Manager[Checkpoint]] = models.Manager()

    class Meta:
        verbose_name = _("checkpoint")
        verbose_name_plural = _("checkpoints")

    def __str__(self) -> str:
        return f"checkpoint {self.sequence} of {self.job_id}"
