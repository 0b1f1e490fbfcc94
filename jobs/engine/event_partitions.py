"""Partitions of the record of events: when they are made, and when they go (PostgreSQL).

`manage.py partitionevents` moves a record into partitions, housekeeping makes them ahead, and
retention drops those whose events are all old enough. A record without partitions is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.db.models.functions import Now

from ..conf import ojs_settings
from ..models import Event
from ..record import events
from ..record.execution_search import first_since
from ..store import clock, partitions
from ..store.database import alias, is_postgresql
from ..store.locks import Busy, patiently
from ..store.partitions import Partition

DAY = timedelta(days=1)
SHARE = 7
"""The retention has at least so many partitions."""
FEWEST = 1_000_000
"""Events in a partition: a day with fewer is not worth one."""
MARGIN = 10_000_000
"""Ids, at least, that the move leaves for the time that it takes."""
AHEAD = 2
"""Partitions' lengths that are made ahead."""
LAST = 1_000
"""Events at the end of a partition among which the newest is looked for: their times are in the
order of their ids but for transactions that overlap."""


def length() -> timedelta:
    """How much of the time a partition is meant to have; events may be kept that much longer."""
    return min(DAY, ojs_settings.EVENT_RETENTION / SHARE)


def ids_ahead(last_id: int, least: int) -> int:
    """Return how many ids a partition should get: as many as in the last `length()`."""
    oldest = Event.objects.using(alias()).order_by("pk").values_list("pk", flat=True).first()
    began = first_since(clock.now() - length(), last_id if oldest is None else oldest, last_id)
    return max(least, last_id - began)


def make_ahead() -> int:
    """Make one partition if there are too few for what is to come; return how many.

    Where a move was interrupted, the limit that it set is removed instead, before the record
    reaches it.
    """
    if not is_postgresql():
        return 0
    try:
        if partitions.is_partitioned():
            return _make_next()
        _clear_up()
    except Busy:
        pass  # the next period will do
    return 0


def _make_next() -> int:
    last_id = partitions.relation().last_id
    size = ids_ahead(last_id, FEWEST)
    lower = partitions.layout().upper
    if lower - last_id >= AHEAD * size:
        return 0
    if lower <= last_id:
        # Housekeeping was away for long. What is in the default partition stays there, and so does
        # what is being written right now.
        lower = last_id + FEWEST
    partitions.add(lower, lower + size)
    return 1


def _clear_up() -> None:
    if partitions.bound() is not None:
        with partitions.alone() as free:
            if free:
                partitions.drop_bound()


def drop_old() -> int:
    """Drop one partition whose events are all past their retention; return about how many."""
    if not partitions.is_partitioned():
        return 0
    settled = events.horizon()
    for part in partitions.layout().ranges:
        if part.upper > settled or not _is_past(part):
            return 0
        try:
            partitions.drop(part)
        except Busy:
            return 0
        return max(1, part.rows)
    return 0


def _is_past(part: Partition) -> bool:
    inside = Event.objects.using(alias()).filter(pk__gte=part.lower, pk__lt=part.upper)
    newest = inside.filter(pk__in=list(inside.order_by("-pk").values_list("pk", flat=True)[:LAST]))
    old = Now() - ojs_settings.EVENT_RETENTION
    return not newest.filter(time__gt=old).exists()


def grace() -> timedelta:
    """How much longer events are kept for their partition to go as a whole."""
    return length() if partitions.is_partitioned() else timedelta(0)


def move(say: Callable[[str], None], pause: Callable[[], None], tries: int) -> None:
    """Move the record into partitions, beside running servers.

    What has been done stays done: another call goes on from there.

    Args:
        say: called with a line of text for each step.
        pause: called between two attempts at what others keep from happening.
        tries: how often such a step is tried.

    Raises:
        Busy: another process moves it, or the table was in use all the time.
    """
    with partitions.alone() as free:
        if not free:
            raise Busy("Another process is at it.")
        if not partitions.is_partitioned():
            _to_first_partition(say, pause, tries)
    made = 0
    while patiently(_make_next, pause, tries):
        made += 1
    say(f"4 of 4: {made} partitions are made ahead; housekeeping makes the next ones.")


def _to_first_partition(say: Callable[[str], None], pause: Callable[[], None], tries: int) -> None:
    last_id = partitions.relation().last_id
    least = MARGIN // 2
    found = partitions.bound()
    if found is None or found[0] - last_id < least:
        upper = last_id + ids_ahead(last_id, MARGIN)
        patiently(lambda: partitions.set_bound(upper), pause, tries)
        say(f"1 of 4: the table takes ids below {upper:,}; {last_id:,} are drawn.")
    else:
        say("1 of 4: done before.")
    found = partitions.bound()
    if found is None or not found[1]:
        rows, size = partitions.size()
        say(f"2 of 4: reading about {rows:,} events ({size / 1e6:,.0f} MB), which stay writable …")
        partitions.check_bound()
    else:
        say("2 of 4: done before.")
    patiently(partitions.switch, pause, tries)
    say("3 of 4: the table is the first partition of the record.")
