"""Dead letter at a glance: dead jobs by type and by error, for several periods."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.http import urlencode
from django.utils.translation import gettext as _

from ..record.dashboard import grouped
from ..store import clock
from .filters import DEAD, WINDOWS, newest_dead

ROWS = 15


@dataclass(frozen=True)
class Row:
    name: str
    cells: list[tuple[int, str]]
    """For each window: how many, and a link to the list of them; no link for several names."""
    others: int = 0
    """The number of other names that the row summarizes."""
    capped: frozenset[int] = frozenset()
    """Places of the windows of which not all jobs were counted."""

    @property
    def shown(self) -> list[tuple[int, str, str]]:
        """Each cell with its number in words: after ≥ if not all were counted."""
        return [
            (count, f"≥ {grouped(count)}" if place in self.capped else grouped(count), query)
            for place, (count, query) in enumerate(self.cells)
        ]


def matrix(request: Any) -> dict[str, Any]:
    """Counts by type and by last error, for each window and in all."""
    rows = newest_dead(request)
    is_capped = len(rows) > DEAD
    rows = rows[:DEAD]
    now = clock.now()
    edges: list[tuple[str, datetime | None]] = [
        *((key, now - window) for key, window in WINDOWS.items()),
        ("", None),
    ]
    counts = {"type": _count(rows, 0, edges), "error": _count(rows, 1, edges)}
    oldest = rows[-1][2] if is_capped else None
    capped = frozenset(
        place
        for place, (_key, since) in enumerate(edges)
        if oldest is not None and (since is None or since <= oldest)
    )
    return {
        "windows": [_("1 hour"), _("24 hours"), _("7 days"), _("all")],
        "sections": [
            (_("By job type"), _("Type"), _rows("type", counts["type"], edges, capped)),
            (_("By last error"), _("Error"), _rows("error", counts["error"], edges, capped)),
        ],
        "is_empty": not rows,
        "most": DEAD if is_capped else None,
    }


def _count(rows: list[Any], column: int, edges: list[Any]) -> Counter[tuple[str, str]]:
    """Count rows by window; they come newest first, so a window is the beginning of them."""
    counts: Counter[tuple[str, str]] = Counter()
    moments = [row[2] for row in rows]
    for key, since in edges:
        end = len(rows) if since is None else bisect_right(moments, -since.timestamp(), key=_back)
        found = Counter(row[column] for row in rows[:end] if row[column])
        counts.update({(name, key): count for name, count in found.items()})
    return counts


def _back(moment: datetime) -> float:
    return -moment.timestamp()


def _rows(
    parameter: str, counts: Counter[tuple[str, str]], edges: list[Any], capped: frozenset[int]
) -> list[Row]:
    """What happens now comes first: ordered by the shortest window, then by the next one."""
    keys = [key for key, _since in edges]
    numbers = {name: [counts[name, key] for key in keys] for name, key in counts if not key}
    names = sorted(numbers, key=lambda name: ([-count for count in numbers[name]], name))
    rows = [
        Row(
            name, [(counts[name, key], _query(parameter, name, key)) for key in keys], capped=capped
        )
        for name in names[:ROWS]
    ]
    if rest := names[ROWS:]:
        sums = (sum(counts[name, key] for name in rest) for key in keys)
        rows.append(Row(_("other"), [(count, "") for count in sums], len(rest), capped))
    return rows


def _query(parameter: str, name: str, window: str) -> str:
    return "?" + urlencode({parameter: name} | ({"since": window} if window else {}))
