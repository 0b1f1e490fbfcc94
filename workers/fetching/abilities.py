"""What a job may ask of a worker: the words in its `meta.capabilities`, and its version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobs.spec.versions import Versions
from jobs.spec.worker_ids import SEPARATOR

ITSELF = "worker:"
"""`worker:<id>` in what a job needs keeps it for one worker; the id is what its project calls it.
No other project's worker is given the job."""


def able(worker_id: str, labels: Sequence[str], capabilities: Sequence[str]) -> list[str]:
    """Return all a worker can do: its capabilities, its labels, and to be itself.

    Args:
        worker_id: as it is stored.
    """
    if not worker_id:
        return []
    said = [*labels, *capabilities]
    itself = f"{ITSELF}{worker_id.rpartition(SEPARATOR)[2]}"
    return [*(word for word in said if not word.startswith(ITSELF)), itself]


def takes_version(
    declared: Mapping[str, Sequence[int | None]] | None, type: str, number: int | None
) -> bool:
    """Whether a worker takes jobs of this type and version: any, if it declared nothing of it."""
    return number in Versions(*(declared or {}).get(type, ()))
