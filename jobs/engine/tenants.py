"""Limits of tenants on enqueues (OJS multi-tenancy §8); `limited_claim` applies the others.

Producers of a limited tenant take turns locking its row, so that two of them cannot both see the
last free place. Which tenants are limited is read with the schema registry, under its token: jobs
of other tenants cost nothing, and a new limit is in force at once, in every process.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import orjson
from django.db.models import Count

from ..access.projects import scope_to
from ..conf import ojs_settings
from ..errors import JobTooLarge, NotFound, TenantLimitExceeded
from ..models import Job, Tenant
from ..models.job import DUE_STATES
from ..record.events import record, tenant_event
from ..spec import rate_policy
from ..spec.batches import representatives, shared_targets
from ..spec.lifecycle import State
from ..spec.rate_policy import Memory
from ..spec.tenants import MOST_PRIORITY, check_name, default_tenant, read_tenant
from ..spec.validation import NewJob
from ..store import clock, wakeup
from . import queue_marks, schemas


def configure(name: str, changes: dict[str, Any], *, reason: str = "") -> tuple[Tenant, bool]:
    """Set the limits and the share of a tenant; return it and whether it is new (§10.1).

    They hold from the next enqueue and the next fetch on; jobs that wait already stay.

    Args:
        changes: columns of `Tenant`.
    """
    with schemas.changing():
        row, created = Tenant.objects.get_or_create(pk=name)
        queues = _queues_with_jobs(name)
        if changes.get("max_concurrency", row.max_concurrency) is not None:
            # Queues before tenants, as an enqueue locks them.
            queue_marks.mark(queues, (), queues)
        Tenant.objects.filter(pk=name).update(**changes, updated_at=clock.now())
        row.refresh_from_db()
        about = {"changed": sorted(changes)} | ({"reason": reason} if reason else {})
        record(
            [
                *([tenant_event("tenant.created", name)] if created else []),
                tenant_event("tenant.updated", name, **about),
            ]
        )
        # A fetch may have waited for room.
        wakeup.notify(sorted(queues))
    return row, created


def delete(name: str) -> None:
    """Delete the limits and the share of a tenant; its jobs stay.

    Raises:
        NotFound: it has none.
    """
    with schemas.changing():
        deleted, _ = Tenant.objects.filter(pk=name).delete()
        if not deleted:
            raise not_found(name)
        record([tenant_event("tenant.updated", name, changed=["deleted"])])


def declare() -> int:
    """Make the tenants of `OJS["TENANTS"]` that do not exist; return how many (§15.1)."""
    declared = ojs_settings.TENANTS
    if not declared:
        return 0
    known = set(Tenant.objects.filter(pk__in=declared).values_list("pk", flat=True))
    missing = [name for name in declared if name not in known]
    for name in missing:
        configure(name, read_tenant(declared[name], check_name(name)))
    return len(missing)


def not_found(name: str) -> NotFound:
    return NotFound(
        f"Tenant '{name}' not found.",
        hint="Make it with PUT /ojs/v1/admin/tenants/{id}.",
        resource_type="tenant",
        resource_id=name,
    )


def is_limited(project: str) -> bool:
    return (project or default_tenant()) in schemas.limited_tenants()


def are_limited(new: Sequence[NewJob]) -> bool:
    """Whether `admit` must check these jobs; call it after `schemas.checked`."""
    limited = schemas.limited_tenants()
    return bool(limited) and any(
        (job.project or default_tenant()) in limited for job in representatives(new)
    )


def admit(new: Sequence[NewJob]) -> None:
    """Lock the tenants with limits, and check their new jobs.

    Must run in the transaction that stores the jobs, after queues were locked.

    Raises:
        TenantLimitExceeded: one of them is at a limit.
        JobTooLarge: a job is larger than its tenant's may be.
    """
    found: dict[str, list[NewJob]] = {}
    for job in new:
        found.setdefault(job.project or default_tenant(), []).append(job)
    for tenant in locked(found):
        _admit(tenant, found[tenant.pk])


def locked(names: Collection[str]) -> list[Tenant]:
    return list(Tenant.objects.filter(pk__in=names).order_by("pk").select_for_update())


def give_fallback(new: Sequence[NewJob]) -> None:
    """Assign jobs without a tenant to the default one, where their queue or its limits ask for it.

    Only now: until here, a job without a project may name any parent.
    """
    for job in shared_targets(new):
        if job.fallback_tenant and not job.project:
            job.project = job.fallback_tenant


def record_refusal(refusal: TenantLimitExceeded) -> None:
    """Record that a tenant was refused (§11.1)."""
    record([_exceeded(refusal)])


# One query for each partial index; for a single query the planner would read the whole table.
WAITING: tuple[dict[str, Any], ...] = (
    {"state": State.AVAILABLE},
    {"state__in": DUE_STATES},
    {"state": State.PENDING},
)
HELD: dict[str, Any] = {"state": State.ACTIVE, "reserved_for__isnull": False}
"""Jobs that may wait again; the second condition lets PostgreSQL use the partial index on them."""
SCHEDULED: tuple[dict[str, Any], ...] = ({"state__in": DUE_STATES, "state": State.SCHEDULED},)


def waiting(tenant: str, most: int, indexes: Sequence[dict[str, Any]] = WAITING) -> int:
    """Return how many of a tenant's jobs wait, counted up to `most`."""
    count = 0
    for index in indexes:
        rows = scope_to(Job.objects.filter(**index), tenant).values("pk")
        count += rows[: most - count].count() if count < most else 0
    return count


