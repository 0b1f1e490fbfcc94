"""What a job may ask of a worker: the words in its `meta.capabilities`."""

from __future__ import annotations

from collections.abc import Sequence

ITSELF = "worker:"
"""`worker:<id>` in what a job needs keeps it for one worker."""


def able(worker_id: str, labels: Sequence[str], capabilities: Sequence[str]) -> list[str]:
    """Return all a worker can do: its capabilities, its labels, and to be itself."""
    if not worker_id:
        return []
    said = [*labels, *capabilities]
    return [*(word for word in said if not word.startswith(ITSELF)), f"{ITSELF}{worker_id}"]
