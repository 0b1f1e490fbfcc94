"""Deployments: noticed when a worker registers with a version that is new to its project.

Nothing is paid for by heartbeats, and a registration pays for one lookup in an index.
"""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Q

from jobs.models import Source
from jobs.store import clock

from ..models import Mark, MarkKind, Worker

MOST = 100
"""Versions of a project that are marked in one day: a version that contains a process id is
different for each worker."""


def notice(worker: Worker) -> None:
    """Mark the deployment of the worker's version, unless it has been marked.

    The mark of a version is kept as long as there are workers of it (`workers.fleet.marks.prune`),
    so that there is one when they restart.
    """
    if not worker.version or _is_known(worker):
        return
    now = clock.now()
    made = Mark.objects.filter(project=worker.project, at__gte=now - timedelta(days=1))
    if made.exclude(version="").count() >= MOST:
        return
    mark = Mark(
        kind=MarkKind.DEPLOYMENT,
        text=worker.version,
        version=worker.version,
        project=worker.project,
        by=worker.worker_id,
        source=Source.SERVER,
        at=now,
    )
    # Others may notice it at the same time: the constraint decides.
    Mark.objects.bulk_create([mark], ignore_conflicts=True)


def _is_known(worker: Worker) -> bool:
    """Whether a worker of the project made the mark, or an operator announced the version."""
    noticed = Q(project=worker.project, version=worker.version)
    announced = Q(project__in=("", worker.project), kind=MarkKind.DEPLOYMENT, text=worker.version)
    return Mark.objects.filter(noticed | announced).exists()
