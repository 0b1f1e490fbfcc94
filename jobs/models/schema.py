"""Schemas of a job type's arguments, one for each version, and how they are enforced."""

from __future__ import annotations

from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class JobSchema(models.Model):
    """A JSON Schema of a version's arguments (OJS schema registry, OJS job versioning §6.1)."""

    type = models.CharField(max_length=255)
    version_number = models.BigIntegerField()
    """Major and minor version; see `jobs.spec.versions`."""
    patch = models.PositiveIntegerField(default=0, db_default=0)
    version = models.CharField(max_length=255)
    """As it was sent."""
    uri = models.CharField(max_length=600, blank=True, default="", db_default="")
    """The URI by which a job may name it (OJS HTTP §15)."""
    schema = models.JSONField()
    compatible_with = models.JSONField(default=list, blank=True)
    """Other versions whose arguments its readers understand, as declared at registration."""
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = _("job schema")
        verbose_name_plural = _("job schemas")
        ordering = ("type", "-version_number", "-patch")
        permissions = [
            ("manage_schema", _("Can register and delete job schemas, and set how they are used"))
        ]
        constraints = [
            models.UniqueConstraint(
                fields=("type", "version_number", "patch"), name="ojs_jobschema_version"
            ),
            # Empty for those that a server of an older release adds during an upgrade.
            models.UniqueConstraint(
                fields=("uri",), name="ojs_jobschema_uri", condition=~models.Q(uri="")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type}@{self.version}"

    @property
    def order(self) -> tuple[int, int]:
        """SemVer precedence among the versions of the type (OJS schema registry §6.3)."""
        return self.version_number, self.patch

    @property
    def sent_version(self) -> str | int:
        """The version as it was sent: a major version without a minor one is a number."""
        return int(self.version) if self.version.isdigit() else self.version


class ValidationMode(models.TextChoices):
    """What happens to a job whose arguments do not match (OJS schema registry §7.2)."""

    STRICT = "strict", _("strict: refuse jobs that do not match")
    WARN = "warn", _("warn: accept them with a warning")
    OFF = "off", _("off: schemas are documentation")


class SchemaMode(models.Model):
    """The validation mode of a job type, of a queue, of a type in a queue, or of all others."""

    type = models.CharField(max_length=255, blank=True, default="")
    """Empty: any type."""
    queue = models.CharField(max_length=128, blank=True, default="")
    """Empty: any queue."""
    mode = models.CharField(max_length=6, choices=ValidationMode)
    updated_at = models.DateTimeField(default=timezone.now)

    class Meta:
        verbose_name = _("validation mode")
        verbose_name_plural = _("validation modes")
        default_permissions = ()
        ordering = ("type", "queue")
        constraints = [
            models.UniqueConstraint(fields=("type", "queue"), name="ojs_schemamode_target")
        ]

    def __str__(self) -> str:
        return f"{self.type or '*'} in {self.queue or '*'}: {self.mode}"


class SchemaRegistry(models.Model):
    """One row, whose token changes with every change of a schema or a mode.

    Statements that store jobs compare it with the token of what the process has cached, so that no
    process validates by an older state.
    """

    id: Any = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    token = models.CharField(max_length=32)

    class Meta:
        verbose_name = _("schema registry")
        verbose_name_plural = _("schema registry")
        default_permissions = ()

    def __str__(self) -> str:
        return self.token
