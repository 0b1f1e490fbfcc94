"""Current job specifications, and the lines that workers write about a job they run."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from .job import Job


class JobSpec(models.Model):
    """The current form of a job type; workers built for another version get no such jobs.

    Registered explicitly, usually by a deployment (Rota, Handling Job Spec Versions).
    """

    type = models.CharField(max_length=255, primary_key=True)
    checksum = models.CharField(max_length=255)
    registered_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = _("job spec")
        verbose_name_plural = _("job specs")
        ordering = ("type",)
        permissions = [("register_spec", _("Can register and withdraw job specs"))]

    def __str__(self) -> str:
        return f"{self.type} {self.checksum}"


class JobLog(models.Model):
    """A line from a worker about a job it holds: a log line, or an alert for operators."""

    class Kind(models.TextChoices):
        LOG = "log", _("log")
        ALERT = "alert", _("alert")

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="logs", db_constraint=False)
    kind = models.CharField(max_length=5, choices=Kind, default=Kind.LOG)
    level = models.CharField(max_length=16, blank=True, default="")
    message = models.TextField()
    worker_id = models.CharField(max_length=255, blank=True, default="")
    attempt = models.PositiveIntegerField(null=True, blank=True)
    time = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = _("log line")
        verbose_name_plural = _("log lines")
        ordering = ("id",)

    def __str__(self) -> str:
        return f"{self.kind} {self.message[:80]}"
