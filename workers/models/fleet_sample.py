"""History of the fleet, by minute and by hour."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class FleetSample(models.Model):
    """The number of live workers in each state; for an hour, its highest sample."""

    resolution = models.PositiveIntegerField()
    start = models.DateTimeField()
    running = models.PositiveIntegerField(default=0)
    quiet = models.PositiveIntegerField(default=0)
    terminate = models.PositiveIntegerField(default=0)
    silent = models.PositiveIntegerField(default=0)
    capacity = models.PositiveBigIntegerField(default=0)

    class Meta:
        verbose_name = _("fleet sample")
        verbose_name_plural = _("fleet samples")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint("resolution", "start", name="ojs_fleetsample_start"),
        ]

    def __str__(self) -> str:
        return f"{self.start:%Y-%m-%d %H:%M} ({self.resolution} s)"
