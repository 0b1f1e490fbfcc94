"""Reclaims jobs whose reservation expired or whose worker is gone (OJS worker §5.5, §10.2).

Each job gets an error for its current attempt. With attempts left it becomes available at once,
the next attempt already counted (see `claim`) but not begun (core §6.3); else it is discarded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from ..models import Job
from ..signals import jobs_reclaimed, send_on_commit
from ..store.contract import VISIBILITY_TIMEOUT, WORKER_DEATH, Cause
from ..store.stores import store
from .dependencies import cancel_strays
from .failure import forget_enqueue_ttl
from .flow import ending


def expire() -> int:
    """Reclaim one batch of jobs whose visibility timeout has passed (§5.5); return how many.

    The error states how long the job was reserved, and for how long it got no sign of life.
    """
    return _reclaim(VISIBILITY_TIMEOUT)


def reclaim(
    workers: Collection[str],
    details: Mapping[str, dict[str, Any] | None] | None = None,
    *,
    project: str = "",
) -> int:
    """Reclaim one batch of the jobs held by these workers, which are gone (§10.2).

    Returns how many. Locked jobs are skipped: they are being settled or extended right now.

    Args:
        details: additional details of the error, by the id of the job's worker.
        project: only jobs of this project or of none; empty means any project.
    """
    return _reclaim(WORKER_DEATH, workers, details or {}, project)


def _reclaim(
    cause: Cause,
    workers: Collection[str] | None = None,
    details: Mapping[str, dict[str, Any] | None] | None = None,
    project: str = "",
) -> int:
    with ending() as ended:
        reclaimed = store().reclaim(cause, workers=workers, details=details or {}, project=project)
        if reclaimed.begun:
            # A job's own `expires_at` is text as its client wrote it, so Python parses it.
            forget_enqueue_ttl(Job.objects.filter(pk__in=reclaimed.begun).only("attributes"))
        cancelled = cancel_strays(reclaimed.followed)
        ended += reclaimed.ended + cancelled
    if reclaimed.number:
        send_on_commit(
            jobs_reclaimed,
            Job,
            count=reclaimed.number,
            error_type=cause.type,
            discarded=reclaimed.discarded,
            returned=[job_id for job_id in reclaimed.returned if job_id not in cancelled],
        )
    return reclaimed.number
