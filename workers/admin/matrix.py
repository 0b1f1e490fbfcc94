"""Matrix of job types and workers: which implement the registered specification (Rota)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.utils.safestring import SafeString
from django.utils.translation import gettext

from jobs.admin import display
from jobs.models import JobSpec

from ..models import Worker

MOST_WORKERS = 1_000
"""Most workers shown; a larger fleet is better read by its versions."""
MOST_COLUMNS = 40
"""Beyond it, workers with the same specs share a column."""
MOST_TYPES = 200
SHOWN = 12
"""Characters shown of a checksum."""


@dataclass(frozen=True, slots=True)
class Column:
    """A worker, or several that implement the same specifications."""

    workers: list[str]
    specs: dict[str, str]

    @property
    def others(self) -> int:
        return len(self.workers) - 1


@dataclass(frozen=True, slots=True)
class Row:
    type: str
    checksum: str | None
    """The registered checksum."""
    cells: list[SafeString | str]
    mismatches: int


def reported() -> list[tuple[str, dict[str, str]]]:
    """Live workers and the specs they reported."""
    rows = Worker.objects.live().filter(specs__isnull=False).order_by("pk")
    return [(name, specs or {}) for name, specs in rows.values_list("pk", "specs")[:MOST_WORKERS]]


def matrix() -> dict[str, Any]:
    """The columns, the rows (those with mismatches first), and what had to be left out."""
    workers = reported()
    registered = dict(JobSpec.objects.values_list("type", "checksum"))
    columns = _columns(workers)
    types = registered.keys() | {name for _, specs in workers for name in specs}
    rows = [_row(name, registered.get(name), columns) for name in sorted(types)]
    rows.sort(key=lambda row: not row.mismatches)
    return {
        "columns": columns[:MOST_COLUMNS],
        "rows": rows[:MOST_TYPES],
        "left_out": max(0, len(columns) - MOST_COLUMNS) + max(0, len(rows) - MOST_TYPES),
    }


def _columns(workers: list[tuple[str, dict[str, str]]]) -> list[Column]:
    if len(workers) <= MOST_COLUMNS:
        return [Column([name], specs) for name, specs in workers]
    alike: dict[Any, list[str]] = defaultdict(list)
    for name, specs in workers:
        alike[tuple(sorted(specs.items()))].append(name)
    columns = [Column(names, dict(specs)) for specs, names in alike.items()]
    return sorted(columns, key=lambda column: -len(column.workers))


def _row(name: str, checksum: str | None, columns: list[Column]) -> Row:
    mismatches = sum(column.specs.get(name, checksum) != checksum for column in columns)
    cells = [cell(checksum, column.specs.get(name)) for column in columns[:MOST_COLUMNS]]
    return Row(name, checksum, cells, mismatches)


def cell(checksum: str | None, theirs: str | None) -> SafeString | str:
    """What a worker implements (None: nothing), beside what is registered."""
    if theirs is None:
        return display.NOTHING
    shown = theirs if len(theirs) <= SHOWN else f"{theirs[:SHOWN]}…"
    if theirs == checksum:
        return display.chip("completed", gettext("✓ %(checksum)s") % {"checksum": shown})
    return display.chip("dead", gettext("✗ %(checksum)s") % {"checksum": shown})
