"""Which jobs are in the hands of a worker, and taking them back.

They are found by the id the worker is stored under. Of a project's worker, those of other projects
are not its own: a worker without a record fetched them when the id was still free
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
    """Take back one batch, for each project one, of what workers hold who are gone (§10.2).

    Returns how many.

    Args:
        details: what the error says besides, by the id of the worker.
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
