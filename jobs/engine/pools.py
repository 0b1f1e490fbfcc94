"""Worker pools, and the order in which a fetch searches its queues (OJS fair scheduling §6, §7)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from ..errors import NotFound
from ..models import Pool, PoolStrategy
from ..record import dashboard
from ..record.events import pool_event, record
from ..spec.lifecycle import State
from ..store import clock
from ..store.database import atomic


def configure(name: str, columns: dict[str, Any]) -> tuple[Pool, bool]:
    """Make or replace a pool; return it and whether it is new. The next fetch goes by it."""
    with atomic():
        row, created = Pool.objects.get_or_create(pk=name, defaults=columns)
        row = Pool.objects.select_for_update().get(pk=name)
        before = row.strategy
        changed = any(getattr(row, column) != value for column, value in columns.items())
        Pool.objects.filter(pk=name).update(**columns, updated_at=clock.now())
        row.refresh_from_db()
        if changed:
            about = {"previous_strategy": before, "new_strategy": row.strategy}
            record([pool_event("scheduling.rebalanced", name, **about)])
    return row, created


def delete(name: str) -> None:
    """
    Raises:
        NotFound: there is no such pool.
    """
    deleted, _ = Pool.objects.filter(pk=name).delete()
    if not deleted:
        raise _not_found(name)


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
