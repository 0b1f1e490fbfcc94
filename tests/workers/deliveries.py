"""Runs the jobs that carry deliveries of webhooks, in the thread of the test."""

from __future__ import annotations

from django.db.models.functions import Now

from jobs.models import Job, RateLimit
from jobs.spec.reserved import WEBHOOK_QUEUE
from tests.factories import ago
from workers.models import WebhookDelivery
from workers.runtime import handlers
from workers.runtime.client import LocalClient, Request
from workers.runtime.context import JobContext
from workers.runtime.execution import Settled, execute

CARRYING = Job.objects.filter(queue=WEBHOOK_QUEUE)


def end_pauses() -> int:
    """What waits for its next attempt is due; return how many jobs do."""
    WebhookDelivery.objects.pending().update(next_try_at=ago(1))
    RateLimit.objects.update(held_until=None, closed_until=None)
    return CARRYING.filter(finished_at=None, scheduled_at__gt=Now()).update(scheduled_at=ago(1))


def fetched(client: LocalClient) -> list[JobContext]:
    return client.exchange([], Request([WEBHOOK_QUEUE], 10)).jobs


def run(client: LocalClient, context: JobContext) -> None:
    handler = handlers.find(context.type)
    assert handler is not None
    report = execute(handler, context)
    assert not isinstance(report, Settled)
    done = client.exchange([report], None)
    assert not (done.refused or done.too_large)


def run_waiting(worker_id: str = "postman") -> None:
    """Run the jobs that are due, as a worker does, until none is left."""
    client = LocalClient(worker_id)
    while contexts := fetched(client):
        for context in contexts:
            run(client, context)
