"""Signal receivers that log what happens to workers."""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import receiver

from .. import signals

logger = logging.getLogger("workers")


@receiver(signals.worker_registered, dispatch_uid="ojs_log_registered")
def log_registered(*, worker_id: str, **kwargs: Any) -> None:
    logger.info("Worker %r registered.", worker_id)


@receiver(signals.worker_left, dispatch_uid="ojs_log_left")
def log_left(*, worker_id: str, **kwargs: Any) -> None:
    logger.info("Worker %r left.", worker_id)


@receiver(signals.workers_died, dispatch_uid="ojs_log_died")
def log_died(*, worker_ids: list[str], **kwargs: Any) -> None:
    for worker_id in worker_ids:
        logger.warning("Worker %r was declared dead.", worker_id)


@receiver(signals.worker_returned, dispatch_uid="ojs_log_returned")
def log_returned(*, worker_id: str, **kwargs: Any) -> None:
    logger.warning("Worker %r had been declared dead, but is alive.", worker_id)
