"""Names of this server's own jobs, which only its own workers run.

They are refused wherever a client, an operator or a site's code names a type or a queue for a job,
wherever a worker of a protocol asks for jobs, and in worker pools.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import InvalidRequest
from .fields import refuse

WEBHOOK_JOB = "ojs.webhook.deliver"
"""Sends a delivery of a webhook (OJS webhooks §7)."""
WEBHOOK_QUEUE = "ojs.webhooks"
TYPES = frozenset({WEBHOOK_JOB})
QUEUES = frozenset({WEBHOOK_QUEUE})


def refused_type(name: str, place: str) -> InvalidRequest:
    return refuse(
        place, f"Jobs of type '{name}' are this server's own.", validation="reserved", type=name
    )


def refused_queue(name: str, place: str) -> InvalidRequest:
    return refuse(
        place, f"Queue '{name}' is for this server's own jobs.", validation="reserved", queue=name
    )


def refuse_queues(names: Iterable[str], place: str = "queues") -> None:
    """
    Raises:
        InvalidRequest: one of the queues that a worker serves is not for workers of a protocol.
    """
    for name in QUEUES.intersection(names):
        raise refused_queue(name, place)
