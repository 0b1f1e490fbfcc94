"""Audit: one row for each action of an operator, whether by admin, API or shell."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Source(models.TextChoices):
    """The interface that an operator used."""

    ADMIN = "admin", _("admin")
    API = "api", _("API")
    SHELL = "shell", _("shell")
    SERVER = "server", _("server")
    """Carried out later, on behalf of an operator: a rolling drain."""


REFUSED = "refuse_request"
"""Verb of a row that counts refused requests, written by `jobs.access.refusals`."""

MARKED = ("pause_queue", "resume_queue", "drain_queue", "drain_fleet", "maintenance")
"""Verbs of actions that explain a chart, and are marked in it."""


class OperatorAction(models.Model):
    """Who did what to how many, why, and from where. Never changed, never deleted by hand.

    Refused requests are recorded here too, as actions of the server; only these are deleted when
    they are old. Erasing jobs removes them from selections.
    """

    # No foreign keys: the record outlives its actor and its targets, and a site's users may live
    # in another database.
    done_at = models.DateTimeField(default=timezone.now)
    actor = models.CharField(max_length=255)
    """A user of the site, an API key, or the user of the shell."""
    source = models.CharField(max_length=6, choices=Source)
    address = models.CharField(max_length=255, blank=True, default="")
    """Network address of a request, host name of a shell."""
    verb = models.CharField(max_length=40)
    """The permission it takes, without its app: `quiet_worker`."""
    target_kind = models.CharField(max_length=40)
    """The model of the targets: `worker`."""
    count = models.PositiveIntegerField(default=0)
    """How many were changed."""
    selection = models.JSONField(default=dict, blank=True)
    """How they were chosen (`labels`, `filter`, …), and in `ids` the first of them."""
    reason = models.TextField(blank=True, default="")

    class Meta:
        verbose_name = _("operator action")
        verbose_name_plural = _("operator actions")
        ordering = ("-id",)
        indexes = [
            # For counting those of the last minute, and finding the old ones.
            models.Index(
                fields=["done_at"], condition=models.Q(verb=REFUSED), name="ojs_action_refused"
            ),
            # For the marks of charts, and for reading the audit by date.
            models.Index(fields=["done_at"], name="ojs_action_done"),
        ]

    def __str__(self) -> str:
        return f"{self.verb} ({self.count}) by {self.actor}"
