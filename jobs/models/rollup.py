"""Roll-ups by the minute, by the hour and by the day: the source of every chart."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class Rollup(models.Model):
    """The activity of all queues in one minute or hour, and their depth."""

    resolution = models.PositiveIntegerField()
    """Seconds: 60 or 3600."""
    start = models.DateTimeField()
    enqueued = models.PositiveBigIntegerField(default=0, db_default=0)
    completed = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    """Attempts that failed, whatever became of their jobs."""
    discarded = models.PositiveBigIntegerField(default=0)
    waits = models.JSONField(default=dict)
    """Histogram of the completed jobs' waits: number of bucket → jobs (see `histogram`)."""
    runs = models.JSONField(default=dict)
    """Histogram of their run times."""
    available = models.PositiveBigIntegerField(null=True)
    """A sample of the depth; for an hour, the highest. Null where none was taken."""
    active = models.PositiveBigIntegerField(null=True)
    delayed = models.PositiveBigIntegerField(null=True)
    """Scheduled and retryable."""
    oldest_wait = models.DurationField(null=True)
    """How long the available job had waited that waited longest; zero if none waited."""

    class Meta:
        verbose_name = _("roll-up")
        verbose_name_plural = _("roll-ups")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint("resolution", "start", name="ojs_rollup_start"),
        ]

    def __str__(self) -> str:
        return f"{self.start:%Y-%m-%d %H:%M} ({self.resolution} s)"


class PartRollup(models.Model):
    """The activity of a part of the jobs in a minute, hour or day in which anything happened."""

    resolution = models.PositiveIntegerField()
    """Seconds: 60, 3600 or, of a day of UTC that is over, 86,400."""
    start = models.DateTimeField()
    enqueued = models.PositiveBigIntegerField(default=0)
    completed = models.PositiveBigIntegerField(default=0)
    failed = models.PositiveBigIntegerField(default=0)
    discarded = models.PositiveBigIntegerField(default=0)
    waits = models.JSONField(default=dict)
    runs = models.JSONField(default=dict)
    """All as in `Rollup`."""

    class Meta:
        abstract = True


class QueueRollup(PartRollup):
    """The activity of one queue in a minute, hour or day in which anything happened."""

    queue = models.CharField(max_length=128)

    class Meta:
        verbose_name = _("roll-up of a queue")
        verbose_name_plural = _("roll-ups of queues")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint("queue", "resolution", "start", name="ojs_queue_rollup_start"),
        ]
        indexes = [models.Index("resolution", "start", name="ojs_queue_rollup_time")]

    def __str__(self) -> str:
        return f"{self.queue} {self.start:%Y-%m-%d %H:%M} ({self.resolution} s)"


class TypeRollup(PartRollup):
    """The activity of one type of jobs in a minute, hour or day in which anything happened."""

    type = models.CharField(max_length=255)

    class Meta:
        verbose_name = _("roll-up of a job type")
        verbose_name_plural = _("roll-ups of job types")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint("type", "resolution", "start", name="ojs_type_rollup_start"),
        ]
        indexes = [models.Index("resolution", "start", name="ojs_type_rollup_time")]

    def __str__(self) -> str:
        return f"{self.type} {self.start:%Y-%m-%d %H:%M} ({self.resolution} s)"


class RollupMark(models.Model):
    """How far the roll-ups have come; its one row is also the lock for computing them."""

    name = models.CharField(max_length=16, primary_key=True)
    until = models.DateTimeField()

    class Meta:
        verbose_name = _("roll-up mark")
        verbose_name_plural = _("roll-up marks")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.name} until {self.until}"


class QueueSample(models.Model):
    """A queue's depth when it was last counted in full: once a minute, however deep it is."""

    queue = models.CharField(max_length=128, primary_key=True)
    sampled_at = models.DateTimeField()
    available = models.PositiveBigIntegerField(default=0)
    scheduled = models.PositiveBigIntegerField(default=0)
    retryable = models.PositiveBigIntegerField(default=0)
    active = models.PositiveBigIntegerField(default=0)
    waiting_since = models.DateTimeField(null=True)

    class Meta:
        verbose_name = _("queue sample")
        verbose_name_plural = _("queue samples")
        default_permissions = ()

    def __str__(self) -> str:
        return self.queue
