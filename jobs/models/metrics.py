"""Counters computed from the events, a batch at a time (`jobs.record.counters`)."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class JobCounter(models.Model):
    """Totals for the jobs of one type in one queue (OJS observability §8)."""

    queue = models.CharField(max_length=128)
    job_type = models.CharField(max_length=255)
    enqueued = models.BigIntegerField(default=0)
    completed = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    """Discarded, for whatever reason."""
    retried = models.BigIntegerField(default=0)
    cancelled = models.BigIntegerField(default=0)
    expired = models.BigIntegerField(default=0)
    durations = models.JSONField(default=dict)
    """Terminal state → histogram: {"counts": one for each bucket, "sum": seconds}."""
    queue_times = models.JSONField(default=dict)
    """One histogram: from becoming available to the first attempt."""

    class Meta:
        verbose_name = _("job counter")
        verbose_name_plural = _("job counters")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint("queue", "job_type", name="ojs_jobcounter_series"),
        ]

    def __str__(self) -> str:
        return f"{self.job_type} in {self.queue}"


class QueueFlow(models.Model):
    """Arrivals and executions of a queue's jobs in each of the last minutes."""

    queue = models.CharField(max_length=128, primary_key=True)
    minutes = models.JSONField(default=dict)
    """Minute since 1970 → [jobs that became available, jobs that ran, their seconds]."""
    dispatches = models.JSONField(default=dict, db_default={})
    """Worker pool, or empty for none → {"total": jobs handed out, "slices": slice since 1970 →
    [jobs, those whose wait is known, their seconds]} (`jobs.record.scheduling`)."""

    class Meta:
        verbose_name = _("queue flow")
        verbose_name_plural = _("queue flows")
        default_permissions = ()

    def __str__(self) -> str:
        return self.queue
