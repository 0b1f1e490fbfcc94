"""What a queue must have before its jobs can be fetched: a row, and marks of their limits.

A fetch looks at rate limits only in queues that are marked `has_limits`, and at limits of tenants
only in those marked `has_tenants`. Whatever makes jobs available or puts them in another queue
calls `prepare`; new jobs that have no such limits need no call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from django.db.models import Q, QuerySet

from ..models import Job, Queue, Tenant
from ..spec.batches import representatives
from ..spec.tenants import default_tenant
from ..spec.validation import NewJob
from ..store import wakeup
from ..store.database import atomic, run
from . import queue_policy, schemas

SHARED = {"has_limits": True, "has_tenants": True, "is_guarded": True}

# Index probes for each queue, and for each queue of a tenant with a limit of active jobs, however
# many jobs wait there. EXISTS would not do: for it, PostgreSQL may read all jobs with a rate limit.
UNMARKED = """
    WITH RECURSIVE waiting (queue) AS (
        SELECT (SELECT min(queue) FROM ojs_jobs_job WHERE state = 'available')
     UNION ALL
        SELECT (SELECT min(job.queue)
                  FROM ojs_jobs_job AS job
                 WHERE job.state = 'available' AND job.queue > waiting.queue)
          FROM waiting
         WHERE queue IS NOT NULL
    ), waiting_of (project, queue) AS (
        SELECT tenant.name,
               (SELECT min(job.queue)
                  FROM ojs_jobs_job AS job
                 WHERE job.state = 'available'
                   AND job.project <> '' AND job.project = tenant.name)
          FROM ojs_jobs_tenant AS tenant
         WHERE tenant.max_concurrency IS NOT NULL
     UNION ALL
        SELECT waiting_of.project,
               (SELECT min(job.queue)
                  FROM ojs_jobs_job AS job
                 WHERE job.state = 'available'
                   AND job.project <> '' AND job.project = waiting_of.project
                   AND job.queue > waiting_of.queue)
          FROM waiting_of
         WHERE queue IS NOT NULL
    ), needed (queue, is_limited, is_shared) AS (
        SELECT queue,
               (SELECT min(job.rate_key)
                  FROM ojs_jobs_job AS job
                 WHERE job.state = 'available'
                   AND job.queue = waiting.queue AND job.rate_key > '') IS NOT NULL,
               queue IN (SELECT queue FROM waiting_of WHERE queue IS NOT NULL)
          FROM waiting
         WHERE queue IS NOT NULL
    )
    SELECT needed.queue, needed.is_limited, needed.is_shared
      FROM needed
 LEFT JOIN ojs_jobs_queue AS known ON known.name = needed.queue
     WHERE known.name IS NULL
        OR (needed.is_limited AND NOT known.has_limits)
        OR (needed.is_shared AND NOT known.has_tenants)
"""


def prepare(jobs: Iterable[Job], queue: str | None = None) -> None:
    """Make the queues of jobs that are about to become available, and mark them.

    Args:
        queue: the one in which the jobs are about to be put.
    """
    kinds = {(queue or job.queue, job.rate_key != "", job.project) for job in jobs}
    if not kinds:
        return
    with_limit = Tenant.objects.filter(max_concurrency__isnull=False)
    capped = set(with_limit.values_list("pk", flat=True))
    limited = {name for name, is_limited, _ in kinds if is_limited}
    shared = {name for name, _, project in kinds if project in capped}
    mark({name for name, _, _ in kinds}, limited, shared)


def prepare_new(new: Sequence[NewJob]) -> None:
    """Do the same for new jobs, once `schemas.checked` has read the tenants."""
    limited, shared = _marks_of(new)
    mark(limited | shared, limited, shared)


def lock(new: Sequence[NewJob], *, at_once: bool = False) -> None:
    """Lock the queues that must admit these jobs or must be marked, in the order of fetches.

    Args:
        at_once: even if no queue must be marked. Otherwise those that must admit them are locked
            as they do.
    """
    limited, shared = _marks_of(new)
    limited, shared = _unmarked(limited | shared, limited, shared)
    lacking = limited | shared
    if lacking or at_once:
        locked = Q(is_guarded=True) | Q(pk__in=lacking)
        _lock(Queue.objects.filter(locked, pk__in={job.queue for job in representatives(new)}))


def mark(names: Collection[str], limited: Collection[str], shared: Collection[str]) -> None:
    """Make queues that do not exist, and mark those that are not yet.

    Args:
        limited: those of jobs with a rate limit.
        shared: those of jobs whose tenant has a limit of active jobs.
    """
    limited, shared = _unmarked(names, limited, shared)
    if len(limited | shared) > 1:
        _lock(Queue.objects.filter(pk__in=limited | shared))
    if shared:
        Queue.objects.filter(pk__in=shared).update(**SHARED)
    if limited - shared:
        Queue.objects.filter(pk__in=limited - shared).update(has_limits=True)


def mend() -> int:
    """Make and mark queues whose available jobs need it; return how many.

    An enqueue does not lock its queue. If the queue is deleted, or a tenant's limit set, while the
    transaction of the enqueue is open, neither sees the other.
    """
    found = run(UNMARKED, ())
    if not found:
        return 0
    names = {name for name, _, _ in found}
    with atomic():
        mark(
            names,
            {name for name, is_limited, _ in found if is_limited},
            {name for name, _, is_shared in found if is_shared},
        )
        wakeup.notify(names)
    return len(names)


def _marks_of(new: Sequence[NewJob]) -> tuple[set[str], set[str]]:
    capped = schemas.limited_tenants()
    limited = {job.queue for job in representatives(new) if job.rate_limit}
    if not capped:
        return limited, set()
    fallback = default_tenant()
    return limited, {
        job.queue for job in representatives(new) if capped.get(job.project or fallback)
    }


def _unmarked(
    names: Collection[str], limited: Collection[str], shared: Collection[str]
) -> tuple[set[str], set[str]]:
    """Make queues that do not exist; return the limited and the shared that are not marked."""
    if not names:
        return set(), set()
    columns = ("pk", "has_limits", "has_tenants")
    known = list(Queue.objects.filter(pk__in=names).values_list(*columns))
    if missing := set(names) - {name for name, _, _ in known}:
        queue_policy.make(missing, queue_policy.default_policy())
    return (
        set(limited) - {name for name, has_limits, _ in known if has_limits},
        set(shared) - {name for name, _, has_tenants in known if has_tenants},
    )


def _lock(queues: QuerySet[Queue]) -> None:
    list(queues.order_by("pk").select_for_update().values_list("pk", flat=True))
