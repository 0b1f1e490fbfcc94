"""Rate limits by key, and answered bulk requests."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class RateLimit(models.Model):
    """A rate limit partition: its policy and its state (OJS rate limiting §3, §6).

    Its running jobs are counted each time, not stored: a counter could drift.
    """

    key = models.CharField(max_length=255, primary_key=True)
    """A client's key, or `queue/<name>` for the limit of a whole queue."""
    policy = models.JSONField(default=dict)
    """`concurrency`, `rate`, `throttle`, `on_limit` as given by the newest job."""
    override = models.JSONField(default=dict, blank=True)
    """An operator's temporary override of the policy (§10.2)."""
    override_until = models.DateTimeField(null=True, blank=True)
    held_until = models.DateTimeField(null=True, blank=True)
    """A handler reported that its API accepts no requests before then (§9.1)."""
    starts = models.JSONField(default=list, blank=True)
    """Starts within the window: pairs of a slice's number and its count, oldest first."""
    next_at = models.DateTimeField(null=True, blank=True)
    """The throttle's arrival time: a start before it comes early."""
    closed_until = models.DateTimeField(null=True, blank=True)
    """No job starts before then in any case; a fetch need not check."""
    exceeded_at = models.DateTimeField(null=True, blank=True)
    """Since when jobs wait for it, which has been recorded."""
    updated_at = models.DateTimeField(default=timezone.now)

    objects: ClassVar[models.Manager[RateLimit]] = models.Manager()

    class Meta:
        verbose_name = _("rate limit")
        verbose_name_plural = _("rate limits")
        ordering = ("key",)

    def __str__(self) -> str:
        return self.key

    def effective(self, now: datetime) -> dict[str, Any]:
        """The policy, with an operator's temporary override applied."""
        lifted = self.override_until is not None and self.override_until <= now
        return self.policy if lifted or not self.override else self.policy | self.override


class BulkRequest(models.Model):
    """A bulk request that was answered, so that a repeat is not executed (OJS bulk §10)."""

    operation = models.CharField(max_length=20)
    key = models.CharField(max_length=64)
    """SHA-256 of what the client sent, and of its project."""
    fingerprint = models.CharField(max_length=64)
    """SHA-256 of the request: a different request under the same key is an error."""
    status = models.PositiveSmallIntegerField(null=True)
    response = models.JSONField(null=True)
    created_at = models.DateTimeField()

    objects: ClassVar[models.Manager[BulkRequest]] = models.Manager()

    class Meta:
        verbose_name = _("bulk request")
        verbose_name_plural = _("bulk requests")
        constraints = [
            models.UniqueConstraint(fields=["operation", "key"], name="ojs_bulk_request_once")
        ]

    def __str__(self) -> str:
        return f"{self.operation} {self.key}"
