"""What a job may ask of a worker: the words in its `meta.capabilities`."""

from __future__ import annotations

import orjson

ITSELF = "worker:"
"""`worker:<id>` in what a job needs keeps it for one worker."""


def able(worker_id: str, labels: str, capabilities: str) -> list[str]:
    """Return all a worker can do: its capabilities, its labels, and to be itself.

    Args:
        labels, capabilities: JSON arrays of texts, as the database holds them.
    """
    if not worker_id:
        return []
    said = [*orjson.loads(labels), *orjson.loads(capabilities)]
    return [*(word for word in said if not word.startswith(ITSELF)), f"{ITSELF}{worker_id}"]
