"""Subscriptions to events, their deliveries, and what is counted of them (OJS webhooks)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import urlsplit

from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from jobs.spec.identifiers import uuid7
from jobs.store import clock

LONGEST_SECRET = 255
LOOKED_AT = 1000


class WebhookFormat(models.TextChoices):
    """How an event is written (OJS CloudEvents §7.2 `content_mode`)."""

    OJS = "ojs", _("Open Job Spec")
    STRUCTURED = "cloudevents", _("CloudEvents, structured")
    BINARY = "cloudevents-binary", _("CloudEvents, binary")


class SubscriptionQuerySet(models.QuerySet["WebhookSubscription"]):
    def active(self) -> SubscriptionQuerySet:
        return self.filter(active=True)

    def failing(self) -> SubscriptionQuerySet:
        """Those that nothing has reached since an attempt failed."""
        return self.active().filter(failing_since__isnull=False)

    def disabled(self) -> SubscriptionQuerySet:
        """Those that the server has made inactive, not an operator."""
        return self.filter(active=False).exclude(disabled_reason="")


class WebhookSubscription(models.Model):
    """Which events are sent to which URL (OJS webhooks §5.1)."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    url = models.CharField(max_length=2000)
    events = models.JSONField(default=list)
    """Types of events; `job.*` matches what begins with `job.`, `*` everything."""
    queues = models.JSONField(default=list, blank=True)
    job_types = models.JSONField(default=list, blank=True)
    """Of the events that have one; empty: all."""
    metadata = models.JSONField(default=dict, blank=True)
    timeout = models.PositiveIntegerField(default=30)
    """Seconds that an attempt may take."""
    format = models.CharField(
        max_length=18, choices=WebhookFormat, default=WebhookFormat.OJS, db_default="ojs"
    )
    project = models.CharField(max_length=100, blank=True, default="")
    """The project of the key that made it: it gets the events of its jobs only; empty: all."""

    active = models.BooleanField(default=True)
    disabled_reason = models.TextField(blank=True, default="")
    """Why the server made it inactive; empty if an operator did, or if it is active."""
    begins_after = models.BigIntegerField(default=0)
    """The last event before it became active."""

    secret = models.CharField(max_length=LONGEST_SECRET, editable=False)
    previous_secret = models.CharField(
        max_length=LONGEST_SECRET, blank=True, default="", editable=False
    )
    previous_until = models.DateTimeField(null=True, blank=True, editable=False)
    """Deliveries are signed with both secrets until then (§8.3)."""

    created_at = models.DateTimeField(default=timezone.now, editable=False)
    created_by = models.CharField(max_length=255, blank=True, default="", editable=False)
    failing_since = models.DateTimeField(null=True, blank=True, editable=False)
    """The first failure since a delivery last succeeded."""
    delivered_at = models.DateTimeField(null=True, blank=True, editable=False)
    """When a delivery last succeeded."""

    objects: ClassVar[Any] = SubscriptionQuerySet.as_manager()

    class Meta:
        verbose_name = _("webhook subscription")
        verbose_name_plural = _("webhook subscriptions")
        ordering = ("id",)
        default_permissions = ("view",)
        permissions = [("manage_webhooks", _("Can make, change, test and delete webhooks"))]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """Its id on the wire."""
        return f"sub_{self.pk}"

    @property
    def host(self) -> str:
        """The host of its URL. The path is not shown to everyone: it may be a password."""
        return urlsplit(self.url).hostname or ""

    def secrets_at(self, moment: datetime) -> list[str]:
        """The secrets that sign a delivery, the current one first."""
        until = self.previous_until
        both = self.previous_secret and until is not None and moment < until
        return [self.secret, self.previous_secret] if both else [self.secret]

    @property
    def has_two_secrets(self) -> bool:
        return len(self.secrets_at(clock.now())) > 1


class DeliveryState(models.TextChoices):
    PENDING = "pending", _("pending")
    DELIVERED = "delivered", _("delivered")
    DEAD = "dead", _("dead")


