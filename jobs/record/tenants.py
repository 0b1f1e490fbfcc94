"""Figures of tenants, read only (OJS multi-tenancy §10.2, §11.2)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from django.db.models import Count

from ..access.projects import scope_to
from ..models import ApiKey, Job, JobError, Tenant
from ..models.job import DUE_STATES
from ..spec.identifiers import first_id
from ..spec.lifecycle import State
from ..store import clock
from .counts import WINDOW, remembered

DAY = timedelta(days=1)
MOST = 1_000
"""Most tenants in figures and labels (§15.4)."""
OTHER = "_other"
"""The tenant in labels that stands for the rest."""
WAITING: tuple[tuple[State, dict[str, Any]], ...] = (
    (State.AVAILABLE, {"state": State.AVAILABLE}),
    (State.SCHEDULED, {"state": State.SCHEDULED, "state__in": DUE_STATES}),
    (State.RETRYABLE, {"state": State.RETRYABLE, "state__in": DUE_STATES}),
    (State.ACTIVE, {"state": State.ACTIVE, "reserved_for__isnull": False}),
)
"""Each part of a query has a partial index of its own."""


@dataclass(slots=True)
class Figures:
    """What a tenant has and does."""

    jobs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(State.values, 0))
    completed: int = 0
    """In the last day."""
    failed: int = 0
    """Attempts that failed in the last day."""
    processed_per_minute: float = 0
    enqueued_per_minute: float = 0
    share: float | None = None
    """Of all jobs of tenants that completed in the last minutes."""


def by_queue() -> dict[tuple[str, str, str], int]:
    """Tenant, queue and state → unfinished jobs, of jobs with a tenant."""

    def count() -> dict[tuple[str, str, str], int]:
        first, *rest = (
            Job.objects.filter(**index)
            .exclude(project="")
            .order_by()
            .values_list("project", "queue", "state")
            .annotate(jobs=Count("pk"))
            for _, index in WAITING
        )
        return {
            (project, queue, state): jobs
            for project, queue, state, jobs in first.union(*rest, all=True)
        }

    found: dict[tuple[str, str, str], int] = remembered(("tenants", "queues"), count)
    return found


NO_JOBS = {str(state): 0 for state, _ in WAITING}


def by_state() -> dict[str, dict[str, int]]:
    """Tenant → state → unfinished jobs, of tenants that have any."""
    found: dict[str, dict[str, int]] = {}
    for (tenant, _, state), jobs in by_queue().items():
        found.setdefault(tenant, dict(NO_JOBS))[state] += jobs
    return found


def names() -> list[str]:
    """Return the tenants that are known: configured, with keys, or with unfinished jobs."""
    keys = ApiKey.objects.exclude(project="").values_list("project", flat=True)
    known = {project for project, _, _ in by_queue()}
    return sorted(known.union(keys.distinct(), Tenant.objects.values_list("pk", flat=True)))


def figures(tenant: str) -> Figures:
    """Return the figures of one tenant."""

    def count() -> Figures:
        found = Figures()
        own = scope_to(Job.objects.order_by(), tenant)
        for state, index in WAITING:
            found.jobs[state] = own.filter(**index).count()
        found.jobs[State.PENDING] = own.filter(state=State.PENDING).count()
        now = clock.now()
        ended = own.filter(state=State.COMPLETED, finished_at__isnull=False)
        found.completed = ended.filter(finished_at__gte=now - DAY).count()
        errors = JobError.objects.filter(job__project=tenant)
        found.failed = errors.filter(occurred_at__gte=now - DAY).count()
        minutes = WINDOW / timedelta(minutes=1)
        lately = now - WINDOW
        completed = ended.filter(finished_at__gte=lately).count()
        failed = errors.filter(occurred_at__gte=lately).count()
        found.processed_per_minute = round((completed + failed) / minutes, 2)
        new = own.filter(pk__gte=first_id(lately), created_at__gte=lately).count()
        found.enqueued_per_minute = round(new / minutes, 2)
        found.share = shares().get(tenant)
        return found

    found: Figures = remembered(("tenant", tenant), count)
    return found


def shares() -> dict[str, float]:
    """Return the share of each tenant in the jobs of tenants that completed in the last minutes."""

    def count() -> dict[str, float]:
        since = clock.now() - WINDOW
        rows = Job.objects.filter(state=State.COMPLETED, finished_at__gte=since).exclude(project="")
        done = dict(rows.order_by().values_list("project").annotate(jobs=Count("pk")))
        whole = sum(done.values())
        return {name: round(jobs / whole, 4) for name, jobs in done.items()}

    found: dict[str, float] = remembered(("tenants", "shares"), count)
    return found


def shares_by_label() -> dict[str, float]:
    """Return the shares by label: that of `_other` is the sum of the rest."""
    known = shares()
    named = labels(known)
    found: dict[str, float] = {}
    for tenant, part in known.items():
        found[named[tenant]] = round(found.get(named[tenant], 0) + part, 4)
    return found


def effective_share(tenant: str) -> float:
    """Return the share that its weight gives it now, among the tenants with waiting jobs."""
    waiting = {project for project, _, state in by_queue() if state == State.AVAILABLE} | {tenant}
    known = dict(Tenant.objects.filter(pk__in=waiting).values_list("pk", "fairness_weight"))
    whole = sum(known.get(name, 1.0) for name in waiting)
    return round(known.get(tenant, 1.0) / whole, 4)


def labels(tenants: Iterable[str]) -> dict[str, str]:
    """Return the label of each tenant: its name, or `_other` beyond the first `MOST` (§15.4).

    Configured tenants come first, then those by name.
    """
    every = set(tenants)
    if not every:
        return {}
    configured = set(Tenant.objects.filter(pk__in=every).values_list("pk", flat=True))
    ordered = sorted(every, key=lambda name: (name not in configured, name))
    return {name: name if index < MOST else OTHER for index, name in enumerate(ordered)}


def summed(
    counts: dict[tuple[str, str, str], int], states: Collection[str]
) -> dict[tuple[str, str], int]:
    """Label and queue → jobs in these states."""
    named = labels({tenant for tenant, _, _ in counts})
    found: dict[tuple[str, str], int] = {}
    for (tenant, queue, state), jobs in counts.items():
        if state in states:
            key = named[tenant], queue
            found[key] = found.get(key, 0) + jobs
    return found
