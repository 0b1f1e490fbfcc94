"""Every log line about jobs, as signal receivers. Arguments, results and keys are never logged."""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import receiver

from .. import signals
from ..spec.lifecycle import State

logger = logging.getLogger("jobs")


def about(outcome: Any) -> dict[str, Any]:
    """Return the fields that identify a job in structured logs (OJS logging §7.1)."""
    return {
        "job_id": str(outcome.job_id),
        "attempt": outcome.attempt,
        "state": str(outcome.state),
    }


@receiver(signals.jobs_failed, dispatch_uid="ojs_log_failed")
def log_failed(*, outcomes: list[Any], **kwargs: Any) -> None:
    for outcome in outcomes:
        if outcome.state == State.DISCARDED:
            logger.warning(
                "Job %s discarded after attempt %d.",
                outcome.job_id,
                outcome.attempt,
                extra=about(outcome),
            )
        elif outcome.released:
            logger.info(
                "Job %s was released; it runs again in %s.",
                outcome.job_id,
                outcome.retry_delay or "no time",
                extra=about(outcome),
            )
        elif outcome.state == State.RETRYABLE:
            logger.info(
                "Job %s failed attempt %d; retry in %s.",
                outcome.job_id,
                outcome.attempt,
                outcome.retry_delay,
                extra=about(outcome),
            )


@receiver(signals.jobs_reclaimed, dispatch_uid="ojs_log_reclaimed")
def log_reclaimed(*, count: int, error_type: str, **kwargs: Any) -> None:
    logger.warning("Reclaimed %d reservation(s): %s.", count, error_type)


@receiver(signals.finish_refused, dispatch_uid="ojs_log_refused")
def log_refused(*, job_id: Any, operation: str, worker_id: str, **kwargs: Any) -> None:
    details = {"job_id": str(job_id), "worker_id": worker_id}
    logger.warning(
        "Refused %s of job %s by worker %r.", operation, job_id, worker_id, extra=details
    )


@receiver(signals.jobs_cancelled, dispatch_uid="ojs_log_cancelled")
def log_cancelled(*, job_ids: list[Any], **kwargs: Any) -> None:
    logger.info("Cancelled %d job(s).", len(job_ids))


@receiver(signals.jobs_discarded, dispatch_uid="ojs_log_discarded")
def log_discarded(*, count: int, reason: str, **kwargs: Any) -> None:
    logger.info("Discarded %d job(s): %s.", count, reason)
