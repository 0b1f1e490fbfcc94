"""Who may ask."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Scope(models.TextChoices):
    """What an API key may do."""

    PRODUCE = "produce", _("Produce: enqueue, look at and cancel jobs")
    WORK = "work", _("Work: fetch, settle, heartbeat")
    OPERATE = "operate", _("Operate: queues, dead letter, workers")
    OBSERVE = "observe", _("Observe: metrics and autoscaling figures, nothing else")


def all_scopes() -> list[str]:
    return [str(scope) for scope in Scope]


class ApiKey(models.Model):
    """A bearer key; only its hash is stored."""

    name = models.CharField(max_length=255)
    prefix = models.CharField(max_length=12, editable=False)
    """The first characters of the key, to recognise it by."""
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(default=all_scopes)
    worker_id = models.CharField(
        max_length=255,
        blank=True,
        default="",
        help_text=_("The only worker this key may speak for."),
    )
    label = models.CharField(
        max_length=255, blank=True, default="", help_text=_("Workers using this key must carry it.")
    )
    project = models.CharField(
        max_length=100,
        blank=True,
        default="",
        help_text=_("The only project whose jobs and workers this key sees; empty for all."),
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    """To the minute."""
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = _("API key")
        verbose_name_plural = _("API keys")
        ordering = ("name",)
        permissions = [("manage_keys", _("Can make, change and revoke API keys"))]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def is_usable(self) -> bool:
        return self.revoked_at is None

    def allows(self, scope: str) -> bool:
        return scope in self.scopes
