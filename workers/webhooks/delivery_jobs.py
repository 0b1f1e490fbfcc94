"""The jobs that carry deliveries, one for each.

A delivery is the record of what is sent and of what became of it. Its job decides when: the engine
keeps the pauses between attempts, limits the requests under way for one subscription, and gives the
job to another worker if one dies. `chores.webhook_worker` runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Q
from django.db.models.functions import Now

from jobs import engine
from jobs.models import Event, Job, Queue, RateLimit
from jobs.spec.identifiers import uuid7
from jobs.spec.lifecycle import State
from jobs.spec.reserved import WEBHOOK_JOB, WEBHOOK_QUEUE
from jobs.spec.validation import NewJob
from jobs.store import clock, looks
from jobs.store.database import atomic, connection

from ..models import DeliveryState, WebhookDelivery, WebhookSubscription

PAUSES = tuple(timedelta(seconds=each) for each in (30, 120, 600, 3600, 14_400, 43_200, 86_400))
"""After the first attempt, the second and so on (§7.2)."""
TRIES = len(PAUSES) + 1
EACH = 4
"""Requests under way for one subscription."""
EACH_FAILING = 1
LIMIT = "webhook/"
"""Prefix of the subscription in the key of its rate limit; no client's key has a slash."""
TIMEOUT = timedelta(minutes=2)
"""Of an execution; an attempt has a limit of its own, a minute at most."""
BACKOFF = {
    "initial_interval": "PT30S",
    "backoff_coefficient": 4,
    "max_interval": "P1D",
    "on_exhaustion": "discard",
}
"""Of executions that end without an attempt that was noted, which would say when the next is."""
CONFIG = {"retention": {"completed": "PT1H", "cancelled": "PT1H", "discarded": "PT1H"}}
"""Of the queue when it is made: the delivery is the record, not the job."""
BATCH = 500


def enqueue(rows: Sequence[WebhookDelivery]) -> None:
    """Enqueue a job for each of the deliveries, and note in them which; does not save them.

    In the caller's transaction, which writes the deliveries. Their subscriptions are loaded.
    """
    if not rows:
        return
    if not Queue.objects.filter(pk=WEBHOOK_QUEUE).exists():
        engine.queue_policy.make([WEBHOOK_QUEUE], CONFIG)
    now = clock.now()
    new = [_job_of(row, now) for row in rows]
    # Events were accepted when they happened: neither maintenance nor a full queue loses one.
    with engine.bounds.accepted():
        engine.enqueue(new)
    for row, job in zip(rows, new, strict=True):
        row.job_id = job.id


def _job_of(row: WebhookDelivery, now: datetime) -> NewJob:
    most = max(TRIES - row.tries, 1)
    owner = row.subscription
    return NewJob(
        type=WEBHOOK_JOB,
        args=[str(row.pk)],
        id=uuid7(),
        queue=WEBHOOK_QUEUE,
        max_attempts=most,
        retry={"max_attempts": most} | BACKOFF,
        timeout=TIMEOUT,
        scheduled_at=row.next_try_at if row.next_try_at > now else None,
        rate_limit={"key": key_of(owner.pk)} | _limits(is_failing=owner.failing_since is not None),
    )


def key_of(subscription: UUID) -> str:
    return f"{LIMIT}{subscription}"


def _limits(*, is_failing: bool) -> dict[str, Any]:
    return {"concurrency": EACH_FAILING if is_failing else EACH}


def limit(subscription: UUID, *, is_failing: bool) -> None:
    """Limit the requests under way for a subscription, now that it works again or does not."""
    engine.limits.make_known({key_of(subscription): _limits(is_failing=is_failing)})


def hold(subscription: UUID, until: datetime) -> None:
    """Send nothing to a subscription before `until`: its receiver limits the rate of requests, and
    each that it refuses would be one of a delivery's few attempts."""
    engine.limits.hold(key_of(subscription), until, "The receiver answered 429.")


@looks.only_if_any(WebhookDelivery.objects.jobless)
def enqueue_missing() -> int:
    """Enqueue a job for each of a batch of deliveries that wait for one; return how many."""
    skip = connection().features.has_select_for_update_skip_locked
    with atomic():
        jobless = WebhookDelivery.objects.jobless().select_related("subscription").order_by("pk")
        rows = list(jobless.select_for_update(skip_locked=skip, of=("self",))[:BATCH])
        enqueue(rows)
        WebhookDelivery.objects.bulk_update(rows, ["job_id"])
    return len(rows)


def _lost() -> Any:
    """The pending deliveries whose job has ended, or was deleted, without them."""
    unfinished = Job.objects.filter(pk=OuterRef("job_id"), finished_at__isnull=True)
    return WebhookDelivery.objects.pending().filter(~Exists(unfinished), job_id__isnull=False)


def _hopeless() -> Any:
    """Those that get no other job: their last attempt is over, or an operator cancelled the job."""
    cancelled = Job.objects.filter(pk=OuterRef("job_id"), state=State.CANCELLED)
    return Q(tries__gte=TRIES) | Exists(cancelled)


def bury() -> list[WebhookDelivery]:
    """Declare dead one batch of lost deliveries that get no other job; return them."""
    skip = connection().features.has_select_for_update_skip_locked
    with atomic():
        lost = _lost().filter(_hopeless()).order_by("pk")
        rows = list(lost.select_for_update(skip_locked=skip)[:BATCH])
        dead = WebhookDelivery.objects.pending().filter(pk__in=[row.pk for row in rows])
        dead.update(state=DeliveryState.DEAD, finished_at=Now())
    return rows


def mend() -> None:
    """Let go of the other lost deliveries, so that they get a job once more."""
    _lost().exclude(_hopeless()).update(job_id=None)


def cancel(rows: Any, *, by: str = "", reason: str = "") -> None:
    """Cancel the jobs of the deliveries `rows`, a queryset; those that are left do nothing."""
    carrying = Job.objects.filter(pk__in=rows.filter(job_id__isnull=False).values("job_id"))
    engine.bulk.cancel(carrying, cancelled_by=by, reason=reason)


def forget(row: WebhookSubscription) -> None:
    """Delete the limit of a subscription that is being deleted."""
    RateLimit.objects.filter(pk=key_of(row.pk)).delete()


def is_about_one(event: Event) -> bool:
    """Whether an event is about these jobs: a delivery of it would cause another without end."""
    return WEBHOOK_QUEUE in (event.queue, event.subject) or event.subject.startswith(LIMIT)
