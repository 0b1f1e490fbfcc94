"""Compares job types, or queues, over a range: from the roll-ups, in one query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any

from django.db.models import QuerySet, Subquery
from django.db.models.functions import Coalesce

from ..models import JobError, QueueRollup, TypeRollup
from ..store import clock
from ..store.expressions import Parsed, as_text
from . import rollup
from .dashboard import moment_of
from .histogram import add, percentile, scaled
from .history import Comparison, Points, Range
from .parts import COLUMNS, DAY, KEEP

MODELS: dict[str, Any] = {"type": TypeRollup, "queue": QueueRollup}
SHARES = (0.5, 0.95, 0.99)
NUMBERS = ("completed", "failed")


@dataclass(slots=True)
class Breakdown:
    """What one type or queue did."""

    name: str
    completed: float = 0
    failed: float = 0
    """Attempts that failed."""
    waits: dict[str, float] = field(default_factory=dict)
    runs: dict[str, float] = field(default_factory=dict)

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


LOOKED_THROUGH = 20_000
"""Most errors among which those of a type or queue are looked for: no index leads to them."""
ORDERS = ("count", "wait", "run", "errors")
"""By the number of attempts, by p95 of wait or run, by error rate."""


def breakdowns(kind: str, chosen: Range, by: str = "count") -> Sequence[Breakdown]:
    """Return every type, or every queue, that did anything in the range.

    Args:
        kind: "type" or "queue".
        chosen: beyond an hour whole hours are read, so that a day begins with one.
        by: one of `ORDERS`.
    """
    return compared(kind, chosen, by)[0]


def compared(
    kind: str, chosen: Range, by: str = "count", comparison: Comparison | None = None
) -> tuple[Sequence[Breakdown], Mapping[str, Breakdown]]:
    """`breakdowns`, and by name what each did a day or a week before, in the same query.

    Where the minutes of an hour are no longer kept, the hours around it are read, and count for
    the part that lies in the range.
    """
    model, now = MODELS[kind], clock.now()
    resolution = 60 if chosen.length <= rollup.HOUR else 3600
    since = rollup.floor(now - chosen.length, timedelta(seconds=resolution))
    # The roll-up of the present hour has the part of it that is over, and counts as a whole.
    spans = [_windows(model, rollup.Window(since, now + rollup.HOUR, resolution))]
    if comparison is not None:
        earlier = since - comparison.back
        kept = resolution if earlier >= now - KEEP[resolution] else 3600
        spans.append(_windows(model, rollup.Window(earlier, now - comparison.back, kept)))
    found: list[dict[str, Breakdown]] = [{}, {}]
    # A row for each hour or day and name: few different times, and many equal histograms.
    columns = (COLUMNS[model], "resolution", *NUMBERS)
    texts = [as_text(column) for column in ("start", "waits", "runs")]
    rows = rollup.series(model, chain(*spans)).order_by().values_list(*columns, *texts)
    parts: dict[tuple[str, int], list[float]] = {}
    histograms = Parsed()
    for name, seconds, completed, failed, start, waits, runs in rows:
        if (start, seconds) not in parts:
            began = moment_of(start)
            assert began is not None
            parts[start, seconds] = [
                sum(
                    window.part(began, seconds)
                    for window in windows
                    if seconds == window.resolution
                )
                for windows in spans
            ]
        for part, breakdown in zip(parts[start, seconds], found, strict=False):
            if part > 0:
                one = breakdown.setdefault(name, Breakdown(name))
                one.completed += completed * part
                one.failed += failed * part
                add(one.waits, scaled(histograms[waits], part))
                add(one.runs, scaled(histograms[runs], part))
    ranked = sorted(found[0].values(), key=lambda one: (-one.rank(by), one.name))
    return ranked, found[1]


def _windows(model: Any, whole: rollup.Window) -> list[rollup.Window]:
    """Return a window of hours, with days in place of their hours where their roll-ups are made."""
    if whole.resolution < 3600:
        return [whole]
    made = model.objects.filter(
        resolution=86_400, start__gte=whole.since, start__lte=whole.until - DAY
    )
    windows, since = [], whole.since
    for day in made.order_by("start").values_list("start", flat=True).distinct():
        windows += [replace(whole, since=since, until=day), rollup.Window(day, day + DAY, 86_400)]
        since = day + DAY
    windows.append(replace(whole, since=since))
    return [window for window in windows if window.since < window.until]


def newest_errors(points: Points, most: int, **part: str) -> list[JobError]:
    """Return the newest errors of a type or queue in a range.

    The roll-ups tell when there was one last: among the errors of a busy site, those of a type that
    seldom fails are far apart.

    Args:
        points: those of the type or queue.
        part: `type` or `queue`, and its name.
    """
    of_it = {f"job__{kind}": name for kind, name in part.items()}
    errors = JobError.objects.filter(**of_it).only("job_id", "type", "attempt", "occurred_at")
    until = points.unfinished.until if points.unfinished.began else points.since
    found = list(_among_newest(errors, max(until, points.since), None)[:most])
    failed = (
        moment
        for moment, rows in zip(reversed(points.moments), reversed(points.rows), strict=True)
        if any(row.failed for row in rows)
    )
    last = next(failed, None)
    if last is not None and len(found) < most:
        end = min(last + points.range.width, until)
        found += _among_newest(errors, points.since, end)[: most - len(found)]
    return found


@dataclass(slots=True)
class Failing:
    """A type of which attempts have failed."""

    type: str
    error: str
    """The type of its newest error."""
    last_at: datetime
    count: int = 0


TOLD_APART = 1000
"""The most failed attempts, the newest, that are counted by type. The type of each is looked up."""


def failing_types(since: datetime) -> tuple[list[Failing], bool]:
    """Return the types of the newest failed attempts, those that fail most often first; and whether
    there were more attempts than are counted."""
    errors = JobError.objects.filter(occurred_at__gte=since).order_by("-occurred_at")
    rows = list(errors.values_list("job__type", "type", "occurred_at")[: TOLD_APART + 1])
    found: dict[str, Failing] = {}
    for name, error, moment in rows[:TOLD_APART]:
        found.setdefault(name, Failing(name, error, moment)).count += 1
    return sorted(found.values(), key=lambda one: (-one.count, one.type)), len(rows) > TOLD_APART


def _among_newest(
    errors: QuerySet[JobError], since: datetime, until: datetime | None
) -> QuerySet[JobError]:
    """Those among the newest errors of all from `since` to `until`, the newest first."""
    before = {} if until is None else {"occurred_at__lt": until}
    all_of_them = JobError.objects.filter(occurred_at__gte=since, **before)
    times = all_of_them.order_by("-occurred_at").values("occurred_at")
    oldest = Coalesce(Subquery(times[LOOKED_THROUGH : LOOKED_THROUGH + 1]), since)
    return errors.filter(occurred_at__gte=oldest, **before).order_by("-occurred_at")