class DeliveryQuerySet(models.QuerySet["WebhookDelivery"]):
    def pending(self) -> DeliveryQuerySet:
        return self.filter(state=DeliveryState.PENDING)

    def jobless(self) -> DeliveryQuerySet:
        """Those to be sent that no job carries: their subscription was not active, or an earlier
        release wrote them."""
        return self.pending().filter(job_id__isnull=True, subscription__active=True)

    def finished(self) -> DeliveryQuerySet:
        return self.exclude(state=DeliveryState.PENDING)

    def lost_lately(self) -> DeliveryQuerySet:
        """Those that are dead, among the newest `LOOKED_AT` that ended within the last hour."""
        lately = self.finished().filter(finished_at__gte=clock.now() - timedelta(hours=1))
        newest = lately.order_by("-finished_at").values("pk")[:LOOKED_AT]
        return self.filter(pk__in=newest, state=DeliveryState.DEAD)


class WebhookDelivery(models.Model):
    """One event for one subscription, with all attempts to deliver it (OJS webhooks §7)."""

    id = models.UUIDField(primary_key=True, default=uuid7, editable=False)
    subscription = models.ForeignKey(
        WebhookSubscription, on_delete=models.CASCADE, related_name="deliveries", db_index=False
    )
    event_id = models.CharField(max_length=40)
    event_type = models.CharField(max_length=40)
    subject = models.CharField(max_length=255, blank=True, default="")
    body = models.TextField()
    """What is sent, byte for byte: every attempt has the same."""
    state = models.CharField(
        max_length=9, choices=DeliveryState, default=DeliveryState.PENDING, editable=False
    )
    created_at = models.DateTimeField()
    tries = models.PositiveIntegerField(default=0)
    """Attempts since it was made or last replayed, including the one that is being made."""
    next_try_at = models.DateTimeField()
    """Not before then."""
    job_id = models.UUIDField(null=True, editable=False)
    """The job that carries it, or carried it last; None if it waits for one, and if it was sent
    without one. Only this job may send it."""
    attempts = models.JSONField(default=list)
    """The latest attempts, the oldest first: `at`, `duration_ms`, and `status` or `error`."""
    finished_at = models.DateTimeField(null=True, blank=True)

    objects: ClassVar[Any] = DeliveryQuerySet.as_manager()

    class Meta:
        verbose_name = _("webhook delivery")
        verbose_name_plural = _("webhook deliveries")
        ordering = ("-id",)
        default_permissions = ("view",)
        indexes = [
            models.Index(
                "subscription",
                "next_try_at",
                name="ojs_webhook_due",
                condition=Q(state="pending"),
            ),
            models.Index(
                "id",
                name="ojs_webhook_jobless",
                condition=Q(state="pending", job_id__isnull=True),
            ),
            models.Index(fields=["subscription", "-id"], name="ojs_webhook_newest"),
            models.Index("finished_at", name="ojs_webhook_finished", condition=~Q(state="pending")),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """Its id on the wire, the same for all attempts (§7.5)."""
        return f"del_{self.pk}"

    @property
    def last_attempt(self) -> dict[str, Any]:
        return self.attempts[-1] if self.attempts else {}

    @property
    def last_error(self) -> str:
        return str(self.last_attempt.get("error", ""))

    @property
    def waits_until(self) -> datetime | None:
        """When it is tried next; None once it is finished."""
        return self.next_try_at if self.state == DeliveryState.PENDING else None


class WebhookCounter(models.Model):
    """Attempts of a subscription by type of event, for the metrics (OJS webhooks §11.2).

    It has no foreign key: counters must not decrease when a subscription is deleted.
    """

    subscription_id = models.UUIDField()
    event_type = models.CharField(max_length=40)
    success = models.BigIntegerField(default=0)
    failed = models.BigIntegerField(default=0)
    dead = models.BigIntegerField(default=0)
    durations = models.JSONField(default=dict)
    retries = models.JSONField(default=dict)

    class Meta:
        verbose_name = _("webhook counter")
        verbose_name_plural = _("webhook counters")
        constraints = [
            models.UniqueConstraint("subscription_id", "event_type", name="ojs_webhook_counter")
        ]

    def __str__(self) -> str:
        return f"{self.subscription_id} {self.event_type}"
