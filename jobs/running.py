"""The job whose handler runs here: jobs that the handler enqueues are its children."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from .spec.batches import shared_targets
from .spec.lineage import PARENT, ROOT
from .spec.validation import NewJob

current_job: ContextVar[Any] = ContextVar("ojs_current_job", default=None)
"""The `JobContext` of this thread or task; None outside of handlers."""


def parent() -> dict[str, str]:
    """Return the members that make a job a child of the one that runs here (OJS execution history
    §5); empty outside of handlers.
    """
    context = current_job.get()
    if context is None:
        return {}
    job_id = str(context.id)
    return {PARENT: job_id, ROOT: str(context.job.get(ROOT) or job_id)}


def adopt(new: Sequence[NewJob]) -> None:
    """Make new jobs children of the job that runs here."""
    if current_job.get() is None:
        return
    members = parent()
    for job in shared_targets(new):
        if PARENT not in job.attributes:
            job.attributes = job.attributes | members
