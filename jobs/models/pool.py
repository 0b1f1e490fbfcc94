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
    concurrency = models.PositiveIntegerField(
        null=True, blank=True, help_text=_("Most jobs that may be active at once through the pool.")
    )
    is_isolated = models.BooleanField(
        _("isolated"),
        default=False,
        db_default=False,
        help_text=_("No other workers get jobs of its queues."),
    )
    starvation_prevention = models.JSONField(
        _("starvation prevention"), default=dict, db_default={}, blank=True
    )
    """As `jobs.spec.pools` checked it (§8); empty for none."""
    has_rules = models.BooleanField(default=False, db_default=False, editable=False)
    """Fetches through it take turns at its row: it has a limit, or prevents starvation."""
    dispatches = models.JSONField(default=dict, db_default={}, blank=True, editable=False)
    """What its queues got lately; see `jobs.engine.pool_rules`."""
    full_since = models.DateTimeField(null=True, blank=True, editable=False)
    """Since when a fetch has found its limit reached, which has been recorded."""
    updated_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        verbose_name = _("worker pool")
        verbose_name_plural = _("worker pools")
        ordering = ("name",)
        permissions = [("manage_pool", _("Can make, change and delete worker pools"))]

    def __str__(self) -> str:
        return self.name


class PoolPlace(models.Model):
    """A job that was claimed through a pool with a limit, and takes a place in it while it runs."""

    pool = models.CharField(max_length=255)
    # No foreign key: a place whose job has moved on is found and deleted by the next fetch.
    job_id = models.UUIDField()
    started_at = models.DateTimeField()
    """The start of that attempt: a later one may have been claimed elsewhere."""

    class Meta:
        verbose_name = _("place in a worker pool")
        verbose_name_plural = _("places in worker pools")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint("pool", "job_id", name="ojs_poolplace_once"),
        ]

    def __str__(self) -> str:
        return f"{self.pool} {self.job_id}"
