"""Which live workers declare that they take a version of a job type (OJS job versioning §8.1)."""

from __future__ import annotations

from jobs.spec.versions import ALL, Versions

from ..models import Worker

MOST = 10_000
"""Workers that are asked."""


def declaring(type: str, number: int) -> list[str]:
    """Return the stored ids of live workers whose declared range includes the version.

    A worker without a range for the type, or with `*`, takes every version, and declares none.
    """
    ranges = ranges_of(type)
    return [
        worker_id
        for worker_id, versions in ranges.items()
        if number in versions and versions != ALL
    ]


def ranges_of(type: str) -> dict[str, Versions]:
    """Return the range that each live worker declares for the type, by its stored id."""
    workers = Worker.objects.live().filter(job_versions__has_key=type).order_by("pk")
    rows = workers.values_list("pk", "job_versions")[:MOST]
    return {worker_id: Versions(*declared[type]) for worker_id, declared in rows if declared}
