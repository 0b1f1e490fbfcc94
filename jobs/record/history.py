"""Reads roll-ups for charts and cards: one query for each kind, whatever the range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
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

    def __init__(self, chosen: Range, model: Any = Rollup, **part: str) -> None:
        self.range, self.model = chosen, model
        end = rollup.floor(clock.now(), chosen.width) + chosen.width
        if chosen.width == rollup.MINUTE:
            end -= chosen.width  # this minute is not over
        count = chosen.length // chosen.width
        self.moments = [end - chosen.width * back for back in range(count, 0, -1)]
        self.rows: list[list[Any]] = [[] for _ in self.moments]
        for row in rollup.series(model, self.moments[0], chosen.resolution, **part):
            index = (row.start - self.moments[0]) // chosen.width
            if 0 <= index < count:
                self.rows[index].append(row)

    @cached_property
    def unfinished(self) -> rollup.Unfinished:
        """Figures that are counted live, in addition to the roll-ups."""
        return rollup.unfinished(self.since)

    def line(self, name: str, fold: Callable[[Iterable[Any]], Any]) -> Sequence[Any]:
        """One value for each point; None where nothing was rolled up."""
        values = ([getattr(row, name) for row in self._finished(rows, name)] for rows in self.rows)
        known = ([value for value in point if value is not None] for point in values)
        return [fold(point) if point else None for point in known]

    def _finished(self, rows: list[Any], name: str) -> list[Any]:
        """Omit a minute that was sampled but not counted yet: its numbers are not zeros."""
        if self.model is not Rollup or name not in rollup.COUNTED:
            return rows
        return [row for row in rows if row.start < self.unfinished.until]

    def rate(self, name: str) -> Sequence[float | None]:
        """The average number per second, over the time that has been counted."""
        width, until = timedelta(seconds=self.range.resolution), self.unfinished.until
        found: list[float | None] = []
        for rows in self.rows:
            counted = self._finished(rows, name)
            # The current hour has been counted in part.
            seconds = sum(
                (min(row.start + width, until) - row.start).total_seconds() for row in counted
            )
            total = sum(getattr(row, name) for row in counted)
            found.append(total / seconds if seconds else None)
        return found

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
        """The number in the range, including the current second for what is counted live."""
        counted = sum(
            getattr(row, name) for rows in self.rows for row in self._finished(rows, name)
        )
        return counted + int(getattr(self.unfinished, name, 0))

    @property
    def elapsed(self) -> timedelta:
        """The part of the range for which there are figures."""
        if not self.unfinished.is_new:
            return self.range.length
        worked = (row.start for rows in self.rows for row in rows if row.completed or row.failed)
        beginning = next(worked, self.unfinished.until)
        return min(self.range.length, max(clock.now() - beginning, rollup.MINUTE))

    @property
    def since(self) -> datetime:
        return self.moments[0]
