"""Reads roll-ups for charts and cards: one query for each kind, whatever the range."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from ..models import Rollup
from ..store import clock
from . import parts, rollup
from .histogram import add, percentile


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


@dataclass(frozen=True)
class Comparison:
    """How far back the figures are that those of a range are compared with."""

    key: str
    back: timedelta


COMPARISONS = {
    each.key: each
    for each in (Comparison("day", timedelta(days=1)), Comparison("week", timedelta(days=7)))
}


class Points:
    """Roll-ups, sorted into the points of a range."""

    earlier: Earlier | None = None
    """The same range a day or a week before, with as many points."""

    def __init__(
        self,
        chosen: Range,
        model: Any = Rollup,
        comparison: Comparison | None = None,
        **part: str,
    ) -> None:
        self.range, self.model = chosen, model
        now = clock.now()
        end = rollup.floor(now, chosen.width) + chosen.width
        if chosen.width == rollup.MINUTE:
            end -= chosen.width  # this minute is not over
        count = chosen.length // chosen.width
        self.moments = [end - chosen.width * back for back in range(count, 0, -1)]
        self.rows: list[list[Any]] = [[] for _ in self.moments]
        until = rollup.floor(now, rollup.MINUTE)
        windows = [rollup.Window(self.since, until, chosen.resolution)]
        if comparison is not None:
            self.earlier = Earlier(self, comparison, until - comparison.back)
            windows += self.earlier.windows
        # Instances of the model would take most of the time.
        found = list(rollup.series(model, windows, **part).values_list(named=True))
        for row in found:
            index = (row.start - self.since) // chosen.width
            if 0 <= index < count and row.resolution == chosen.resolution:
                self.rows[index].append(row)
        if self.earlier is not None:
            self.earlier.fill(found)

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

    @staticmethod
    def width_of(row: Any) -> timedelta:
        return timedelta(seconds=row.resolution)

    def rate(self, name: str) -> Sequence[float | None]:
        """The average number per second, over the time that has been counted."""
        until = self.unfinished.until
        found: list[float | None] = []
        for rows in self.rows:
            counted = self._finished(rows, name)
            # The current hour has been counted in part.
            seconds = sum(
                (min(row.start + self.width_of(row), until) - row.start).total_seconds()
                for row in counted
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
                add(total, histogram)
            found = percentile(total, share)
            return None if found is None else found.total_seconds()

        return self.line(name, fold)

    def total(self, name: str) -> int:
        """The number in the range, including the current second for what is counted live."""
        counted = sum(
            getattr(row, name) for rows in self.rows for row in self._finished(rows, name)
        )
        if self.model is not Rollup:  # what is counted live is that of all jobs
            return int(counted)
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


SAMPLES = timedelta(minutes=5)
"""How long before the compared moment a sample may have been taken."""


class Earlier(Points):
    """The points of a range as they were a day or a week before.

    Hours stand in for minutes that are no longer kept.
    """

    def __init__(self, points: Points, comparison: Comparison, until: datetime) -> None:
        """
        Args:
            until: the end of the figures; the present ones end at the same time of day.
        """
        self.range, self.model, self.of = points.range, points.model, points
        self.comparison, self.until = comparison, until
        self.moments = [moment - comparison.back for moment in points.moments]
        self.rows = [[] for _ in self.moments]
        self._found: list[tuple[Any, float]] = []
        """Each roll-up once, and the part of it that is in the range."""
        self._samples: list[Any] = []
        self._whole = rollup.Window(self.since, until, self.range.resolution)

    @cached_property
    def unfinished(self) -> rollup.Unfinished:
        return self.of.unfinished

    @property
    def windows(self) -> list[rollup.Window]:
        return [
            self._whole,
            replace(self._whole, resolution=3600),
            rollup.Window(self.until - SAMPLES, self.until, 60),
        ]

    def fill(self, rows: Sequence[Any]) -> None:
        """Sort in what was found in the windows, among others."""
        hour_before = self.since - rollup.HOUR
        near = [row for row in rows if hour_before < row.start < self.until]
        within = [row for row in near if row.start >= self.since or self._overlap(row) > 0]
        minutes = [row for row in within if row.resolution == 60]
        self._samples = [row for row in minutes if row.start >= self.until - SAMPLES][::-1]
        if self.range.resolution > 60:
            minutes = []
        known = {rollup.floor(row.start, rollup.HOUR) for row in minutes}
        hours = [row for row in within if row.resolution == 3600 and self._is_needed(row, known)]
        self._found = [(row, self._overlap(row)) for row in (*minutes, *hours)]
        for row, _part in self._found:
            first = (row.start - self.since) // self.range.width
            # An hour is in each of the points that are shorter.
            points = max(1, self.width_of(row) // self.range.width)
            for index in range(max(0, first), min(len(self.rows), first + points)):
                self.rows[index].append(row)

    def _overlap(self, row: Any) -> float:
        """The part of a roll-up that is within the range."""
        return self._whole.part(row.start, row.resolution)

    def _is_needed(self, hour: Any, known: set[datetime]) -> bool:
        """Whether the minutes of an hour are not among the hours that are known by theirs."""
        if self.range.resolution > 60:
            return True
        if self.model in parts.COLUMNS and hour.start >= clock.now() - parts.KEEP[60]:
            return False  # a minute in which nothing happened has no row
        return hour.start not in known

    def total(self, name: str) -> int:
        """The number in the range; of an hour that is partly in it, the same part."""
        return round(sum(getattr(row, name) * part for row, part in self._found))

    def sample(self, name: str) -> Any:
        """The value that was sampled at the compared moment; None if none was."""
        values = (getattr(row, name) for row in self._samples)
        return next((value for value in values if value is not None), None)

    @property
    def is_recorded(self) -> bool:
        """Whether the record reaches back that far. If so, what is missing did not happen."""
        if self.model is not Rollup and self.model not in parts.COLUMNS:
            return bool(self._found)
        began = self.unfinished.began
        return began is not None and began < self.until

    @property
    def elapsed(self) -> timedelta:
        beginning = max(self.unfinished.began or self.until, self.since)
        return max(self.until - beginning, rollup.MINUTE)
