"""Finds the jobs that workers hold, and reclaims them.

Jobs are found by the worker's stored id. For a project's worker, jobs of other projects under that
id do not count: a worker without a record fetched them while the id was free
(`workers.access.names`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from django.db.models import Q

from jobs import engine
from jobs.models import Job

from ..models import Worker


def held_by(workers: Iterable[Worker]) -> Any:
    """The jobs that these workers hold."""
    theirs = Q(pk__in=[])
    for project, stored in _by_project(workers).items():
        of_project = Q(project__in=("", project)) if project else Q()
        theirs |= Q(reserved_by__in=stored) & of_project
    # `reserved_for` lets PostgreSQL use the partial index on `reserved_by`.
    return Job.objects.active().filter(theirs, reserved_for__isnull=False)


def reclaim(
    workers: Iterable[Worker], details: Mapping[str, dict[str, Any] | None] | None = None
) -> int:
    """Reclaim one batch of jobs per project from workers that are gone (§10.2); return how many.

    Args:
        details: additional error details, by worker id.
    """
    return sum(
        engine.reclaim(stored, details, project=project)
        for project, stored in _by_project(workers).items()
    )


def _by_project(workers: Iterable[Worker]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for worker in workers:
        found.setdefault(worker.project, []).append(worker.pk)
    return found
