"""Charts drawn on the server: SVG for the eye, and the same numbers as a table.

A chart may show an earlier time beside the present one (`Chart.compared`), and what was done
meanwhile (`ChartMark`).

No colours are set here: lines are distinguished by their class, whose colours and dashes are in
the stylesheet, and by the legend.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from .display import NOTHING, decimal

Value = float | None
WIDTH, HEIGHT = 440, 170
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 8, 20
TOPS = (
    *(step * scale for scale in (0.001, 0.01, 0.1) for step in (1, 2, 5)),
    *(step * size for size in (1, 60) for step in (1, 2, 5, 10, 20, 30)),
    *(step * 3_600 for step in (1, 2, 5, 10)),
)
"""Upper edges of a chart of durations, in seconds, up to half a day; then whole days."""


@dataclass(frozen=True)
class Line:
    label: Any
    style: str
    """Name of a class in the stylesheet, without the prefix `ojs-line-`."""
    values: Sequence[Value]
    """One for each moment of the chart; None leaves a gap."""
    is_earlier: bool = False
    """Of the time that is compared with: drawn faintly, beneath the others."""

    @property
    def is_empty(self) -> bool:
        return all(value is None for value in self.values)


SYMBOLS = {
    "deployment": "▲",
    "note": "●",
    "drain": "▼",
    "pause": "‖",
    "resume": "▶",
    "maintenance": "■",
}
"""Kind of a mark → what stands above its line: kinds do not differ by colour alone."""


@dataclass(frozen=True)
class ChartMark:
    """Something that was done at a moment: a thin vertical line."""

    at: datetime
    kind: str
    words: str

    @property
    def symbol(self) -> str:
        return SYMBOLS.get(self.kind, "●")


def number(value: float) -> str:
    """A number for an axis: 0, 0.5, 20, 1.5k, 3M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return decimal(value / size, ".3g") + unit
    return decimal(value, ".3g")


def seconds(value: float) -> str:
    """A length of time for an axis."""
    if value < 1:
        return decimal(value * 1000, ".3g") + " ms"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if value >= size:
            return f"{decimal(value / size, '.3g')} {unit}"
    return decimal(value, ".3g") + " s"


