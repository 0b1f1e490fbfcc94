"""Runs of cron jobs: which are unfinished, and which of the waiting ones may begin."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import QuerySet

from ..models import CronRun, Job
from ..spec.lifecycle import TERMINAL, State
from ..store.database import atomic, connection
from ..store.expressions import Among
from .ready import COLUMNS, make_ready

MOST_OPEN = 1000
"""Open runs of one cron job that are checked at a time."""


def unfinished_runs(name: str, *, until: int | None = None) -> list[Job]:
    """Return the unfinished runs of a cron job in the order of the runs; the first of very many.

    Not only active ones: a run waiting for a worker or a retry would be executed alongside the new
    one, which must not happen by default (OJS conformance L2-CRON-003).

    Args:
        until: the id of a run; those after it are left out.
    """
    # Not in the order of their jobs, whose ids come from the clocks of several servers.
    open_runs = CronRun.objects.filter(cron_name=name, unfinished=True).order_by("pk")
    if until is not None:
        open_runs = open_runs.filter(pk__lte=until)
    last = 0
    while True:
        runs = dict(open_runs.filter(pk__gt=last).values_list("pk", "job_id")[:MOST_OPEN])
        jobs = Job.objects.filter(Among("pk", [job_id for job_id in runs.values() if job_id]))
        unfinished = jobs.exclude(state__in=sorted(TERMINAL)).only("state").in_bulk()
        _close([pk for pk, job_id in runs.items() if job_id not in unfinished])
        if unfinished or len(runs) < MOST_OPEN:
            return [unfinished[job_id] for job_id in runs.values() if job_id in unfinished]
        last = max(runs)


def _close(ids: Sequence[int]) -> None:
    """Remember that the jobs of these runs have finished, or were deleted."""
    if not ids:
        return
    # Skip rows locked by another transaction: they are found finished next time.
    skip = connection().features.has_select_for_update_skip_locked
    over = CronRun.objects.filter(pk__in=ids).select_for_update(skip_locked=skip)
    runs = list(over.values_list("pk", flat=True))
    CronRun.objects.filter(pk__in=runs).update(unfinished=False, held=False)


def held_runs() -> QuerySet[CronRun]:
    return CronRun.objects.filter(held=True)


def release_held_runs() -> int:
    """Release the oldest waiting run of each cron job once those before it have finished.

    The `enqueue` policy forbids two runs at once (§6.1), and a claim does not check other jobs, so
    a run stays pending until its turn.
    """
    # Of every cron job: those whose turn has not come would keep the others out of a batch.
    names = held_runs().order_by("cron_name").values_list("cron_name", flat=True).distinct()
    return sum(_release(name) for name in list(names))


def _release(name: str) -> bool:
    with atomic():
        skip = connection().features.has_select_for_update_skip_locked
        waiting = held_runs().filter(cron_name=name).order_by("id")
        run = waiting.select_for_update(skip_locked=skip).first()
        if run is None:
            return False
        first = next(iter(unfinished_runs(name, until=run.pk)), None)
        if first is None or first.pk != run.job_id:
            return False
        CronRun.objects.filter(pk=run.pk).update(held=False)
        jobs = Job.objects.filter(pk=run.job_id, state=State.PENDING)
        locked = list(jobs.select_for_update().only(*COLUMNS))
        make_ready(locked)
    return bool(locked)
