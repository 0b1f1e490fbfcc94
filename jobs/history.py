"""Execution history of jobs (OJS execution history).

from jobs import history

history.entries(job_id)
history.erase(meta={"customer": "c-17"})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from . import engine
from .engine import erasure
from .engine.erasure import Erased
from .errors import InvalidRequest
from .handles import identified
from .models import Job
from .options import JSON
from .place import current
from .record import execution
from .store.expressions import JSONObjectHas

__all__ = ["Erased", "entries", "erase", "lineage", "purge"]

MOST = 1000


def entries(job_id: UUID | str, *, limit: int = MOST) -> list[dict[str, JSON]]:
    """Return what happened to a job, oldest first, as `GET /ojs/v1/jobs/{id}/history` does (§7.1).

    Empty if the record knows nothing of the job.
    """
    with current().inside():
        return execution.history_of(identified(job_id), limit=limit).entries


def lineage(job_id: UUID | str) -> dict[str, JSON]:
    """Return a job's parent, root and descendants, as `GET /ojs/v1/jobs/{id}/lineage` does (§7.2).

    Raises:
        JobNotFound: there is no such job.
    """
    with current().inside():
        return engine.find_lineage(identified(job_id))


def purge(job_id: UUID | str) -> int:
    """Delete the history of a job, which itself stays (§7.3); return the number of its entries."""
    with current().inside():
        return engine.history.purge_history(identified(job_id)).entries


def erase(
    *,
    ids: Iterable[UUID | str] = (),
    meta: Mapping[str, str | int | float | bool] | None = None,
    record: Callable[[int], object] | None = None,
    progress: Callable[[Erased], object] | None = None,
) -> Erased:
    """Erase finished jobs with every trace of what they were about.

    Their arguments, results, errors, logs, checkpoints, progress and events are deleted, copies of
    their results, and what the audit says of how they were chosen. A job of a finished workflow is
    erased with the workflow.

    Args:
        ids: the jobs; of those that are deleted already the events are erased.
        meta: or the jobs whose `meta` has all of these members.
        record: called in the transaction of each batch, with the number of jobs erased in it: for
            an audit of your own.
        progress: called after each batch, with what was erased so far.

    Returns: the numbers of jobs and events, and in `left` the ids of jobs that have not finished:
        cancel them, and call it again.

    Raises:
        InvalidRequest: it names neither ids nor members, or both.
    """
    named = [identified(job_id) for job_id in ids]
    if bool(named) == bool(meta):
        raise InvalidRequest("Name the jobs by either ids or members of their meta.")
    with current().inside():
        jobs = Job.objects.filter(pk__in=named) if named else Job.objects.all()
        for name, value in (meta or {}).items():
            jobs = jobs.filter(JSONObjectHas("meta", name, value))
        # The empty text is in every filter of the audit.
        words = [value for value in (meta or {}).values() if isinstance(value, str) and value]
        return erasure.erase(jobs, gone=named, words=words, record=record, progress=progress)
