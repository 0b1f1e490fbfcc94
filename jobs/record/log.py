"""Every log line about jobs, as signal receivers. Arguments, results and keys are never logged.

Failures are always logged; `OJS["LOG_JOBS"]` adds a line for each job that is enqueued, fetched,
completed or cancelled (OJS logging §6.1).
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import receiver

from .. import signals
from ..spec.error_texts import in_one_line
from ..spec.lifecycle import State
from ..spec.traces import TRACEPARENT

logger = logging.getLogger("jobs")
LIFECYCLE = "lifecycle"
LONGEST = 500
"""Characters of an error in the text of a line."""


def about(outcome: Any) -> dict[str, Any]:
    """Return the fields that identify a job in structured logs (OJS logging §7.1)."""
    return {
        "job_id": str(outcome.job_id),
        "job_type": outcome.job_type,
        "queue": outcome.queue,
        "attempt": outcome.attempt,
        "state": str(outcome.state),
        "category": LIFECYCLE,
    }


def log_enqueued(*, jobs: Any, **kwargs: Any) -> None:
    for job in jobs:
        logger.info("Job enqueued", extra=_whole(job))


def log_claimed(*, jobs: Any, worker_id: str, **kwargs: Any) -> None:
    for job in jobs:
        details = {"worker_id": worker_id, "attempt": job.attempt}
        logger.debug("Job fetched by worker", extra=_whole(job) | details)


def log_completed(*, job_ids: list[Any], worker_id: str | None = None, **kwargs: Any) -> None:
    for job_id in job_ids:
        extra = _settled(job_id, State.COMPLETED) | ({"worker_id": worker_id} if worker_id else {})
        logger.info("Job completed successfully", extra=extra)


def log_each_cancelled(*, job_ids: list[Any], **kwargs: Any) -> None:
    for job_id in job_ids:
        logger.info("Job cancelled", extra=_settled(job_id, State.CANCELLED))


def _whole(job: Any) -> dict[str, Any]:
    details = {"job_id": str(job.id), "job_type": job.type, "queue": job.queue}
    details |= {"state": str(job.state), "category": LIFECYCLE}
    # That of a claimed job is not parsed.
    traceparent = job.meta.get(TRACEPARENT) if isinstance(job.meta, dict) else None
    return details | {"traceparent": traceparent} if traceparent else details


def _settled(job_id: Any, state: State) -> dict[str, Any]:
    return {"job_id": str(job_id), "state": str(state), "category": LIFECYCLE}


@receiver(signals.jobs_failed, dispatch_uid="ojs_log_failed")
def log_failed(*, outcomes: list[Any], **kwargs: Any) -> None:
    for outcome in outcomes:
        if outcome.released:
            logger.info(
                "Job %s was released; it runs again in %s.",
                outcome.job_id,
                outcome.retry_delay or "no time",
                extra=about(outcome),
            )
        elif outcome.state == State.DISCARDED:
            logger.error(
                "Job %s discarded after attempt %d: %s",
                outcome.job_id,
                outcome.attempt,
                _reason(outcome.failure),
                extra=about(outcome) | _error(outcome.failure),
            )
        elif outcome.state == State.RETRYABLE:
            logger.warning(
                "Job %s failed attempt %d; retry in %s: %s",
                outcome.job_id,
                outcome.attempt,
                outcome.retry_delay,
                _reason(outcome.failure),
                extra=about(outcome) | _error(outcome.failure),
            )


def _error(failure: Any) -> dict[str, Any]:
    """The error in structured logs (§6.3). Of a job with encrypted arguments, the message is not
    in clear here."""
    return {"error": {"type": failure.type, "message": failure.message}}


def _reason(failure: Any) -> str:
    text = in_one_line(f"{failure.type}: {failure.message}" if failure.message else failure.type)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


@receiver(signals.jobs_reclaimed, dispatch_uid="ojs_log_reclaimed")
def log_reclaimed(*, count: int, error_type: str, **kwargs: Any) -> None:
    logger.warning("Reclaimed %d reservation(s): %s.", count, error_type)


@receiver(signals.finish_refused, dispatch_uid="ojs_log_refused")
def log_refused(*, job_id: Any, operation: str, worker_id: str, **kwargs: Any) -> None:
    details = {"job_id": str(job_id), "worker_id": worker_id, "category": LIFECYCLE}
    logger.warning(
        "Refused %s of job %s by worker %r.", operation, job_id, worker_id, extra=details
    )


@receiver(signals.jobs_cancelled, dispatch_uid="ojs_log_cancelled")
def log_cancelled(*, job_ids: list[Any], **kwargs: Any) -> None:
    logger.info("Cancelled %d job(s).", len(job_ids))


@receiver(signals.jobs_discarded, dispatch_uid="ojs_log_discarded")
def log_discarded(*, count: int, reason: str, **kwargs: Any) -> None:
    logger.info("Discarded %d job(s): %s.", count, reason)


OF_EACH_JOB = (
    (signals.jobs_enqueued, log_enqueued),
    (signals.jobs_claimed, log_claimed),
    (signals.jobs_completed, log_completed),
    (signals.jobs_cancelled, log_each_cancelled),
)


def log_lifecycle() -> None:
    """Log every job from now on; called once, when the process starts."""
    for signal, receive in OF_EACH_JOB:
        signal.connect(receive)


def keep_quiet() -> None:
    """Undo `log_lifecycle()`."""
    for signal, receive in OF_EACH_JOB:
        signal.disconnect(receive)
