"""How many jobs each queue and worker pool was given lately (OJS fair scheduling §10.2, §11.2).

Folded from the record of events together with the other flows (`counters`), so that no fetch pays
for it: the pool is in the event `job.started`. Empty where nothing is counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..models import Pool, QueueFlow
from ..store import clock

SLICE = 10
"""Seconds."""
WINDOW = timedelta(minutes=1)
IN_WINDOW = int(WINDOW.total_seconds()) // SLICE
KEPT = IN_WINDOW + 2
MOST_POOLS = 100
"""Most pools of one queue: workers name their pools, and labels must be bounded."""
OTHERS = "(other)"

Fresh = dict[str, dict[int, list[float]]]
"""Pool → slice → [jobs, those whose wait is known, their seconds]."""


def fresh() -> Fresh:
    return defaultdict(lambda: defaultdict(lambda: [0, 0, 0.0]))


def observe(found: Fresh, event: Any, since: datetime | None) -> None:
    """Count an event `job.started`.

    Args:
        since: when its job became available, if that is known.
    """
    numbers = found[(event.data or {}).get("pool", "")][_slice(event.time)]
    numbers[0] += 1
    if since is not None:
        numbers[1] += 1
        numbers[2] += max(0.0, (event.time - since).total_seconds())


def _slice(moment: datetime) -> int:
    return int(moment.timestamp() // SLICE)


def merge(row: QueueFlow, found: Fresh) -> None:
    """Add what was counted to a queue's row."""
    for pool, slices in sorted(found.items()):
        known = pool in row.dispatches or len(row.dispatches) < MOST_POOLS
        entry = row.dispatches.setdefault(pool if known else OTHERS, {"total": 0, "slices": {}})
        kept: dict[str, list[float]] = entry["slices"]
        for number, numbers in slices.items():
            before = kept.get(str(number), (0, 0, 0.0))
            kept[str(number)] = [a + b for a, b in zip(before, numbers, strict=True)]
            entry["total"] += numbers[0]
        last = max(map(int, kept))
        entry["slices"] = {n: each for n, each in kept.items() if int(n) > last - KEPT}


@dataclass(slots=True)
class Dispatches:
    """The jobs handed out in the last minute."""

    jobs: int = 0
    timed: int = 0
    """Those whose wait is known: first attempts."""
    seconds: float = 0.0

    @property
    def wait_ms(self) -> int:
        """Mean wait, from being available."""
        return round(1000 * self.seconds / self.timed) if self.timed else 0

    def add(self, numbers: Iterable[float]) -> None:
        jobs, timed, seconds = numbers
        self.jobs += int(jobs)
        self.timed += int(timed)
        self.seconds += seconds

    def ratio(self, whole: int) -> float:
        return round(self.jobs / whole, 4) if whole else 0.0


@dataclass(frozen=True, slots=True)
class Lately:
    """What was handed out in the last minute, by whom and from where."""

    queues: Mapping[str, Dispatches]
    pools: Mapping[str, Dispatches]
    pairs: Mapping[tuple[str, str], Dispatches]
    """By queue and pool."""
    whole: int

    def ratio(self, found: Dispatches) -> float:
        """The share of these in all jobs that were handed out."""
        return found.ratio(self.whole)


def lately() -> Lately:
    first = _slice(clock.now()) - IN_WINDOW + 1
    pairs: dict[tuple[str, str], Dispatches] = {}
    queues: dict[str, Dispatches] = defaultdict(Dispatches)
    pools: dict[str, Dispatches] = defaultdict(Dispatches)
    for row in QueueFlow.objects.order_by("pk"):
        for pool, entry in row.dispatches.items():
            for number, numbers in entry["slices"].items():
                if int(number) >= first:
                    pair = pairs.setdefault((row.queue, pool), Dispatches())
                    for found in (pair, queues[row.queue], pools[pool]):
                        found.add(numbers)
    whole = sum(found.jobs for found in queues.values())
    return Lately(queues, pools, pairs, whole)


def totals() -> dict[tuple[str, str], int]:
    """Return how many jobs of each queue were handed out through each pool, ever."""
    return {
        (row.queue, pool): int(entry["total"])
        for row in QueueFlow.objects.order_by("pk")
        for pool, entry in sorted(row.dispatches.items())
    }


def starvations() -> Counter[str]:
    """Return how often each queue waited in vain, as its pools have recorded it (§11.1)."""
    found: Counter[str] = Counter()
    for state in Pool.objects.exclude(dispatches={}).values_list("dispatches", flat=True):
        found.update(state.get("starved", {}))
    return found