@dataclass(frozen=True)
class Chart:
    """Lines over time. Moments are evenly spaced, oldest first."""

    key: str
    title: Any
    moments: Sequence[datetime]
    lines: Sequence[Line]
    unit: Callable[[float], str] = number
    marks: Sequence[ChartMark] = ()
    earlier: Any = ""
    """What the compared time is called: "yesterday"."""
    missing: Any = ""
    """Why there is nothing to compare with, in a sentence."""

    def compared(self, then: Chart, earlier: Any, missing: Any) -> Chart:
        """The chart with the lines of an earlier one, each beside its own.

        Args:
            earlier: what that time is called.
            missing: what is said where none of those lines has a value.
        """
        if then.is_empty:
            return replace(self, missing=missing)
        lines: list[Line] = []
        for now, before in zip(self.lines, then.lines, strict=True):
            label = f"{now.label} ({earlier})"
            lines += [now, replace(before, label=label, is_earlier=True)]
        return replace(self, lines=lines, earlier=earlier)

    @property
    def own_lines(self) -> list[Line]:
        """Those of the present time."""
        return [line for line in self.lines if not line.is_earlier]

    @cached_property
    def top(self) -> float:
        """The value at the upper edge: 1, 2 or 5 times a power of ten, or a round duration."""
        highest = max((v for line in self.lines for v in line.values if v is not None), default=0)
        scale: float = 1
        if self.unit is seconds:
            if found := next((top for top in TOPS if highest <= top), None):
                return found
            scale = 86_400
        while True:
            for step in (1, 2, 5):
                if highest <= step * scale:
                    return step * scale
            scale *= 10

    @property
    def is_empty(self) -> bool:
        return all(line.is_empty for line in self.lines)

    def svg(self) -> SafeString:
        """Return the drawing; a screen reader reads its title, and the table for the numbers."""
        return format_html(
            '<svg class="ojs-chart" viewBox="0 0 {} {}" role="img" aria-labelledby="{}-title"'
            ' data-left="{}" data-right="{}">{}{}{}{}</svg>',
            WIDTH,
            HEIGHT,
            self.key,
            LEFT,
            WIDTH - RIGHT,
            self._grid(),
            self._times(),
            self._marks(),
            format_html_join(
                "",
                "{}",
                (
                    (self._line(line),)
                    for line in sorted(self.lines, key=lambda line: not line.is_earlier)
                ),
            ),
        )

    def _marks(self) -> SafeString:
        """A line for each point in which something was done; its title says what."""
        at: dict[int, list[ChartMark]] = {}
        for mark in self.marks:
            index = bisect_right(self.moments, mark.at) - 1
            if index >= 0:
                at.setdefault(index, []).append(mark)
        return format_html_join(
            "",
            '<g class="ojs-mark ojs-mark-{}" data-index="{}"><title>{}</title>'
            '<rect x="{}" y="0" width="9" height="{}"/>'
            '<line x1="{}" x2="{}" y1="{}" y2="{}"/>'
            '<text x="{}" y="{}" text-anchor="middle">{}</text></g>',
            (
                (
                    marks[0].kind,
                    index,
                    "; ".join(f"{self._time(mark.at)} {mark.words}" for mark in marks),
                    self._x(index) - 4.5,
                    HEIGHT - BOTTOM,
                    self._x(index),
                    self._x(index),
                    TOP + 4,
                    HEIGHT - BOTTOM,
                    self._x(index),
                    TOP + 2,
                    "+" if len({mark.kind for mark in marks}) > 1 else marks[0].symbol,
                )
                for index, marks in sorted(at.items())
            ),
        )

    def _x(self, index: int) -> float:
        last = max(len(self.moments) - 1, 1)
        return round(LEFT + index * (WIDTH - LEFT - RIGHT) / last, 1)

    def _y(self, value: float) -> float:
        return round(HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM), 1)

    def _grid(self) -> SafeString:
        return format_html_join(
            "",
            '<line class="ojs-grid" x1="{}" x2="{}" y1="{}" y2="{}"/>'
            '<text x="{}" y="{}" text-anchor="end">{}</text>',
            (
                (LEFT, WIDTH - RIGHT, y, y, LEFT - 5, y + 4, self.unit(value))
                for value in (0.0, self.top / 2, self.top)
                for y in (self._y(value),)
            ),
        )

    def _times(self) -> SafeString:
        count = len(self.moments)
        shown = sorted({0, count // 3, 2 * count // 3, count - 1}) if count > 3 else range(count)
        anchors = {0: "start", count - 1: "end"}
        return format_html_join(
            "",
            '<text x="{}" y="{}" text-anchor="{}">{}</text>',
            (
                (self._x(i), HEIGHT - 5, anchors.get(i, "middle"), self._time(self.moments[i]))
                for i in shown
            ),
        )

    def _time(self, moment: datetime) -> str:
        local = timezone.localtime(moment)
        is_long = len(self.moments) > 1 and self.moments[-1] - self.moments[0] > timedelta(days=2)
        return f"{local:%m-%d %H h}" if is_long else f"{local:%H:%M}"

    def _line(self, line: Line) -> SafeString:
        path, dots = [], []
        known = [False, *(value is not None for value in line.values), False]
        for index, value in enumerate(line.values):
            if value is None:
                continue
            point = f"{self._x(index)} {self._y(value)}"
            follows, goes_on = known[index], known[index + 2]
            if follows or goes_on:
                path.append(f"L{point}" if follows else f"M{point}")
            else:
                # A point by itself has no length: round line ends make it a dot.
                dots.append(f"M{point}L{point}")
        return format_html_join(
            "",
            '<path class="ojs-line ojs-line-{}{}" d="{}"/>',
            (
                (
                    line.style,
                    extra + (" ojs-line-earlier" if line.is_earlier else ""),
                    "".join(parts),
                )
                for extra, parts in (("", path), (" ojs-dot", dots))
                if parts
            ),
        )

    def rows(self) -> list[tuple[str, list[str]]]:
        """Return the table: every point of the lines, the newest first."""
        return [
            (self._time(self.moments[index]), [self._text(line, index) for line in self.lines])
            for index in range(len(self.moments) - 1, -1, -1)
        ]

    def _text(self, line: Line, index: int) -> str:
        value = line.values[index]
        return NOTHING if value is None else self.unit(value)
