"""Queues, and what operators decided about them."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..store import clock

IS_PAUSED = Q(paused_at__isnull=False) & (Q(paused_until__isnull=True) | Q(paused_until__gt=Now()))


class QueueQuerySet(models.QuerySet["Queue"]):
    def paused(self) -> QueueQuerySet:
        """Queues from which nothing is fetched now; a pause may end automatically."""
        return self.filter(IS_PAUSED)

    def closed_to(self, pool: str) -> QueueQuerySet:
        """Queues that are paused, or isolated by another pool than this (fair scheduling §6.3)."""
        return self.filter(IS_PAUSED | ~Q(isolated_by__in=("", pool)))

    def limited(self) -> QueueQuerySet:
        """Queues whose fetches must check limits (OJS worker protocol §8.3, rate limiting §8)."""
        return self.filter(Q(concurrency__isnull=False) | Q(has_limits=True))

    def guarded(self) -> QueueQuerySet:
        """Queues that do not simply accept every job: `jobs.engine.bounds` decides."""
        return self.filter(is_guarded=True)


class Queue(models.Model):
    """A queue that has been used, and what operators decided about it."""

    name = models.CharField(max_length=128, primary_key=True)
    paused_at = models.DateTimeField(null=True, blank=True)
    paused_until = models.DateTimeField(null=True, blank=True)
    paused_by = models.CharField(max_length=255, blank=True, default="")
    pause_reason = models.TextField(blank=True, default="")
    concurrency = models.PositiveIntegerField(
        null=True, blank=True, help_text=_("Most jobs of this queue that may be active at once.")
    )
    has_limits = models.BooleanField(default=False, db_default=False)
    """It has a rate limit, or has had jobs with one."""
    has_tenants = models.BooleanField(default=False, db_default=False)
    """Tenants take turns in it: so its configuration says, or one of them has a limit of active
    jobs."""
    turn = models.JSONField(default=dict, db_default={}, blank=True)
    """Whose turn it is; see `jobs.engine.turns`."""
    isolated_by = models.CharField(max_length=255, blank=True, default="", db_default="")
    """The worker pool whose workers alone get its jobs (OJS fair scheduling §6.3); or empty."""
    is_guarded = models.BooleanField(default=False, db_default=False)
    """Its configuration has rules for new jobs; derived from `config`."""
    max_depth = models.PositiveIntegerField(null=True, blank=True)
    """Most jobs that may wait (OJS backpressure §6); null means unbounded."""
    is_pressed = models.BooleanField(default=False, db_default=False)
    """More jobs wait than the warning threshold, and that has been recorded."""
    is_draining = models.BooleanField(default=False, db_default=False)
    """It accepts no new jobs (OJS queue configuration §5.1)."""
    config = models.JSONField(default=dict, db_default={}, blank=True)
    """The configuration as `jobs.spec.queue_config` checked it (OJS queue configuration §6)."""
    created_at = models.DateTimeField(default=timezone.now)
    updated_at = models.DateTimeField(null=True, blank=True)
    """When the configuration last changed."""

    objects = QueueQuerySet.as_manager()

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        ordering = ("name",)
        permissions = [
            ("pause_queue", _("Can pause and resume queues")),
            ("purge_queue", _("Can delete the jobs of a queue")),
        ]
        indexes = [
            # Empty where there is no guarded queue: every enqueue reads it.
            models.Index("name", name="ojs_queue_guarded", condition=Q(is_guarded=True)),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def status(self) -> str:
        """`paused`, `draining` or `active` (OJS queue configuration §5.1)."""
        return "paused" if self.is_paused else "draining" if self.is_draining else "active"

    @property
    def is_paused(self) -> bool:
        return self.paused_at is not None and (
            self.paused_until is None or self.paused_until > clock.now()
        )


class QueuePolicy(models.Model):
    """The configuration that new queues get (OJS queue configuration §7)."""

    name = models.CharField(max_length=128, primary_key=True)
    """Always `_default`: there is one policy."""
    config = models.JSONField(default=dict, blank=True)
    updated_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("queue policy")
        verbose_name_plural = _("queue policies")

    def __str__(self) -> str:
        return self.name


class Listener(models.Model):
    """A process that waits for work with LISTEN; without any, nothing is notified."""

    name = models.CharField(max_length=255, primary_key=True)
    """host:pid"""
    seen_at = models.DateTimeField()

    class Meta:
        verbose_name = _("listener")
        verbose_name_plural = _("listeners")

    def __str__(self) -> str:
        return self.name
