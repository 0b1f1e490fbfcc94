"""Records of housekeeping: sweeps, the event cursor and reapers."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobs.store.database import connection


class Sweep(models.Model):
    """When a chore was last done, by any process."""

    name = models.CharField(max_length=64, primary_key=True)
    ran_at = models.DateTimeField()

    class Meta:
        verbose_name = _("sweep")
        verbose_name_plural = _("sweeps")

    def __str__(self) -> str:
        return self.name


class EventCursor(models.Model):
    """How far a reader of the record of events has read: by name, such as `tallies.NAME`."""

    name = models.CharField(max_length=64, primary_key=True)
    txid = models.BigIntegerField(default=0)
    event_id = models.BigIntegerField(default=0)

    class Meta:
        verbose_name = _("event cursor")
        verbose_name_plural = _("event cursors")

    def __str__(self) -> str:
        return self.name

    @classmethod
    def locked(cls, name: str) -> EventCursor | None:
        """Return the cursor of this name, which is also the lock of those who read on from it.

        So each event is read once, by one process. None if another process has it, or there is no
        such cursor.
        """
        skip = connection().features.has_select_for_update_skip_locked
        row = cls._default_manager.filter(pk=name).select_for_update(skip_locked=skip)
        return row.first()


class Reaper(models.Model):
    """A reaper process, and when it was last seen."""

    name = models.CharField(max_length=255, primary_key=True)
    """host:pid"""
    seen_at = models.DateTimeField()

    class Meta:
        verbose_name = _("reaper")
        verbose_name_plural = _("reapers")

    def __str__(self) -> str:
        return self.name