def most_active(names: Collection[str]) -> dict[str, int]:
    """Return how many jobs of each of these tenants may be active; none for one without a limit."""
    rows = Tenant.objects.filter(pk__in=names, max_concurrency__isnull=False)
    return {name: most or 0 for name, most in rows.values_list("pk", "max_concurrency")}


def active_jobs(names: Collection[str]) -> Counter[str]:
    """Return how many jobs of each of these tenants are active, in all queues together."""
    held = Job.objects.filter(**HELD, project__in=list(names)).order_by().values_list("project")
    return Counter(dict(held.annotate(jobs=Count("pk"))))


def remaining(tenant: str) -> tuple[int, int, datetime] | None:
    """Return how many jobs a tenant may enqueue in its window, how many more it may now, and when
    one certainly may be; None without such a limit.

    Call it after an enqueue: which tenants are limited is known then, and no query is needed for
    the others.
    """
    if tenant not in schemas.limited_tenants():
        return None
    row: Any = Tenant.objects.filter(pk=tenant, max_enqueue_rate__isnull=False).first()
    if row is None:
        return None
    rate, now = row.max_enqueue_rate, clock.now()
    found = rate_policy.room({"rate": rate}, Memory(row.enqueues), 0, now, None)
    return rate["limit"], found.jobs, now if found.jobs else found.again_at or now


def _admit(tenant: Tenant, new: Sequence[NewJob]) -> None:
    now = clock.now()
    if tenant.max_job_size is not None:
        limit = SizeLimit(tenant.pk, tenant.max_job_size)
        for index, job in enumerate(new):
            limit.check(job, f"Job {index} of the batch" if len(new) > 1 else "The job")
    for refusal in _exceeds(tenant, new, now):
        if not tenant.is_soft:
            raise refusal
        record([_exceeded(refusal, soft=True)])
    for job in new:
        if not job.project:
            job.fallback_tenant = tenant.pk
        if tenant.priority_boost:
            boosted = job.priority + tenant.priority_boost
            job.priority = max(-MOST_PRIORITY, min(MOST_PRIORITY, boosted))
    if tenant.max_enqueue_rate is not None:
        memory = Memory(tenant.enqueues)
        rate_policy.remember({"rate": tenant.max_enqueue_rate}, memory, len(new), now)
        Tenant.objects.filter(pk=tenant.pk).update(enqueues=memory.starts)


def _exceeds(tenant: Tenant, new: Sequence[NewJob], now: datetime) -> list[TenantLimitExceeded]:
    """Return a refusal for each limit that the jobs would exceed."""
    found = []
    rate, most = tenant.max_enqueue_rate, tenant.max_queue_depth
    if rate is not None:
        room = rate_policy.room({"rate": rate}, Memory(tenant.enqueues), 0, now, None)
        if len(new) > room.jobs:
            again = (room.again_at - now).total_seconds() if room.again_at else 1
            found.append(
                TenantLimitExceeded(
                    tenant.pk,
                    "max_enqueue_rate",
                    room.current,
                    rate["limit"],
                    size=len(new),
                    retry_after=max(1, math.ceil(again)),
                    remaining=room.jobs,
                )
            )
    if most is not None:
        depth = waiting(tenant.pk, most)
        if depth + len(new) > most:
            size = len(new)
            found.append(TenantLimitExceeded(tenant.pk, "max_queue_depth", depth, most, size=size))
    most = tenant.max_scheduled
    later = sum(job.scheduled_at is not None and job.scheduled_at > now for job in new)
    if most is not None and later:
        depth = waiting(tenant.pk, most, SCHEDULED)
        if depth + later > most:
            found.append(TenantLimitExceeded(tenant.pk, "max_scheduled", depth, most, size=later))
    return found


class SizeLimit(NamedTuple):
    """How many bytes of arguments and meta each job of a tenant may have."""

    tenant: str
    most: int

    def check(self, job: NewJob, which: str) -> None:
        """
        Raises:
            JobTooLarge: the job has more; `which` job it is begins the message.
        """
        size = len(orjson.dumps([job.args, job.meta])) - len(b"[,]")
        if size > self.most:
            raise JobTooLarge(
                f"{which} has {size} bytes of arguments and meta; those of the tenant "
                f"'{self.tenant}' may have {self.most}.",
                tenant_id=self.tenant,
                limit="max_job_size",
                current=size,
                maximum=self.most,
            )


def size_limit(project: str) -> SizeLimit | None:
    """Return the limit of the tenant of these jobs, once the registry has been read.

    Another job of the tenant was just stored, or `schemas.refresh` was called.
    """
    if not is_limited(project):
        return None
    name = project or default_tenant()
    limited = Tenant.objects.filter(pk=name, max_job_size__isnull=False)
    most = limited.values_list("max_job_size", flat=True).first()
    return None if most is None else SizeLimit(name, most)


def _exceeded(refusal: TenantLimitExceeded, *, soft: bool = False) -> Any:
    about = {name: refusal.details[name] for name in ("limit", "current", "maximum")}
    return tenant_event("tenant.limit_exceeded", refusal.details["tenant_id"], **about, soft=soft)


def _queues_with_jobs(tenant: str) -> set[str]:
    return {
        queue
        for index in (*WAITING, HELD)
        for queue in scope_to(Job.objects.filter(**index), tenant)
        .order_by()
        .values_list("queue", flat=True)
        .distinct()
    }
