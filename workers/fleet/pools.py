"""The workers of worker pools, and what they do (OJS fair scheduling §10)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from jobs import engine
from jobs.models import Pool
from jobs.spec.pools import pool_of

from ..models import Worker


@dataclass(frozen=True, slots=True)
class Activity:
    workers: int
    """Live workers whose labels name the pool."""
    jobs: int
    """Active jobs: those that take its places, or where it has no limit, those of its workers."""


def members() -> dict[str, str]:
    """Return the live workers whose labels name a pool, each with its pool."""
    labelled = Worker.objects.live().exclude(labels=[]).values_list("pk", "labels")
    named = {name: pool_of(labels) for name, labels in labelled}
    return {name: pool for name, pool in named.items() if pool}


def activity(pools: Collection[Pool]) -> dict[str, Activity]:
    """Return the activity of each pool, in three queries for all of them."""
    pool_by_worker = members()
    workers = Counter(pool_by_worker.values())
    jobs = engine.pool_rules.active_jobs(pools, pool_by_worker)
    return {pool.pk: Activity(workers[pool.pk], jobs[pool.pk]) for pool in pools}
