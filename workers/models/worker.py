"""Workers: the processes that run jobs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from jobs.conf import ojs_settings
from jobs.spec.envelope import timeout_details
from jobs.store import clock

from ..lifecycle import WorkerState, desired
from .querysets import WorkerQuerySet


def default_heartbeat_timeout() -> timedelta:
    return ojs_settings.HEARTBEAT_TIMEOUT


def places(concurrency: int | None) -> int:
    """How many jobs a worker that declared this runs at once."""
    return ojs_settings.CONCURRENCY if concurrency is None else concurrency


class Worker(models.Model):
    """A worker process as it described itself, with its directive (OJS worker protocol §3)."""

    worker_id = models.CharField(max_length=255, primary_key=True)
    hostname = models.CharField(max_length=255, blank=True, default="")
    pid = models.BigIntegerField(null=True, blank=True)
    queues = models.JSONField(default=list, blank=True)
    # Like the numbers of `Job`, without a check that they are positive.
    concurrency = models.IntegerField(null=True, blank=True)
    """Most jobs it runs at once; null if it never declared it."""
    labels = models.JSONField(default=list, blank=True)
    job_types = models.JSONField(null=True, blank=True)
    """Job types it can run; null if it never declared them, which means any."""
    job_versions = models.JSONField(null=True, blank=True)
    """Job type → bounds of the versions it takes (`jobs.spec.versions`). A type that is not listed
    has no bounds; null if the worker never declared any."""
    project = models.CharField(max_length=100, blank=True, default="", db_default="")
    """The project of the key it used."""
    started_at = models.DateTimeField(null=True, blank=True)
    protocol = models.CharField(max_length=16, default="ojs")
    version = models.CharField(max_length=255, blank=True, default="")
    """Its User-Agent."""
    capabilities = models.JSONField(default=list, blank=True)
    """Its capabilities, besides its labels: a job goes only to a worker with all that it needs."""
    details = models.JSONField(null=True, blank=True)
    """Its registration as received, where the protocol can query it (AGQ §2.3)."""
    stats = models.JSONField(null=True, blank=True)
    """The latest statistics it sent (AGQ §3.3)."""
    stats_at = models.DateTimeField(null=True, blank=True)
    session = models.CharField(max_length=64, blank=True, default="", editable=False)
    """Hash of the key it registered with, where the protocol reserves its id for that key."""
    specs = models.JSONField(null=True, blank=True)
    """Job type → checksum of the specification it implements; null if its protocol has none."""

    state = models.CharField(max_length=10, choices=WorkerState, default=WorkerState.RUNNING)
    """The state it last reported; `terminated` once it left or was declared dead."""
    reports_state = models.BooleanField(default=False, db_default=False, editable=False)
    """It has reported its state, where its protocol makes that optional."""
    directive = models.CharField(max_length=10, choices=WorkerState, blank=True, default="")
    """The state an operator asked for; `running` withdraws a `quiet`."""
    directed_at = models.DateTimeField(null=True, blank=True)

    # Not indexed: every heartbeat rewrites it, and the fleet is small enough to scan.
    last_heartbeat_at = models.DateTimeField()
    heartbeat_timeout = models.DurationField(default=default_heartbeat_timeout)
    sequence = models.BigIntegerField(null=True, blank=True)
    """Highest heartbeat number seen, for workers that number theirs (§10.3)."""
    active_job_ids = models.JSONField(default=list, blank=True)
    """The jobs it last reported as running (§4.2)."""

    registered_at = models.DateTimeField(null=True, blank=True)
    """Null for a worker known by its heartbeats alone (§3.1)."""
    left_at = models.DateTimeField(null=True, blank=True)
    """When it deregistered, or was found silent while quiet and holding no jobs."""
    died_at = models.DateTimeField(null=True, blank=True)
    """When it was last declared dead; it may have come back since (§10.4)."""
    flagged_at = models.DateTimeField(null=True, blank=True)
    """When it last let a job run past its time: an operator should check it (AGQ §5.2)."""
    incarnation = models.IntegerField(default=1)
    """How many processes have registered under this id."""
    jobs_done = models.BigIntegerField(default=0)
    """Jobs it completed, counted from the events with some delay."""
    jobs_failed = models.BigIntegerField(default=0)
    """Its failed attempts."""
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = WorkerQuerySet.as_manager()

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        ordering = ("-last_heartbeat_at",)
        permissions = [
            ("quiet_worker", _("Can tell workers to take no more jobs")),
            ("resume_worker", _("Can take that back")),
            ("terminate_worker", _("Can tell workers to stop")),
            ("unflag_worker", _("Can say that a flagged worker has been looked at")),
        ]

    def __str__(self) -> str:
        return self.worker_id

    @property
    def desired_state(self) -> WorkerState:
        """The state that the next heartbeat response asks for (§4.4)."""
        return desired(self.state, self.directive)

    @property
    def is_silent(self) -> bool:
        """Whether it has not been heard for its heartbeat timeout; see `querysets.SILENT`."""
        return self.last_heartbeat_at + self.heartbeat_timeout <= clock.now()

    @property
    def may_fetch(self) -> bool:
        """Whether it gets jobs when it fetches; see `querysets.MAY_FETCH`."""
        return self.desired_state == WorkerState.RUNNING

    def silence_at(self, now: datetime) -> dict[str, Any] | None:
        """How long it was silent when it was declared dead, as error details (OJS timeouts §8).

        None if it left, or was removed before its heartbeat timeout.
        """
        silent = now - self.last_heartbeat_at
        if self.left_at is not None or silent < self.heartbeat_timeout:
            return None
        return timeout_details("stalled", self.heartbeat_timeout, silent)
