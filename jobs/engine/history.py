"""Deletes execution history, of a job or before a moment (OJS execution history §7.3, §7.6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Q, Value
from django.db.models.functions import Concat

from ..conf import ojs_settings
from ..models import Event
from ..record.execution import BY_EVENT, events_of
from ..record.execution_search import first_since
from ..store import clock
from ..store.database import atomic
from ..store.expressions import Among

BATCH = 1000
HOUR = timedelta(hours=1)
MOST = 100_000
"""Events that one request deletes (§7.6)."""
OF_HISTORY = Q(job_type__gt="") | Q(type__startswith="workflow.")
ORDINARY = Q(type__in=("job.started", "job.completed")) | Q(type="job.enqueued", attempt=0)
"""What is recorded of a job that runs once and succeeds. In a longer history, attempts end with
events of other kinds: beyond the first three, those are at least a third."""
catching_up: list[Callable[[], object]] = []
"""Readers of the record that count its events; called before any are deleted."""


@dataclass(frozen=True, slots=True)
class Purged:
    """What was deleted."""

    entries: int
    """Entries of the history."""
    has_more: bool = False
    """Events are left, for another request."""


def purge_history(job_id: Any) -> Purged:
    """Delete all events about a job (§7.3). Figures that are counted from events stay."""
    catch_up()
    own = Event.objects.filter(subject=str(job_id)).exclude(job_type="")
    with atomic():
        ids = list(own.order_by("pk").values_list("pk", flat=True))
        return Purged(_delete(ids))


def purge_before(
    moment: datetime, *, queues: Sequence[str] = (), event_types: Sequence[str] = ()
) -> Purged:
    """Delete the events of jobs and workflows before a moment, at most `MOST` of them (§7.6).

    Each batch is a transaction of its own, so nothing waits for it. An event has several entries in
    the history: with `event_types`, an event is deleted if one of its entries has such a type.
    """
    catch_up()
    old = Event.objects.filter(OF_HISTORY, time__lt=moment)
    if queues:
        old = old.filter(queue__in=list(queues))
    if event_types:
        old = old.filter(type__in=events_of(event_types))
    deleted = last = 0
    for _ in range(MOST // BATCH):
        ids = list(old.filter(pk__gt=last).order_by("pk").values_list("pk", flat=True)[:BATCH])
        with atomic():
            deleted += _delete(ids)
        if len(ids) < BATCH:
            return Purged(deleted)
        last = ids[-1]
    return Purged(deleted, old.filter(pk__gt=last).exists())


def _delete(ids: list[int]) -> int:
    """Delete events; return how many entries they had in the history."""
    entries = 0
    for start in range(0, len(ids), BATCH):
        batch = Event.objects.filter(Among("pk", ids[start : start + BATCH]))
        counts = batch.order_by().values_list("type").annotate(count=Count("pk"))
        entries += sum(len(BY_EVENT.get(kind, ())) * count for kind, count in counts)
        batch.delete()
    return entries


def catch_up() -> None:
    """Let everything that counts events read on, so that no figure changes by a deletion."""
    for read in catching_up:
        read()


def trim_histories() -> int:
    """Delete the oldest events of jobs that have more than `EVENTS_PER_JOB` (§6); return how many.

    Reads the events of the last two hours, so each is read twice if this runs once an hour. Within
    the retention, a job that exceeds the limit has at least the average number of those that are
    not `ORDINARY` in one of these looks.
    """
    most = ojs_settings.EVENTS_PER_JOB
    looks = max(1, ojs_settings.EVENT_RETENTION // HOUR)
    fewest = max(1, 2 * ((most - 2) // 3) // looks)
    newest = Event.objects.aggregate(last=Max("pk"))["last"] or 0
    recent = Event.objects.filter(pk__gte=first_since(clock.now() - 2 * HOUR, 1, newest))
    recent = recent.exclude(job_type="").exclude(ORDINARY).order_by()
    # Not the column itself: PostgreSQL might read the index on it from end to end, and so the whole
    # record, in no order.
    busy = recent.values(job=Concat("subject", Value("")))
    busy = busy.annotate(count=Count("pk")).filter(count__gte=fewest)
    subjects = list(busy.values_list("job", flat=True))
    return sum(
        _trim(subject, most)
        for start in range(0, len(subjects), BATCH)
        for subject in _with_more(most, subjects[start : start + BATCH])
    )


def _with_more(most: int, subjects: list[str]) -> list[str]:
    """Return those of the jobs that have more events than `most`."""
    own = Event.objects.filter(Among("subject", subjects)).order_by().values("subject")
    counted = own.annotate(count=Count("pk")).filter(count__gt=most)
    return list(counted.values_list("subject", flat=True))


def _trim(subject: str, most: int) -> int:
    """Delete all events of a job but its newest `most`."""
    newest = Event.objects.filter(subject=subject).order_by("-pk").values_list("pk", flat=True)
    deleted = 0
    while surplus := list(newest[most : most + BATCH]):
        deleted += Event.objects.filter(Among("pk", surplus)).delete()[0]
    return deleted
