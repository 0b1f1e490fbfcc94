"""Default policy: the configuration that new queues start with (queue config §7)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ..models import Queue, QueuePolicy, RateLimit
from ..record.events import queue_event, record
from ..spec import queue_config
from ..store import clock
from ..store.database import atomic
from .limits import QUEUE_KEY

DEFAULT = "_default"
"""No queue can have this name."""


def default_policy() -> dict[str, Any]:
    """Return the configuration of queues created from now on; empty if none is set."""
    found = QueuePolicy.objects.filter(pk=DEFAULT).values_list("config", flat=True).first()
    return found or {}


def change_default(changes: dict[str, Any]) -> dict[str, Any]:
    """Change the default policy by a checked configuration; null removes a member (§7.1).

    Existing queues stay as they are (§4).
    """
    with atomic():
        QueuePolicy.objects.get_or_create(pk=DEFAULT)
        row = QueuePolicy.objects.select_for_update().get(pk=DEFAULT)
        row.config = queue_config.merged(row.config, changes)
        QueuePolicy.objects.filter(pk=DEFAULT).update(config=row.config, updated_at=clock.now())
        record([queue_event("queue.config_updated", DEFAULT, changed=sorted(changes))])
    config: dict[str, Any] = row.config
    return config


def make(names: Collection[str], policy: dict[str, Any]) -> None:
    """Create queues that do not exist yet, with this policy."""
    there: set[str] = set()
    if policy.get("rate_limit"):
        there = set(Queue.objects.filter(pk__in=names).values_list("pk", flat=True))
    rows = [Queue(name=name, **columns(policy)) for name in sorted(names)]
    Queue.objects.bulk_create(rows, ignore_conflicts=True)
    for name in sorted(set(names) - there):
        remember_rate(name, policy.get("rate_limit"), is_new=True)


def columns(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as the columns of a queue."""
    kept = {name: value for name, value in config.items() if name != "concurrency"}
    return {
        "config": kept,
        "concurrency": config.get("concurrency"),
        "max_depth": config.get("max_depth"),
        "has_limits": "rate_limit" in config or queue_config.by_tenant(config),
        "has_tenants": queue_config.by_tenant(config),
        "is_guarded": queue_config.says_something_about_new_jobs(config),
    }


def remember_rate(queue: str, policy: dict[str, Any] | None, *, is_new: bool = False) -> None:
    """Store the rate limit of a whole queue, or that it has none."""
    key = QUEUE_KEY + queue
    if policy is None:
        if not is_new:
            RateLimit.objects.filter(pk=key).delete()
        return
    now = clock.now()
    RateLimit.objects.bulk_create([RateLimit(key=key, updated_at=now)], ignore_conflicts=True)
    RateLimit.objects.filter(pk=key).update(policy=policy, closed_until=None, updated_at=now)
