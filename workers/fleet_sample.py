"""How the fleet was, minute by minute and hour by hour."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Count, F, Q, Sum
from django.db.models.functions import Coalesce, Now
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from jobs import rollup

from .lifecycle import WorkerState

STATES = ["running", "quiet", "terminate", "silent"]


class FleetSample(models.Model):
    """How many live workers were in which state; the highest sample of an hour."""

    resolution = models.PositiveIntegerField()
    start = models.DateTimeField()
    running = models.PositiveIntegerField(default=0)
    quiet = models.PositiveIntegerField(default=0)
    terminate = models.PositiveIntegerField(default=0)
    silent = models.PositiveIntegerField(default=0)
    capacity = models.PositiveBigIntegerField(default=0)

    objects: ClassVar[Any] = models.Manager()

    class Meta:
        app_label = "ojs_workers"
        verbose_name = _("fleet sample")
        verbose_name_plural = _("fleet samples")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint("resolution", "start", name="ojs_fleetsample_start"),
        ]

    def __str__(self) -> str:
        return f"{self.start:%Y-%m-%d %H:%M} ({self.resolution} s)"


def sample() -> int:
    """Count the live workers by state; always returns 0: nothing is left to do."""
    from .models import Worker

    silent = Q(last_heartbeat_at__lte=Now() - F("heartbeat_timeout"))
    states = {
        str(state): Count("pk", filter=Q(state=state) & ~silent)
        for state in (WorkerState.RUNNING, WorkerState.QUIET, WorkerState.TERMINATE)
    }
    found = Worker.objects.live().aggregate(
        **states,
        silent=Count("pk", filter=silent),
        capacity=Coalesce(Sum("concurrency", filter=Q(state=WorkerState.RUNNING)), 0),
    )
    minute = rollup.floor(timezone.now(), rollup.MINUTE)
    names = [*STATES, "capacity"]
    FleetSample.objects.bulk_create(
        [FleetSample(resolution=60, start=minute, **found)],
        update_conflicts=True,
        unique_fields=["resolution", "start"],
        update_fields=names,
    )
    rollup.sum_hours(FleetSample, minute, minute + rollup.MINUTE, [], names)
    rollup.prune(FleetSample)
    return 0
