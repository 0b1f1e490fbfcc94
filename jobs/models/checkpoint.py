"""How far a job has come, so that the next attempt need not begin anew."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Checkpoint(models.Model):
    """The last state a job saved (OJS durable execution §5); it goes when its job is deleted."""

    # No foreign key: the row is looked up with each job that is fetched, and its deletion is
    # part of retention, which knows it.
    job_id = models.UUIDField(primary_key=True)
    state = models.JSONField(null=True)
    sequence = models.PositiveIntegerField(default=1)
    """Counts the checkpoints of the job, those that were cleared among them (§10, DUR-008)."""
    attempt = models.PositiveIntegerField(default=0)
    """The attempt that saved it: an earlier one that comes late is refused."""
    is_cleared = models.BooleanField(default=False)
    saved_at = models.DateTimeField(default=timezone.now)

    objects: ClassVar[models.Manager[Checkpoint]] = models.Manager()

    class Meta:
        verbose_name = _("checkpoint")
        verbose_name_plural = _("checkpoints")

    def __str__(self) -> str:
        return f"checkpoint {self.sequence} of {self.job_id}"
