"""Worker pools: which queues a group of workers searches, in which order (OJS fair scheduling)."""

from __future__ import annotations

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class PoolStrategy(models.TextChoices):
    """In which order a fetch searches the queues of its pool (OJS fair scheduling §7)."""

    STRICT = "strict", _("strict: in the order given")
    ROUND_ROBIN = "round-robin", _("round-robin: each queue first in turn")
    WEIGHTED = "weighted", _("weighted: first as often as its weight says")
    LEAST_LOADED = "least-loaded", _("least-loaded: the deepest queue first")


class Pool(models.Model):
    """A group of workers that search the same queues (OJS fair scheduling §6)."""

    name = models.CharField(max_length=255, primary_key=True)
    queues = models.JSONField(default=list)
    strategy = models.CharField(
        max_length=12, choices=PoolStrategy, default=PoolStrategy.ROUND_ROBIN
    )
    weights = models.JSONField(default=dict, blank=True)
    """Queue → its weight; 1 where it is absent."""
    updated_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name = _("worker pool")
        verbose_name_plural = _("worker pools")
        ordering = ("name",)
        permissions = [("manage_pool", _("Can make, change and delete worker pools"))]

    def __str__(self) -> str:
        return self.name
