"""Reservations taken back: their time has passed, or their worker is gone (OJS worker §5.5, §10.2).

Each job gets an error of the attempt it was in. With attempts left it becomes available at once
with the next attempt already counted (see `claim`) and not begun (core §6.3), else it is discarded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..models import Job
from ..signals import jobs_reclaimed, send_on_commit
from ..store.contract import VISIBILITY_TIMEOUT, WORKER_DEATH, Cause
from ..store.stores import store
from .failure import forget_enqueue_ttl
from .flow import ending


def expire() -> int:
    """Take back one batch of reservations whose time has passed (§5.5); return how many.

    The error says how long the job was reserved, and for how long nothing was heard of it.
    """
    return _reclaim(VISIBILITY_TIMEOUT)


def reclaim(
    workers: Collection[str], details: Mapping[str, dict[str, Any] | None] | None = None
) -> int:
    """Take back one batch of the jobs that these workers hold, who are gone (§10.2).

    Returns how many. Jobs that are locked are being settled or extended right now, and left alone.

    Args:
        details: what the error says besides, by the id of the job's worker.
    """
    return _reclaim(WORKER_DEATH, workers, details or {})


def _reclaim(
    cause: Cause,
    workers: Collection[str] | None = None,
    details: Mapping[str, dict[str, Any] | None] | None = None,
) -> int:
    with ending() as ended:
        reclaimed = store().reclaim(cause, workers=workers, details=details or {})
        if reclaimed.begun:
            # Their own `expires_at` is text, as their client spelled it: for Python to read.
            forget_enqueue_ttl(Job.objects.filter(pk__in=reclaimed.begun).only("attributes"))
        ended += reclaimed.ended
    if reclaimed.number:
        send_on_commit(
            jobs_reclaimed,
            Job,
            count=reclaimed.number,
            error_type=cause.type,
            discarded=reclaimed.discarded,
        )
    return reclaimed.number
