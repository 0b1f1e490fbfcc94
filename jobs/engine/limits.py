"""Rate limits by key: policies, and how many jobs of each key may start now (OJS rate limiting).

`limited_claim` applies them to a fetch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models import Count, Q

from ..models import Job, Queue, RateLimit
from ..record.events import partition_event, record
from ..spec import rate_policy
from ..spec.lifecycle import State
from ..spec.rate_policy import Memory, Room
from ..spec.validation import NewJob
from ..store import clock, wakeup
from ..store.database import atomic, run

QUEUE_KEY = "queue/"
"""Prefix of the queue's name in the key of its own partition; no client's key has a slash."""
MOST_KEYS = 5_000
# One index probe for each key, however many jobs wait behind it.
WAITING = """
    WITH RECURSIVE waiting (key, number) AS (
        SELECT (SELECT min(rate_key)
                  FROM ojs_jobs_job
                 WHERE state = 'available' AND queue = %s AND rate_key > ''), 1
     UNION ALL
        SELECT (SELECT min(rate_key)
                  FROM ojs_jobs_job
                 WHERE state = 'available' AND queue = %s AND rate_key > waiting.key),
               number + 1
          FROM waiting
         WHERE key IS NOT NULL AND number < %s
    )
    SELECT key FROM waiting WHERE key IS NOT NULL
"""


def know(new: Sequence[NewJob]) -> None:
    """Store the policies of new jobs; the newest one of a key applies (OJS rate limiting §6.2)."""
    if new:
        make_known({job.rate_key: dict(job.rate_limit or {}) for job in new})


def make_known(policies: Mapping[str, Mapping[str, Any]]) -> None:
    """Store the policies that are new or have changed."""
    wanted = {
        key: {name: value for name, value in policy.items() if name not in ("key", "scope")}
        for key, policy in policies.items()
    }
    known = dict(RateLimit.objects.filter(pk__in=wanted).values_list("pk", "policy"))
    changed = [key for key in sorted(wanted) if known.get(key) != wanted[key]]
    if not changed:
        return
    with atomic():
        if len(changed) > 1:
            lock(changed)
        # The new policy may open a key that the old one had closed.
        RateLimit.objects.bulk_create(
            [RateLimit(key=key, policy=wanted[key], updated_at=clock.now()) for key in changed],
            update_conflicts=True,
            unique_fields=["key"],
            update_fields=["policy", "closed_until", "updated_at"],
        )


def lock(keys: Collection[str]) -> None:
    """Lock the policies in the order in which a fetch does: the database's, not Python's."""
    rows = RateLimit.objects.filter(pk__in=keys).order_by("pk").select_for_update()
    list(rows.values_list("pk", flat=True))


def keys_waiting(queue: str) -> list[str]:
    """Return the rate keys of available jobs in the queue."""
    return [key for (key,) in run(WAITING, [queue, queue, MOST_KEYS])]


def running_jobs(keys: Iterable[str]) -> Counter[str]:
    # The second condition lets PostgreSQL use the partial index on `rate_key`.
    active = Job.objects.active().filter(rate_key__in=list(keys), rate_key__gt="").order_by()
    return Counter(dict(active.values_list("rate_key").annotate(jobs=Count("pk"))))


def waiting_jobs(keys: Iterable[str]) -> Counter[str]:
    return Counter(dict(_waiting(keys).values_list("rate_key").annotate(jobs=Count("pk"))))


def _waiting(keys: Iterable[str]) -> Any:
    # Filters by queue, to use the same index as a fetch.
    queues = Queue.objects.filter(has_limits=True).values("pk")
    jobs = Job.objects.filter(state=State.AVAILABLE, queue__in=queues)
    return jobs.filter(rate_key__in=list(keys), rate_key__gt="").order_by()


def change(keys: Collection[str], **columns: Any) -> int:
    """Change partitions; return how many there are. The next fetch looks at them again."""
    rows = RateLimit.objects.filter(pk__in=keys)
    found = rows.update(**columns, closed_until=None, updated_at=clock.now())
    if found:
        named = {key.removeprefix(QUEUE_KEY) for key in keys if key.startswith(QUEUE_KEY)}
        wakeup.notify(named | set(_waiting(keys).values_list("queue", flat=True).distinct()))
    return found


def rooms(keys: Iterable[str]) -> dict[str, Room]:
    """Return how many jobs of each key may start now, and what prevents more; for display."""
    now = clock.now()
    rows = {row.pk: row for row in RateLimit.objects.filter(pk__in=list(keys))}
    running = running_jobs(key for key in rows if not key.startswith(QUEUE_KEY))
    return {
        key: rate_policy.room(
            row.effective(now), Memory(row.starts, row.next_at), running[key], now, row.held_until
        )
        for key, row in rows.items()
    }


def remaining(key: str, rate: dict[str, Any]) -> tuple[int, datetime]:
    """Return how many jobs of the key may still start, and when one certainly may (§10.4)."""
    now = clock.now()
    row = RateLimit.objects.filter(pk=key).first()
    memory = Memory(row.starts if row else [], None)
    found = rate_policy.room({"rate": rate}, memory, 0, now, None)
    return found.jobs, now if found.jobs else found.again_at or now


def hold(key: str, until: datetime, reason: str) -> None:
    """Start no job of the key before `until`: a handler met its API's own limit (§9.1).

    A worker whose clock or code is wrong does not close the key for ever: a year is the most.
    """
    until = min(until, clock.now() + rate_policy.LONGEST)
    with atomic():
        later = Q(held_until__isnull=True) | Q(held_until__lt=until)
        held = RateLimit.objects.filter(later, pk=key)
        if held.update(held_until=until, closed_until=until, updated_at=clock.now()):
            adjusted = {"until": until.isoformat(), "reason": reason[:255]}
            record([partition_event("rate_limit.dynamic_adjusted", key, **adjusted)])
