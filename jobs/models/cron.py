"""Cron jobs and the outcomes of their occurrences (OJS cron §2)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from django.db import models
from django.db.models import OuterRef, Q, Subquery
from django.db.models.functions import Now
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _

from ..spec.cron_requests import OverlapPolicy


class Outcome(models.TextChoices):
    """The outcome of one occurrence."""

    TRIGGERED = "triggered", _("triggered")
    SKIPPED = "skipped", _("skipped")
    REFUSED = "refused", _("refused")


LATE = timedelta(minutes=1)
"""The reaper checks for due schedules each second."""


class CronJobQuerySet(models.QuerySet["CronJob"]):
    def due(self) -> CronJobQuerySet:
        return self.filter(next_run_at__lte=Now())

    def that_did_not_run(self) -> CronJobQuerySet:
        """Enabled ones that are late, have no next run, or whose latest run had no effect.

        The latest run is annotated as `last_outcome`, `last_reason` and `last_decided_at`.
        """
        runs = CronRun.objects.filter(cron_name=OuterRef("pk")).order_by("-id")
        annotations = {
            f"last_{name}": Subquery(runs.values(name)[:1])
            for name in ("outcome", "reason", "decided_at")
        }
        is_late = Q(next_run_at__isnull=True) | Q(next_run_at__lte=Now() - LATE)
        came_to_nothing = Q(last_outcome__in=(Outcome.SKIPPED, Outcome.REFUSED))
        return self.filter(enabled=True).annotate(**annotations).filter(is_late | came_to_nothing)


class CronJob(models.Model):
    """A named, persistent registration that enqueues a job again and again (OJS cron §2)."""

    name = models.CharField(max_length=255, primary_key=True)
    expression = models.CharField(max_length=255)
    timezone = models.CharField(max_length=64, default="UTC")
    project = models.CharField(max_length=100, blank=True, default="", db_default="")
    """The project of its jobs: that of the key it was registered with."""
    template = models.JSONField()
    """`type`, `args`, `meta` and `options` of each job, as the client sent them."""
    overlap_policy = models.CharField(
        max_length=15, choices=OverlapPolicy, default=OverlapPolicy.SKIP
    )
    enabled = models.BooleanField(default=True)
    description = models.TextField(blank=True, default="")
    declared_by = models.CharField(max_length=255, blank=True, default="", db_default="")
    """The site whose code declares it, and changes and removes it; empty if people made it."""
    anchored_at = models.DateTimeField()
    """What `next_run_at` was computed from: the registration or the last occurrence (§4.1)."""
    next_run_at = models.DateTimeField(null=True, blank=True)
    """Null while disabled (§8.5)."""
    last_run_at = models.DateTimeField(null=True, blank=True)
    run_count = models.PositiveBigIntegerField(default=0)
    created_at = models.DateTimeField(default=now)

    objects = CronJobQuerySet.as_manager()

    class Meta:
        verbose_name = _("cron job")
        verbose_name_plural = _("cron jobs")
        permissions = [("operate_cron", _("Can run, enable and disable cron jobs"))]
        ordering = ("name",)
        indexes = [
            models.Index(
                "next_run_at", name="ojs_cron_due", condition=Q(next_run_at__isnull=False)
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def is_late(self, now: datetime) -> bool:
        """Whether it has been due for so long that no process seems able to run it."""
        return self.next_run_at is not None and self.next_run_at <= now - LATE


class CronRun(models.Model):
    """The outcome of one occurrence; the link between a cron job and the jobs it made.

    Keyed by name, without a foreign key: a cron job that is deleted and registered again must still
    find the run that is being executed (§6.3).
    """

    cron_name = models.CharField(max_length=255)
    job_id = models.UUIDField(null=True, blank=True)
    scheduled_for = models.DateTimeField()
    decided_at = models.DateTimeField(default=now)
    outcome = models.CharField(max_length=9, choices=Outcome)
    reason = models.TextField(blank=True, default="")
    unfinished = models.BooleanField(default=False)
    """The job may not have finished yet; checked when the next run is due."""
    held = models.BooleanField(default=False)
    """The job is pending until the earlier runs have finished (`enqueue`, §6.1)."""

    objects: ClassVar[models.Manager[CronRun]] = models.Manager()

    class Meta:
        verbose_name = _("cron run")
        verbose_name_plural = _("cron runs")
        ordering = ("-id",)
        indexes = [
            models.Index("cron_name", "id", name="ojs_cronrun_name"),
            models.Index(
                "cron_name", "job_id", name="ojs_cronrun_open", condition=Q(unfinished=True)
            ),
            models.Index("cron_name", "id", name="ojs_cronrun_held", condition=Q(held=True)),
        ]

    def __str__(self) -> str:
        return f"{self.cron_name} {self.scheduled_for}: {self.outcome}"
