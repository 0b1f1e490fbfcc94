"""How the types of jobs, or the queues, compare over a range: from the roll-ups, in one query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from ..models import QueueRollup, TypeRollup
from ..store import clock
from . import rollup
from .histogram import added, percentile
from .history import Range
from .parts import COLUMNS

MODELS: dict[str, Any] = {"type": TypeRollup, "queue": QueueRollup}
SHARES = (0.5, 0.95, 0.99)
NUMBERS = ("completed", "failed")


@dataclass(slots=True)
class Breakdown:
    """What one type or queue did."""

    name: str
    completed: int = 0
    failed: int = 0
    """Attempts that failed."""
    waits: dict[str, int] = field(default_factory=dict)
    runs: dict[str, int] = field(default_factory=dict)

    @property
    def error_rate(self) -> float | None:
        """The part of the attempts that failed; None if there were none."""
        attempts = self.completed + self.failed
        return self.failed / attempts if attempts else None

    def wait(self) -> list[timedelta | None]:
        """p50, p95 and p99 of the time from becoming available to the start."""
        return [percentile(self.waits, share) for share in SHARES]

    def run(self) -> list[timedelta | None]:
        """p50, p95 and p99 of the time from the start to the end."""
        return [percentile(self.runs, share) for share in SHARES]

    def rank(self, by: str) -> float:
        """What the breakdowns are ordered by, the highest first: see `ORDERS`."""
        if by == "errors":
            return self.error_rate or 0.0
        if by in ("wait", "run"):
            slow = percentile(self.waits if by == "wait" else self.runs, 0.95)
            return slow.total_seconds() if slow else 0.0
        return self.completed + self.failed


ORDERS = ("count", "wait", "run", "errors")
"""By the number of attempts, by p95 of wait or run, by error rate."""


def breakdowns(kind: str, chosen: Range, by: str = "count") -> Sequence[Breakdown]:
    """Return every type, or every queue, that did anything in the range.

    Args:
        kind: "type" or "queue".
        chosen: beyond an hour whole hours are read, so that a day begins with one.
        by: one of `ORDERS`.
    """
    model = MODELS[kind]
    resolution = 60 if chosen.length <= rollup.HOUR else 3600
    since = rollup.floor(clock.now() - chosen.length, timedelta(seconds=resolution))
    rows = model.objects.filter(resolution=resolution, start__gte=since).order_by()
    found: dict[str, Breakdown] = {}
    for name, completed, failed, waits, runs in rows.values_list(
        COLUMNS[model], *NUMBERS, "waits", "runs"
    ):
        breakdown = found.setdefault(name, Breakdown(name))
        breakdown.completed += completed
        breakdown.failed += failed
        breakdown.waits = added(breakdown.waits, waits)
        breakdown.runs = added(breakdown.runs, runs)
    return sorted(found.values(), key=lambda one: (-one.rank(by), one.name))
