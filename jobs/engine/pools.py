"""Worker pools, and the order in which a fetch searches its queues (OJS fair scheduling §6, §7)."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db.models import Q

from ..errors import Conflict, NotFound
from ..models import Event, Pool, PoolPlace, PoolStrategy, Queue
from ..record import dashboard
from ..record.events import pool_event, record
from ..spec.lifecycle import State
from ..store import clock, wakeup
from ..store.database import atomic
from . import pool_rules, queue_policy
from .pool_rules import BATCH, give_places


def configure(name: str, columns: dict[str, Any]) -> tuple[Pool, bool]:
    """Make or replace a pool; return it and whether it is new. The next fetch goes by it.

    Args:
        columns: all that `read_pool` returns.

    Raises:
        Conflict: another pool isolates one of the queues.
    """
    with atomic():
        row, created = Pool.objects.get_or_create(pk=name, defaults=columns)
        row = Pool.objects.select_for_update().get(pk=name)
        before, limit = row.strategy, None if created else row.concurrency
        changed = any(getattr(row, column) != value for column, value in columns.items())
        prevents = columns["starvation_prevention"].get("enabled", False)
        has_rules = columns["concurrency"] is not None or prevents
        rules = {"has_rules": has_rules, "full_since": None}
        if columns["starvation_prevention"] != row.starvation_prevention:
            # Slices of another length mean nothing. What is counted for ever stays.
            rules["dispatches"] = {"starved": row.dispatches.get("starved", {})}
        Pool.objects.filter(pk=name).update(**columns, **rules, updated_at=clock.now())
        row.refresh_from_db()
        _isolate(name, row.queues if row.is_isolated else [])
        if row.concurrency is None:
            PoolPlace.objects.filter(pool=name).delete()
        elif limit is None:
            _place_running_jobs(name)
        if changed:
            about = {"previous_strategy": before, "new_strategy": row.strategy}
            record([pool_event("scheduling.rebalanced", name, **about)])
            # A fetch may have waited for room.
            wakeup.notify(row.queues)
    return row, created


def delete(name: str) -> None:
    """
    Raises:
        NotFound: there is no such pool.
    """
    with atomic():
        pool = Pool.objects.select_for_update().filter(pk=name).first()
        if pool is None:
            raise _not_found(name)
        _isolate(name, [])
        PoolPlace.objects.filter(pool=name).delete()
        pool.delete()


def _isolate(name: str, queues: Sequence[str]) -> None:
    """Let only this pool's workers get jobs of these queues, and of no others (§6.3).

    Raises:
        Conflict: another pool isolates one of them.
    """
    if queues:
        queue_policy.make(queues, queue_policy.default_policy())
    rows = Queue.objects.filter(Q(pk__in=queues) | Q(isolated_by=name)).order_by("pk")
    before = dict(rows.select_for_update().values_list("pk", "isolated_by"))
    for queue in queues:
        other = before.get(queue, "")
        if other not in ("", name):
            raise Conflict(
                f"The pool '{other}' isolates the queue '{queue}': only one can.",
                pool=other,
                queue=queue,
            )
    Queue.objects.filter(pk__in=set(before).difference(queues)).update(isolated_by="")
    Queue.objects.filter(pk__in=queues).exclude(isolated_by=name).update(isolated_by=name)


def _place_running_jobs(name: str) -> None:
    """Give places to the jobs that run already when a pool gets its limit.

    The record of events says which. Of a job that it does not know, it is the pool in the labels
    of the job's worker.
    """
    running = pool_rules.running().values_list("pk", "attempt", "reserved_by")
    found = {str(job_id): (attempt, worker) for job_id, attempt, worker in running}
    names = sorted(found)
    latest: dict[str, tuple[int | None, str]] = {}
    for start in range(0, len(names), BATCH):
        started = Event.objects.filter(
            type="job.started", subject__in=names[start : start + BATCH]
        ).order_by("id")
        for subject, attempt, data in started.values_list("subject", "attempt", "data"):
            latest[subject] = attempt, (data or {}).get("pool", "")
    pool_by_worker = pool_rules.members()
    through: list[UUID] = []
    for subject, (attempt, worker) in found.items():
        recorded, pool = latest.get(subject, (None, ""))
        if recorded != attempt:
            pool = pool_by_worker.get(worker, "")
        if pool == name:
            through.append(UUID(subject))
    give_places(name, through)


def find(name: str) -> Pool:
    """
    Raises:
        NotFound: there is no such pool.
    """
    found = Pool.objects.filter(pk=name).first()
    if found is None:
        raise _not_found(name)
    return found


def _not_found(name: str) -> NotFound:
    return NotFound(
        f"Worker pool '{name}' not found.",
        hint="Make it with PUT /ojs/v1/admin/pools/{name}.",
        resource_type="pool",
        resource_id=name,
    )


def order_of(name: str) -> list[str]:
    """Return the queues of a pool, in the order in which the next fetch searches them.

    Raises:
        NotFound: there is no such pool.
    """
    pool = find(name)
    weights = {queue: int(pool.weights.get(queue, 1)) for queue in pool.queues}
    return search_order(weights, pool.strategy)


def search_order(weights: Mapping[str, int], strategy: str) -> list[str]:
    """Return queues in the order in which a fetch searches them (OJS priority §7).

    `weighted` draws the order anew for each fetch: a queue of weight 5 comes first five times as
    often as one of weight 1, and every queue gets its turn. `round-robin` draws with equal weights:
    processes need not agree about whose turn it is.
    """
    names = list(weights)
    if strategy == PoolStrategy.STRICT:
        return names
    if strategy == PoolStrategy.LEAST_LOADED:
        depths = dashboard.depths(names)
        return sorted(names, key=lambda name: depths[name].of(State.AVAILABLE), reverse=True)
    is_weighted = strategy == PoolStrategy.WEIGHTED
    # The largest u ** (1 / weight) belongs to each queue in proportion to its weight.
    drawn = {
        name: random.random() ** (1 / (weight if is_weighted else 1))
        for name, weight in weights.items()
    }
    return sorted(names, key=lambda name: drawn[name], reverse=True)
