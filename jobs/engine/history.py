"""Deletes execution history, of a job or before a moment (OJS execution history §7.3, §7.6)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Q

from ..conf import ojs_settings
from ..models import Event
from ..record.execution import BY_EVENT, events_of
from ..spec.batches import in_parts
from ..store.database import atomic
from ..store.expressions import Among

BATCH = 1000
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
    for part in in_parts(ids, BATCH):
        batch = Event.objects.filter(Among("pk", part))
        counts = batch.order_by().values_list("type").annotate(count=Count("pk"))
        entries += sum(len(BY_EVENT.get(kind, ())) * count for kind, count in counts)
        batch.delete()
    return entries


def catch_up() -> None:
    """Let everything that counts events read on, so that no figure changes by a deletion."""
    for read in catching_up:
        read()


def busy_jobs(after: int, last: int) -> set[str]:
    """Return the jobs about which events say more than that they ran once.

    Args:
        after, last: the ids of the events are above the one, and at most the other.
    """
    within = Event.objects.filter(pk__gt=after, pk__lte=last).exclude(job_type="")
    return set(within.exclude(ORDINARY).order_by().values_list("subject", flat=True))


def trim(subjects: Collection[str]) -> int:
    """Delete the oldest events of those jobs that have more than `EVENTS_PER_JOB` (§6).

    Returns:
        How many were deleted.
    """
    most = ojs_settings.EVENTS_PER_JOB
    parts = in_parts(list(subjects), BATCH)
    long = [subject for part in parts for subject in _with_more(most, part)]
    if long:
        catch_up()
    return sum(_trim(subject, most) for subject in long)


def _with_more(most: int, subjects: Sequence[str]) -> list[str]:
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
