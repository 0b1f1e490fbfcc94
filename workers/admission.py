"""Which workers and which jobs a caller may speak for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from jobs import projects
from jobs.engine import Outcome
from jobs.errors import JobNotFound, PermissionDenied
from jobs.identifiers import parse_uuid

from .models import Worker


def admit(worker_ids: Collection[str], caller: Any, *, said: Collection[str] | None = None) -> None:
    """Hold a key made for workers of one label, or of one project, to them.

    Args:
        said: the labels of a worker that arrives; those of one we know count more.

    Raises:
        PermissionDenied: one of them does not carry the label, or is live and another project's.
    """
    check_project(worker_ids, caller)
    if caller.label:
        known = dict(Worker.objects.filter(pk__in=worker_ids).values_list("pk", "labels"))
        for worker_id in worker_ids:
            check_label(known.get(worker_id, said) or (), caller)


def check_project(worker_ids: Collection[str], caller: Any) -> None:
    """
    Raises:
        PermissionDenied: one of them is live and another project's.
    """
    if caller.project:
        others = Worker.objects.live().filter(pk__in=worker_ids).exclude(project=caller.project)
        taken = others.values_list("pk", flat=True).first()
        if taken is not None:
            raise PermissionDenied(f"Worker '{taken}' is not of this project.", worker_id=taken)


def check_label(labels: Collection[str], caller: Any) -> None:
    """
    Raises:
        PermissionDenied: the key is for workers with a label that is not among `labels`.
    """
    if caller.label and caller.label not in labels:
        raise PermissionDenied(
            f"This API key is for workers labelled '{caller.label}' only.", labels=list(labels)
        )


def own_jobs(active_job_ids: Collection[str], project: str) -> list[str]:
    """Those that are `project`'s. The others are none of its business, lost or not."""
    ids = {text: parse_uuid(text) for text in active_job_ids}
    foreign = projects.foreign((job_id for job_id in ids.values() if job_id), project)
    return [text for text, job_id in ids.items() if job_id not in foreign]


def settle_own(
    settle: Callable[[Sequence[Any]], list[Outcome]], items: Sequence[Any], project: str
) -> list[Outcome]:
    """Settle what is `project`'s; another project's jobs do not exist for it."""
    if not project:
        return settle(items)
    foreign = projects.foreign((item.job_id for item in items), project)
    settled = iter(settle([item for item in items if item.job_id not in foreign]))
    return [
        Outcome(item.job_id, error=JobNotFound(item.job_id))
        if item.job_id in foreign
        else next(settled)
        for item in items
    ]
