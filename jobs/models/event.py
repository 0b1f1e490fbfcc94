"""Events: one row for each thing that happened."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from .querysets import EventTxid


class Event(models.Model):
    """Something that happened to a job or a worker, in a reliable order (OJS events).

    The order is that of the ids. They are drawn before the commit: `events.settled()` knows up to
    which id no more can appear.
    """

    id = models.BigAutoField(primary_key=True)
    txid = models.BigIntegerField(db_default=EventTxid(), editable=False)
    """The writing transaction. It gave the order before ids did, and old cursors still name it."""
    type = models.CharField(max_length=40)
    subject = models.CharField(max_length=255)
    """A job id, worker id or queue name."""
    queue = models.CharField(max_length=128, blank=True, default="")
    job_type = models.CharField(max_length=255, blank=True, default="")
    worker_id = models.CharField(max_length=255, blank=True, default="")
    attempt = models.IntegerField(null=True, blank=True)
    time = models.DateTimeField()
    data = models.JSONField(null=True, blank=True)
    """Data specific to this type of event."""

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        ordering = ("id",)
        indexes = [
            models.Index("subject", name="ojs_event_subject"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.subject}"
