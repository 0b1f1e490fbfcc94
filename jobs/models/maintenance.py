"""Maintenance mode: one switch for the whole server."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class MaintenanceQuerySet(models.QuerySet["Maintenance"]):
    def on(self) -> MaintenanceQuerySet:
        """The switch, if it is on now; it may end automatically."""
        return self.filter(Q(until__isnull=True) | Q(until__gt=Now()))


class Maintenance(models.Model):
    """Maintenance mode: while this one row exists, nothing is fetched (OJS admin API §12.1)."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    since = models.DateTimeField()
    until = models.DateTimeField(null=True, blank=True)
    """When it ends automatically; null means that an operator ends it."""
    estimated_until = models.DateTimeField(null=True, blank=True)
    """When the operator expects it to be over; information only."""
    refuses_jobs = models.BooleanField(default=False)
    """Enqueues are refused as well."""
    reason = models.TextField(blank=True, default="")
    started_by = models.CharField(max_length=255, blank=True, default="")

    objects = MaintenanceQuerySet.as_manager()

    class Meta:
        verbose_name = _("maintenance mode")
        verbose_name_plural = _("maintenance mode")
        default_permissions = ()
        permissions = [
            ("maintenance", _("Can switch maintenance mode on and off")),
            ("view_dashboard", _("Can see the dashboard")),
        ]

    def __str__(self) -> str:
        return self.reason or "maintenance"
