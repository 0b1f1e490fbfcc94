"""Who may ask."""

from __future__ import annotations

from collections.abc import Collection

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Scope(models.TextChoices):
    """What an API key may do."""

    PRODUCE = "produce", _("Produce: enqueue, look at and cancel jobs")
    WORK = "work", _("Work: fetch, settle, heartbeat")
    OPERATE = "operate", _("Operate: queues, dead letter, workers, the whole Admin API")
    OBSERVE = "observe", _("Observe: metrics and autoscaling figures, nothing else")
    # The scopes of the Admin API §13.1, for keys that shall do less than the first three.
    DATA_READ = "ojs:data:read", _("Read what producers and workers may read")
    DATA_WRITE = "ojs:data:write", _("Send what producers and workers may send")
    ADMIN_READ = "ojs:admin:read", _("Admin API: read")
    ADMIN_WRITE = "ojs:admin:write", _("Admin API: change what can be changed back")
    ADMIN_PURGE = "ojs:admin:purge", _("Admin API: delete jobs for good")
    ADMIN_ARGS = "ojs:admin:args", _("Admin API: see arguments that are redacted for others")

    def is_opened_by(self, scopes: Collection[str], *, reads: bool) -> bool:
        """Whether a key with `scopes` may do what asks for this one.

        Args:
            reads: the request changes nothing.
        """
        if self in scopes:
            return True
        if self in (Scope.PRODUCE, Scope.WORK):
            return (Scope.DATA_READ if reads else Scope.DATA_WRITE) in scopes
        # Who operates does so through any door, but seeing secrets is asked for by its name.
        administers = (Scope.ADMIN_READ, Scope.ADMIN_WRITE, Scope.ADMIN_PURGE)
        return self in administers and Scope.OPERATE in scopes


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
