"""Schemas of a job type's arguments, one for each version."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class JobSchema(models.Model):
    """A JSON Schema of a version's arguments (OJS job versioning §6.1).

    Kept for producers and workers to read; no job is validated against it.
    """

    type = models.CharField(max_length=255)
    version_number = models.BigIntegerField()
    """See `jobs.spec.versions`."""
    version = models.CharField(max_length=255)
    """As it was sent."""
    schema = models.JSONField()
    compatible_with = models.JSONField(default=list, blank=True)
    """Other versions whose arguments its readers understand, as declared at registration."""
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = _("job schema")
        verbose_name_plural = _("job schemas")
        ordering = ("type", "-version_number")
        constraints = [
            models.UniqueConstraint(fields=("type", "version_number"), name="ojs_jobschema_version")
        ]

    def __str__(self) -> str:
        return f"{self.type}@{self.version}"
