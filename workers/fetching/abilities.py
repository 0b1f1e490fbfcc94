"""Matches what a job needs (its `meta.capabilities` and version) with what a worker can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jobs.spec.versions import Versions
from jobs.spec.worker_ids import SEPARATOR

ITSELF = "worker:"
"""`worker:<id>` among a job's capabilities reserves it for one worker; the id is the one that its
project uses. No other project's worker gets the job."""


def able(worker_id: str, labels: Sequence[str], capabilities: Sequence[str]) -> list[str]:
    """Return a worker's abilities: its capabilities, its labels, and its own `worker:<id>`.

    Args:
        worker_id: the stored name.
    """
    if not worker_id:
        return []
    declared = [*labels, *capabilities]
    itself = f"{ITSELF}{worker_id.rpartition(SEPARATOR)[2]}"
    return [*(word for word in declared if not word.startswith(ITSELF)), itself]


def takes_version(
    declared: Mapping[str, Sequence[int | None]] | None, type: str, number: int | None
) -> bool:
    """Whether a worker takes this version of a job type: any, if it declared none for the type."""
    return number in Versions(*(declared or {}).get(type, ()))
