"""The jobs behind a rate limit: which keys wait, and what becomes of those that may not start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.db.models.functions import Now

from ..errors import InvalidRequest
from ..models import Job, RateLimit
from ..record.events import job_event, partition_event, record
from ..spec import rate_policy
from ..spec.lifecycle import Event, State
from ..store import clock
from ..store.database import atomic, connection, run
from .discarding import discard_waiting

BATCH = 100
MOST_KEYS = 5_000
# One probe of the index for each key, however many jobs wait behind it.
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


def keys_waiting(queue: str) -> list[str]:
    """The rate limit keys of which jobs are available in the queue; each has a partition."""
    keys = [key for (key,) in run(WAITING, [queue, queue, MOST_KEYS])]
    known = set(RateLimit.objects.filter(pk__in=keys).values_list("pk", flat=True))
    lost = [key for key in keys if key not in known]
    if lost:
        # Restored from a backup, or pruned meanwhile: its jobs still know their policy.
        jobs = Job.objects.filter(queue=queue, state=State.AVAILABLE)
        make_known({key: _policy_of(jobs.filter(rate_key=key).first()) for key in lost})
    return keys


def _policy_of(job: Job | None) -> dict[str, Any]:
    if job is None:
        return {}
    try:
        return rate_policy.job_policy((job.attributes or {}).get("rate_limit"), job.queue)
    except (InvalidRequest, AttributeError):
        return {}


def make_known(policies: Mapping[str, Mapping[str, Any]]) -> None:
    """Store the policies that are new or have changed."""
    wanted = {
        key: {name: value for name, value in policy.items() if name != "key"}
        for key, policy in policies.items()
    }
    known = dict(RateLimit.objects.filter(pk__in=wanted).values_list("pk", "policy"))
    changed = [key for key in sorted(wanted) if known.get(key) != wanted[key]]
    if not changed:
        return
    with atomic():
        if len(changed) > 1:
            # In the order in which a fetch locks several: the database's, not Python's.
            rows = RateLimit.objects.filter(pk__in=changed).order_by("pk").select_for_update()
            list(rows.values_list("pk", flat=True))
        # Another policy may open what the old one had closed.
        RateLimit.objects.bulk_create(
            [RateLimit(key=key, policy=wanted[key], updated_at=clock.now()) for key in changed],
            update_conflicts=True,
            unique_fields=["key"],
            update_fields=["policy", "closed_until", "updated_at"],
        )


def promote_due(queue: str) -> None:
    """Make a batch of the queue's due jobs available: a fetch does not depend on the reaper."""
    skip = connection().features.has_select_for_update_skip_locked
    due = list(
        Job.objects.due()
        .filter(queue=queue)
        .order_by("scheduled_at")
        .select_for_update(skip_locked=skip)
        .only("type", "queue", "attempt")[:BATCH]
    )
    if due:
        _batch(due).transition(Event.TIMER, State.AVAILABLE, enqueued_at=Now())
        now = clock.now()
        record(job_event("job.enqueued", job, time=now) for job in due)


def _batch(jobs: Sequence[Job]) -> Any:
    return Job.objects.filter(pk__in=[job.pk for job in jobs])


def _oldest(queue: str, key: str) -> list[Job]:
    skip = connection().features.has_select_for_update_skip_locked
    return list(
        Job.objects.filter(queue=queue, rate_key=key, state=State.AVAILABLE)
        .order_by("-priority", "enqueued_at", "id")
        .select_for_update(skip_locked=skip)
        .only("type", "queue", "attempt", "followed")[:BATCH]
    )


def drop(queue: str, key: str, now: datetime) -> list[Any]:
    """Discard a batch of jobs that may not start; return what is to be told (§6.2 `drop`)."""
    # Late, because following a job may enqueue others, which leads here.
    from .dependents import follow

    jobs = _oldest(queue, key)
    message = f"Dropped: the rate limit '{key}' was reached."
    discarded = discard_waiting(jobs, code="rate_limited", message=message, now=now)
    follow([job.pk for job in jobs if job.followed])
    dropped = [
        partition_event("rate_limit.dropped", key, job_id=str(job.pk), job_type=job.type)
        for job in jobs
    ]
    return [event for pair in zip(discarded, dropped, strict=True) for event in pair]


def reschedule(queue: str, key: str, until: datetime) -> list[Any]:
    """Put a batch of jobs off until the limit may allow them (§6.2 `reschedule`)."""
    jobs = _oldest(queue, key)
    _batch(jobs).transition(Event.DEFER, State.SCHEDULED, scheduled_at=until)
    told = {"scheduled_at": until.isoformat()}
    now = clock.now()
    return [job_event("job.scheduled", job, time=now, data=told) for job in jobs]
