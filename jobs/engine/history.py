"""Deletes execution history, of a job or before a moment (OJS execution history §7.3, §7.6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Max, Q

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
    """Delete the oldest events of busy jobs that have more than `EVENTS_PER_JOB` (§6).

    Looks at the events that were added in the last hours only. A job that exceeds the limit within
    the retention has, in one of its hours, at least the average number of events; the others can
    not exceed it by more than as many again.
    """
    most = ojs_settings.EVENTS_PER_JOB
    hours = max(1, ojs_settings.EVENT_RETENTION // HOUR)
    newest = Event.objects.aggregate(last=Max("pk"))["last"] or 0
    recent = Event.objects.filter(pk__gte=first_since(clock.now() - 2 * HOUR, 1, newest))
    busy = recent.exclude(job_type="").order_by().values("subject")
    busy = busy.annotate(count=Count("pk")).filter(count__gte=max(2, most // hours))
    deleted = 0
    for subject in busy.values_list("subject", flat=True):
        own = Event.objects.filter(subject=subject).order_by("-pk")
        surplus = list(own.values_list("pk", flat=True)[most : most + BATCH])
        if surplus:
            Event.objects.filter(Among("pk", surplus)).delete()
            deleted += len(surplus)
    return deleted
