"""Counts the fleet by state, once a minute, for the dashboard's graph."""

from __future__ import annotations

from django.db.models import Count, Q, Sum
from django.db.models.functions import Coalesce

from jobs.record import rollup
from jobs.store import clock

from ..lifecycle import WorkerState
from ..models import FleetSample, Worker
from ..models.querysets import MAY_FETCH, SILENT

STATES = ["running", "quiet", "terminate", "silent"]


def sample() -> int:
    """Count the live workers by state; always return 0: nothing is left to do."""
    states = {
        str(state): Count("pk", filter=Q(state=state) & ~SILENT)
        for state in (WorkerState.RUNNING, WorkerState.QUIET, WorkerState.TERMINATE)
    }
    found = Worker.objects.live().aggregate(
        **states,
        silent=Count("pk", filter=SILENT),
        capacity=Coalesce(Sum("concurrency", filter=MAY_FETCH & ~SILENT), 0),
    )
    minute = rollup.floor(clock.now(), rollup.MINUTE)
    names = [*STATES, "capacity"]
    FleetSample.objects.bulk_create(
        [FleetSample(resolution=60, start=minute, **found)],
        update_conflicts=True,
        unique_fields=["resolution", "start"],
        update_fields=names,
    )
    rollup.sum_up(FleetSample, minute, minute + rollup.MINUTE, highest=names)
    rollup.prune(FleetSample)
    return 0
