"""When to look again for jobs that a limit holds back (OJS rate limiting §8, worker protocol §8.3).

No notification is sent when a limit opens, because time has passed or a job has ended on some
server. So the fetches that wait in this process look again: when a limit opens by the clock, and,
if only the end of a job can open it, after a part of the time for which the queue has been held
back. The place of a short job is found soon, and waiting for a long one costs few queries. Each
look sets the time of the next one, so while others fetch all the time, there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from time import monotonic

from ..conf import ojs_settings
from ..models import Job, Queue, RateLimit
from ..spec.lifecycle import State
from ..store import clock, wakeup
from ..store.claimed import ClaimedJob
from ..store.contract import ClaimRequest
from .limits import QUEUE_KEY, keys_waiting

SOONEST = 0.01
"""Seconds until the next look, at least, for a limit that opens by the clock."""
AFTER_AN_END = 0.05
"""The same for one that the end of a job opens."""
PART = 4
"""The next look comes after a fourth of the time that has passed without a job."""

_held: dict[str, tuple[float, float]] = {}
"""When this process found a queue held back, first and last, by `monotonic()`."""


def look_again(request: ClaimRequest, claimed: Sequence[ClaimedJob]) -> None:
    """Wake the fetches that wait in this process when a limit may let more jobs start.

    Args:
        request: a fetch from queues with limits, or through a pool.
        claimed: what it got.
    """
    for name in {job.queue for job in claimed}:
        _held.pop(name, None)
    if len(claimed) >= request.count or not wakeup.is_anybody_waiting():
        return
    now = clock.now()
    queues = Queue.objects.filter(pk__in=request.queues)
    for queue in queues if request.pool else queues.limited():
        if not Job.objects.filter(queue=queue.pk, state=State.AVAILABLE).exists():
            _held.pop(queue.pk, None)
            continue
        own, *keys = _closed(queue, now)
        waits = [(moment - now).total_seconds() for moment in (own, *keys) if moment is not None]
        # A key that is not closed by the clock is full of running jobs.
        by_jobs = queue.concurrency is not None or queue.has_tenants or request.pool
        if by_jobs or None in keys:
            waits.append(_until_an_end(queue.pk))
        # By the time of the next poll, a waiting fetch looks anyway.
        if min(waits, default=_longest()) < _longest():
            wakeup.remind(queue.pk, max(SOONEST, min(waits)))


def _closed(queue: Queue, now: datetime) -> list[datetime | None]:
    """Return until when the queue is closed by the clock, and then each key with available jobs."""
    keys = [QUEUE_KEY + queue.pk, *keys_waiting(queue.pk)]
    rows = RateLimit.objects.filter(pk__in=keys, closed_until__gt=now)
    closed = dict(rows.values_list("pk", "closed_until"))
    return [closed.get(key) for key in keys]


def _until_an_end(queue: str) -> float:
    now = monotonic()
    first, last = _held.get(queue, (now, now))
    if now - last > 2 * _longest():
        # No fetch has waited in the meantime.
        first = now
    _held[queue] = first, now
    return max(AFTER_AN_END, (now - first) / PART)


def _longest() -> float:
    return ojs_settings.WAIT_POLL_INTERVAL.total_seconds()


def forget() -> None:
    """Forget how long queues have been held back."""
    _held.clear()
