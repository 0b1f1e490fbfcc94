"""Tenants: limits and shares of projects (OJS multi-tenancy §8)."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class TenantQuerySet(models.QuerySet["Tenant"]):
    def limited(self) -> TenantQuerySet:
        """Tenants whose new jobs must be looked at: they have limits, or another priority."""
        return self.filter(
            Q(max_concurrency__isnull=False)
            | Q(max_enqueue_rate__isnull=False)
            | Q(max_queue_depth__isnull=False)
            | Q(max_scheduled__isnull=False)
            | Q(max_job_size__isnull=False)
            | ~Q(priority_boost=0)
        )


class Tenant(models.Model):
    """The limits of a project, and its share where tenants take turns.

    A project needs none. Its waiting and active jobs are counted each time, not stored: a counter
    could drift.
    """

    name = models.CharField(max_length=100, primary_key=True)
    """The project, or `_default` for jobs without one."""
    max_concurrency = models.PositiveIntegerField(null=True, blank=True)
    """Most jobs that may be active at once, in all queues together; null means unlimited."""
    max_enqueue_rate = models.JSONField(null=True, blank=True)
    """`limit` and `period` of its enqueues."""
    max_queue_depth = models.PositiveIntegerField(null=True, blank=True)
    """Most jobs that may wait, in all queues together."""
    max_scheduled = models.PositiveIntegerField(null=True, blank=True)
    """Most of them that may be scheduled."""
    max_job_size = models.PositiveIntegerField(null=True, blank=True)
    """Most bytes of JSON of a job's arguments and `meta`."""
    is_soft = models.BooleanField(_("soft"), default=False, db_default=False)
    """Enqueues beyond its limits are recorded, not refused (§15.5)."""
    fairness_weight = models.FloatField(default=1, db_default=1)
    """How many turns it has, compared with other tenants (§7.2)."""
    priority_boost = models.SmallIntegerField(default=0, db_default=0)
    """Added to the priority of its new jobs."""
    enqueues = models.JSONField(default=list, blank=True, editable=False)
    """Enqueues within the period of its rate: pairs of a slice's number and its count."""
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = TenantQuerySet.as_manager()

    class Meta:
        verbose_name = _("tenant")
        verbose_name_plural = _("tenants")
        ordering = ("name",)
        permissions = [("manage_tenant", _("Can set the limits and shares of tenants"))]

    def __str__(self) -> str:
        return self.name

    @property
    def limits(self) -> dict[str, Any]:
        """The limits that it has, by their names in OJS multi-tenancy §8.1."""
        names = (
            "max_concurrency",
            "max_enqueue_rate",
            "max_queue_depth",
            "max_scheduled",
            "max_job_size",
        )
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not None}
