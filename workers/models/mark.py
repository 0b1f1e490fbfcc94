"""Marks: moments that explain a chart."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from jobs.models import Source


class MarkKind(models.TextChoices):
    """Pauses, drains and maintenance are not among them: the audit has these."""

    DEPLOYMENT = "deployment", _("deployment")
    NOTE = "note", _("note")


class Mark(models.Model):
    """A moment that charts show: a new version began to run, or an operator made a note."""

    kind = models.CharField(_("kind"), max_length=10, choices=MarkKind, default=MarkKind.NOTE)
    text = models.CharField(_("text"), max_length=255)
    """The version that was deployed, or the note."""
    at = models.DateTimeField(_("time"), default=timezone.now)
    project = models.CharField(_("project"), max_length=100, blank=True, default="")
    """Empty means all."""
    version = models.CharField(max_length=255, blank=True, default="", editable=False)
    """The version of the worker that made this mark by registering; empty for other marks."""
    by = models.CharField(_("by"), max_length=255, blank=True, default="")
    """A user of the site, an API key, or the id of the first worker with a version."""
    source = models.CharField(_("source"), max_length=6, choices=Source)

    class Meta:
        verbose_name = _("mark")
        verbose_name_plural = _("marks")
        ordering = ("-at", "-id")
        default_permissions = ("add", "view")
        constraints = [
            # However many workers register with a new version at once, one makes the mark.
            models.UniqueConstraint(
                "project", "version", name="ojs_one_mark_a_version", condition=~Q(version="")
            )
        ]
        indexes = [models.Index("at", name="ojs_mark_at")]

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"
