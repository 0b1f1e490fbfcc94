"""The workers of worker pools, and what they do (OJS fair scheduling §10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from django.db.models import Count

from jobs import engine
from jobs.models import Job, Pool
from jobs.spec.pools import pool_of

from ..models import Worker


@dataclass(frozen=True, slots=True)
class Activity:
    workers: int
    """Live workers whose labels name the pool."""
    jobs: int
    """Active jobs: those that take its places, or where it has no limit, those of its workers."""


def activity(pools: Collection[Pool]) -> dict[str, Activity]:
    """Return the activity of each pool, in three queries for all of them."""
    labelled = Worker.objects.live().exclude(labels=[]).values_list("pk", "labels")
    pool_by_worker = {name: pool_of(labels) for name, labels in labelled}
    workers = Counter(pool_by_worker.values())
    members = [name for name, pool in pool_by_worker.items() if pool]
    active = Job.objects.active().filter(reserved_for__isnull=False).order_by()
    held: Counter[str] = Counter()
    rows = active.filter(reserved_by__in=members).values_list("reserved_by")
    for name, jobs in rows.annotate(jobs=Count("pk")) if members else ():
        held[pool_by_worker[name]] += jobs
    limited = [pool.pk for pool in pools if pool.concurrency is not None]
    taken = engine.pool_rules.active_jobs(limited)
    return {
        pool.pk: Activity(
            workers[pool.pk], taken.get(pool.pk, 0) if pool.pk in limited else held[pool.pk]
        )
        for pool in pools
    }
