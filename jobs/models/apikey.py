"""API keys and their scopes."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..spec.worker_ids import SEPARATOR, has_control_characters, is_reserved
from ..store import clock


class Scope(models.TextChoices):
    """What an API key may do."""

    PRODUCE = "produce", _("Produce: enqueue, look at and cancel jobs")
    WORK = "work", _("Work: fetch, settle, heartbeat")
    OPERATE = "operate", _("Operate: queues, dead letter, workers, the whole Admin API")
    OBSERVE = "observe", _("Observe: metrics and autoscaling figures, nothing else")
    # The scopes of the Admin API §13.1, for keys that may do less than the first three.
    DATA_READ = "ojs:data:read", _("Read what producers and workers may read")
    DATA_WRITE = "ojs:data:write", _("Send what producers and workers may send")
    ADMIN_READ = "ojs:admin:read", _("Admin API: read")
    ADMIN_WRITE = "ojs:admin:write", _("Admin API: change what can be changed back")
    ADMIN_PURGE = "ojs:admin:purge", _("Admin API: delete jobs for good")
    ADMIN_ARGS = "ojs:admin:args", _("Admin API: see arguments that are redacted for others")

    def is_opened_by(self, scopes: Collection[str], *, reads: bool) -> bool:
        """Whether a key with `scopes` may do what this scope is required for.

        Args:
            reads: the request changes nothing.
        """
        if self in scopes:
            return True
        if self in (Scope.PRODUCE, Scope.WORK):
            return (Scope.DATA_READ if reads else Scope.DATA_WRITE) in scopes
        # An operator may act through any interface, but seeing secrets takes its own scope.
        administers = (Scope.ADMIN_READ, Scope.ADMIN_WRITE, Scope.ADMIN_PURGE)
        return self in administers and Scope.OPERATE in scopes


def all_scopes() -> list[str]:
    return [str(scope) for scope in Scope]


EXPIRES_SOON = timedelta(days=14)
"""How long before its expiry a key is pointed out to operators."""


class ApiKeyQuerySet(models.QuerySet["ApiKey"]):
    """Names for the conditions of a key. The database's clock decides."""

    def with_secrets(self, digests: Collection[str]) -> ApiKeyQuerySet:
        """The keys whose current or previous secrets have these hashes."""
        return self.filter(Q(digest__in=digests) | Q(previous_digest__in=digests))

    def usable(self) -> ApiKeyQuerySet:
        """Neither revoked nor expired."""
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=Now()), revoked_at=None)

    def revoked(self) -> ApiKeyQuerySet:
        return self.filter(revoked_at__isnull=False)

    def expired(self) -> ApiKeyQuerySet:
        """Past their expiry, and not revoked before."""
        return self.filter(expires_at__lte=Now(), revoked_at=None)

    def expiring(self) -> ApiKeyQuerySet:
        """Usable now, but expiring soon."""
        return self.usable().filter(expires_at__lte=Now() + EXPIRES_SOON)

    def in_rotation(self) -> ApiKeyQuerySet:
        """Usable keys whose previous secret is still valid."""
        return self.usable().filter(previous_until__gt=Now())


class ApiKey(models.Model):
    """A bearer key; only hashes of its secret and of the previous one are stored.

    Scopes and bindings belong to the key, secrets change: `rotate_key()` creates a new one, and the
    previous one is valid until `previous_until`. Revocation and expiry end both.
    """

    name = models.CharField(max_length=255)
    prefix = models.CharField(max_length=12, editable=False)
    """The first characters of the secret, to recognize it by."""
    digest = models.CharField(max_length=64, unique=True, editable=False)
    previous_prefix = models.CharField(
        max_length=12, blank=True, default="", db_default="", editable=False
    )
    previous_digest = models.CharField(
        max_length=64, unique=True, null=True, blank=True, editable=False
    )
    """Hash of the secret before the last rotation. It is kept after it has expired, so that a
    client that still sends it gets the reason for the refusal."""
    previous_until = models.DateTimeField(null=True, blank=True, editable=False)
    """The previous secret is refused from then on."""
    previous_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    """When the previous secret was last used since the rotation, to the minute: shows whether
    clients have not switched yet."""
    rotated_at = models.DateTimeField(null=True, blank=True, editable=False)
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
    expires_at = models.DateTimeField(
        _("expires"),
        null=True,
        blank=True,
        help_text=_("When the key expires. Leave empty for a key that does not expire."),
    )
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    """To the minute, or to `API_KEY_CACHE` if that is longer."""
    last_used_address = models.CharField(
        max_length=255, blank=True, default="", db_default="", editable=False
    )
    """Network address of the client, or of the proxy before the server."""
    last_used_protocol = models.CharField(
        max_length=16, blank=True, default="", db_default="", editable=False
    )
    """Name of a protocol of `OJS["WORKER_PROTOCOLS"]`."""
    revoked_at = models.DateTimeField(null=True, blank=True)

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        verbose_name = _("API key")
        verbose_name_plural = _("API keys")
        ordering = ("name",)
        permissions = [("manage_keys", _("Can make, change and revoke API keys"))]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    def clean_fields(self, exclude: Collection[str] | None = None) -> None:
        super().clean_fields(exclude=exclude)
        if "worker_id" in (exclude or ()):
            return
        if has_control_characters(self.worker_id):
            raise ValidationError(
                {"worker_id": gettext("A worker’s id contains no control characters.")}
            )
        if is_reserved(self.worker_id):
            text = gettext("A worker’s id does not contain “%(separator)s”. Choose the project.")
            raise ValidationError({"worker_id": text % {"separator": SEPARATOR}})

    @property
    def is_usable(self) -> bool:
        """Neither revoked nor expired, by this process's clock: for display, not for decisions."""
        return self.revoked_at is None and not self.is_expired

    @property
    def is_expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= clock.now()

    @property
    def is_expiring(self) -> bool:
        soon = clock.now() + EXPIRES_SOON
        return self.is_usable and self.expires_at is not None and self.expires_at <= soon

    def allows(self, scope: str) -> bool:
        return scope in self.scopes
