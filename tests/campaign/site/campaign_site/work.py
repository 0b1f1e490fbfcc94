"""The work of a job in the campaign."""

from __future__ import annotations

from typing import Any


def work(chance: Any) -> dict[str, Any]:
    """Most jobs take a moment, some long enough to be interrupted in the middle."""
    longest = 0.5 if chance.random() < 0.1 else 0.02
    return {"seconds": round(chance.uniform(0, longest), 4), "fails": chance.random() < 0.03}
