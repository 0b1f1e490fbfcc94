"""Alert rules, the alerts that they raise, and the notifications that are sent about them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _

from jobs.store import clock


class AlertRule(models.Model):
    """Which problem is an alert, from when on, and who is notified."""

    name = models.CharField(max_length=100, unique=True)
    kind = models.CharField(max_length=40)
    """One of `alerts.problems.KINDS`."""
    enabled = models.BooleanField(default=True)
    limits = models.JSONField(default=dict, blank=True)
    """Name of a parameter of the kind → number."""
    queue = models.CharField(max_length=128, blank=True, default="")
    type = models.CharField(max_length=255, blank=True, default="")
    project = models.CharField(max_length=100, blank=True, default="")
    """The part of the server that it is about, where the kind can be narrowed down; empty: all."""
    begins_after = models.PositiveIntegerField(default=0)
    """Seconds that the problem must last before the alert begins."""
    ends_after = models.PositiveIntegerField(default=60)
    """Seconds that the problem must be over before the alert ends, so that it does not flap."""
    is_critical = models.BooleanField(default=False)
    """Notifies in quiet hours, too."""
    quiet_from = models.TimeField(null=True, blank=True)
    quiet_until = models.TimeField(null=True, blank=True)
    """The quiet hours of each day; across midnight if the end is before the beginning."""
    timezone = models.CharField(max_length=64, blank=True, default="")
    """Of the quiet hours; empty: that of the site."""

    emails = models.TextField(blank=True, default="")
    """One address a line."""
    webhook_url = models.CharField(max_length=2000, blank=True, default="")
    webhook_secret = models.CharField(max_length=255, blank=True, default="")
    job_type = models.CharField(max_length=255, blank=True, default="")
    job_queue = models.CharField(max_length=128, blank=True, default="")

    created_at = models.DateTimeField(default=now)
    checked_at = models.DateTimeField(null=True, blank=True)
    """When a process last compared it with the situation."""

    class Meta:
        verbose_name = _("alert rule")
        verbose_name_plural = _("alert rules")
        ordering = ("name",)
        default_permissions = ("view",)
        permissions = [("manage_alerts", _("Can make, change, test and delete alert rules"))]

    def __str__(self) -> str:
        return self.name


class AlertQuerySet(models.QuerySet["Alert"]):
    def unended(self) -> AlertQuerySet:
        """Those whose problem has been seen and that have not ended, begun or not."""
        return self.filter(ended_at__isnull=True)

    def begun(self) -> AlertQuerySet:
        """Open alerts."""
        return self.unended().filter(began_at__isnull=False)

    def ended(self) -> AlertQuerySet:
        return self.filter(ended_at__isnull=False)

    def unannounced(self) -> AlertQuerySet:
        """Alerts of which the last that was announced is no longer true."""
        begins = Q(began_at__isnull=False, ended_at__isnull=True, announced="")
        # Acknowledged before anyone was notified.
        begins &= Q(acknowledged_at__isnull=True)
        return self.filter(begins | Q(ended_at__isnull=False, announced=Announced.BEGIN))


class Announced(models.TextChoices):
    """What the receivers of a rule know of an alert."""

    BEGIN = "begin", _("its beginning")
    END = "end", _("its end")


class Alert(models.Model):
    """A problem that a rule found, from its beginning to its end."""

    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, related_name="alerts")
    kind = models.CharField(max_length=40)
    subject = models.CharField(max_length=255, blank=True, default="")
    """What it is about: the name of a queue or of a cron job; empty for the whole server."""
    text = models.TextField()
    """What was wrong when it was last seen, in the language of the site."""
    link = models.JSONField(default=dict)
    """The page it leads to: `model`, `key`, `query`."""

    since = models.DateTimeField()
    """When the problem was first seen."""
    seen_at = models.DateTimeField()
    """When it was last seen."""
    over_since = models.DateTimeField(null=True, blank=True)
    """When it was first not seen any more; null while it lasts."""
    began_at = models.DateTimeField(null=True, blank=True)
    """Null until the problem has lasted as long as the rule wants."""
    ended_at = models.DateTimeField(null=True, blank=True)
    announced = models.CharField(max_length=5, choices=Announced, blank=True, default="")

    acknowledged_at = models.DateTimeField(null=True, blank=True)
    acknowledged_by = models.CharField(max_length=255, blank=True, default="")
    acknowledged_until = models.DateTimeField(null=True, blank=True)
    """When it is announced again if it is still open; null: never."""
    reason = models.TextField(blank=True, default="")
    """Why it was acknowledged."""

    objects: ClassVar[Any] = AlertQuerySet.as_manager()

    class Meta:
        verbose_name = _("alert")
        verbose_name_plural = _("alerts")
        ordering = ("-id",)
        default_permissions = ("view",)
        permissions = [("acknowledge_alert", _("Can acknowledge alerts"))]
        constraints = [
            # However many processes find the same problem, it is one alert.
            models.UniqueConstraint(
                "rule", "subject", name="ojs_alert_open", condition=Q(ended_at__isnull=True)
            )
        ]
        indexes = [models.Index("ended_at", name="ojs_alert_ended")]

    def __str__(self) -> str:
        return f"{self.rule.name}: {self.subject}" if self.subject else self.rule.name

    @property
    def is_open(self) -> bool:
        return self.began_at is not None and self.ended_at is None

    @property
    def is_acknowledged(self) -> bool:
        until = self.acknowledged_until
        return self.acknowledged_at is not None and (until is None or until > clock.now())


class Channel(models.TextChoices):
    """How a notification is sent."""

    EMAIL = "email", _("e-mail")
    WEBHOOK = "webhook", _("webhook")
    JOB = "job", _("job")


class NotificationQuerySet(models.QuerySet["AlertNotification"]):
    def unfinished(self) -> NotificationQuerySet:
        return self.filter(sent_at__isnull=True, gave_up_at__isnull=True)

    def due(self) -> NotificationQuerySet:
        """Those to be sent now: of each rule and channel, the oldest that is not finished.

        So a receiver does not hear of an end before the beginning.
        """
        earlier = (
            AlertNotification.objects.unfinished()
            .filter(
                rule=models.OuterRef("rule"),
                channel=models.OuterRef("channel"),
                pk__lt=models.OuterRef("pk"),
            )
            .values("pk")
        )
        due = self.unfinished().filter(next_try_at__lte=Now())
        return due.filter(~models.Exists(earlier))


class AlertNotification(models.Model):
    """A notification of what a rule found, to be sent to one kind of receiver of the rule.

    Written together with the change of its alerts, and sent afterwards: none is lost, and a slow
    receiver holds up no evaluation.
    """

    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, related_name="notifications")
    alerts = models.ManyToManyField(Alert, related_name="notifications")
    channel = models.CharField(max_length=7, choices=Channel)
    document = models.JSONField()
    """What is sent; see docs/alerts.md."""
    created_at = models.DateTimeField()
    next_try_at = models.DateTimeField()
    """Not before then; a process that tries to send it first puts this off."""
    tries = models.PositiveIntegerField(default=0)
    last_error = models.TextField(blank=True, default="")
    sent_at = models.DateTimeField(null=True, blank=True)
    gave_up_at = models.DateTimeField(null=True, blank=True)
    """After the last of its tries."""

    objects: ClassVar[Any] = NotificationQuerySet.as_manager()

    class Meta:
        verbose_name = _("alert notification")
        verbose_name_plural = _("alert notifications")
        ordering = ("-id",)
        default_permissions = ("view",)
        indexes = [
            models.Index(
                "next_try_at",
                name="ojs_notification_due",
                condition=Q(sent_at__isnull=True, gave_up_at__isnull=True),
            ),
            models.Index("created_at", name="ojs_notification_created"),
        ]

    def __str__(self) -> str:
        return f"#{self.pk}"

    @property
    def waits_until(self) -> datetime | None:
        """When it is tried next; None once it is finished."""
        return self.next_try_at if self.sent_at is None and self.gave_up_at is None else None
