"""Reads roll-ups for charts and cards: one query for each kind, whatever the range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ..models import Rollup
from ..store import clock
from . import rollup
from .histogram import added, percentile


@dataclass(frozen=True)
class Range:
    """How far back charts look, and how wide one of their points is."""

    key: str
    length: timedelta
    width: timedelta
    resolution: int


RANGES = {
    each.key: each
    for each in (
        Range("1h", timedelta(hours=1), timedelta(minutes=1), 60),
        Range("24h", timedelta(hours=24), timedelta(minutes=15), 60),
        Range("7d", timedelta(days=7), timedelta(hours=2), 3600),
    )
}


class Points:
    """Roll-ups, sorted into the points of a range."""

    def __init__(self, chosen: Range, model: Any = Rollup) -> None:
        self.range = chosen
        end = rollup.floor(clock.now(), chosen.width) + chosen.width
        if chosen.width == rollup.MINUTE:
            end -= chosen.width  # this minute is not over
        count = chosen.length // chosen.width
        self.moments = [end - chosen.width * back for back in range(count, 0, -1)]
        self.rows: list[list[Any]] = [[] for _ in self.moments]
        for row in rollup.series(model, self.moments[0], chosen.resolution):
            index = (row.start - self.moments[0]) // chosen.width
            if 0 <= index < count:
                self.rows[index].append(row)

    def line(self, name: str, fold: Callable[[Iterable[Any]], Any]) -> Sequence[Any]:
        """One value for each point; None where nothing was rolled up."""
        values = ([getattr(row, name) for row in rows] for rows in self.rows)
        known = ([value for value in point if value is not None] for point in values)
        return [fold(point) if point else None for point in known]

    def rate(self, name: str) -> Sequence[float | None]:
        """How many a second."""
        length = self.range.resolution
        return self.line(name, lambda values: sum(v := list(values)) / (len(v) * length))

    def highest(self, name: str) -> Sequence[int | None]:
        return self.line(name, max)

    def percentile(self, name: str, share: float) -> Sequence[float | None]:
        """Seconds that `share` of the jobs stayed below."""

        def fold(histograms: Iterable[Any]) -> float | None:
            total: dict[str, int] = {}
            for histogram in histograms:
                total = added(total, histogram)
            found = percentile(total, share)
            return None if found is None else found.total_seconds()

        return self.line(name, fold)

    def total(self, name: str) -> int:
        return sum(getattr(row, name) for rows in self.rows for row in rows)

    @property
    def since(self) -> datetime:
        return self.moments[0]
