"""Delete what has been kept long enough, in bounded batches (OJS dead letter §5, §8)."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.db.models import QuerySet
from django.db.models.functions import Now

from ..conf import ojs_settings
from ..database import atomic
from ..lifecycle import State
from ..models import Event, Job, JobError, JobLog, Listener, RefusedFinish

BATCH_SIZE = 1000


def prune_jobs() -> int:
    """Delete one batch of finished jobs past their keep; return how many."""
    finished = Job.objects.filter(finished_at__isnull=False)
    for jobs, keep in (
        (finished.filter(state=State.COMPLETED), ojs_settings.COMPLETED_RETENTION),
        (finished.filter(state=State.CANCELLED), ojs_settings.CANCELLED_RETENTION),
        (
            finished.filter(state=State.DISCARDED, dead_letter=False),
            ojs_settings.DISCARDED_RETENTION,
        ),
        (Job.objects.dead(), ojs_settings.DEAD_LETTER_RETENTION),
    ):
        deleted = _delete(_older(jobs, keep))
        if deleted:
            return deleted
    return _delete(_over_the_limit())


def _older(jobs: QuerySet[Job], keep: timedelta) -> list[UUID]:
    old = jobs.filter(finished_at__lte=Now() - keep).order_by("finished_at")
    return list(old.values_list("pk", flat=True)[:BATCH_SIZE])


def _over_the_limit() -> list[UUID]:
    """The oldest jobs of a dead letter that outgrew `DEAD_LETTER_MAX` (OJS dead letter §8.1)."""
    newest_first = Job.objects.dead().order_by("-finished_at", "-pk").values_list("pk", flat=True)
    limit = ojs_settings.DEAD_LETTER_MAX
    return list(newest_first[limit : limit + BATCH_SIZE])


def _delete(ids: list[UUID]) -> int:
    if not ids:
        return 0
    with atomic():
        # A job retried by an operator in this very moment is no longer finished: it stays.
        finished = Job.objects.filter(pk__in=ids, finished_at__isnull=False)
        gone = list(finished.select_for_update().order_by("pk").values_list("pk", flat=True))
        JobError.objects.filter(job__in=gone).delete()
        JobLog.objects.filter(job__in=gone).delete()
        Job.objects.filter(pk__in=gone)._raw_delete(using=Job.objects.db)
    return len(gone)


def prune_events() -> int:
    """Delete one batch of events and refused finishes past their keep; return how many."""
    keep = ojs_settings.EVENT_RETENTION
    # The oldest come first by primary key: no index on time is needed.
    oldest = Event.objects.order_by("pk").values_list("pk", "time")[:BATCH_SIZE]
    horizon = Event.objects.filter(pk__in=[pk for pk, _ in oldest], time__lte=Now() - keep)
    deleted = horizon.delete()[0]
    # A listener that was killed could not take itself off the list.
    Listener.objects.filter(seen_at__lte=Now() - timedelta(minutes=5)).delete()
    refused = RefusedFinish.objects.filter(refused_at__lte=Now() - keep).order_by("pk")
    ids = list(refused.values_list("pk", flat=True)[:BATCH_SIZE])
    return deleted + RefusedFinish.objects.filter(pk__in=ids).delete()[0]
