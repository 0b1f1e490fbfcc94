"""Runs of cron jobs: which are unfinished, and which of the waiting ones may begin."""

from __future__ import annotations

from collections.abc import Sequence

from django.db.models import QuerySet

from ..models import CronRun, Job
from ..spec.lifecycle import TERMINAL, State
from ..store.database import atomic, connection
from .ready import COLUMNS, make_ready

BATCH_SIZE = 100
MOST_OPEN = 1000
"""Most unfinished runs of one cron job that are checked."""


def unfinished_runs(name: str) -> list[Job]:
    """Return the unfinished runs of a cron job, oldest first.

    Not only active ones: a run waiting for a worker or a retry would be executed alongside the new
    one, which must not happen by default (OJS conformance L2-CRON-003).
    """
    open_runs = CronRun.objects.filter(cron_name=name, unfinished=True)
    newest = open_runs.order_by("-id").values_list("job_id", flat=True)[:MOST_OPEN]
    ids = [job_id for job_id in newest if job_id is not None]
    if not ids:
        return []
    jobs = Job.objects.filter(pk__in=ids).exclude(state__in=sorted(TERMINAL)).order_by("pk")
    unfinished = list(jobs.only("type", "queue", "state", "attempt", "priority"))
    # Finished, or deleted since.
    finished = set(ids) - {job.pk for job in unfinished}
    if finished:
        # Skip rows locked by another transaction: they are found finished next time.
        skip = connection().features.has_select_for_update_skip_locked
        over = open_runs.filter(job_id__in=finished).select_for_update(skip_locked=skip)
        runs = list(over.values_list("pk", flat=True))
        CronRun.objects.filter(pk__in=runs).update(unfinished=False, held=False)
    return unfinished


def held_runs() -> QuerySet[CronRun]:
    return CronRun.objects.filter(held=True)


def release_held_runs() -> int:
    """Release the oldest waiting run of each cron job once those before it have finished.

    The `enqueue` policy forbids two runs at once (§6.1), and a claim does not check other jobs, so
    a run stays pending until its turn.
    """
    names = held_runs().order_by("cron_name").values("cron_name").distinct()
    held = [name["cron_name"] for name in names[:BATCH_SIZE]]
    return sum(_release(name) for name in held)


def _release(name: str) -> bool:
    with atomic():
        skip = connection().features.has_select_for_update_skip_locked
        waiting = held_runs().filter(cron_name=name).order_by("id")
        run = waiting.select_for_update(skip_locked=skip).first()
        if run is None:
            return False
        unfinished = unfinished_runs(name)
        first: Sequence[Job] = unfinished[:1]
        if not first or first[0].pk != run.job_id:
            return False
        CronRun.objects.filter(pk=run.pk).update(held=False)
        jobs = Job.objects.filter(pk=run.job_id, state=State.PENDING)
        locked = list(jobs.select_for_update().only(*COLUMNS))
        make_ready(locked)
    return bool(locked)
