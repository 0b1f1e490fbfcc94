"""Measurements of several rounds, and the table they become."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


@dataclass
class Result:
    """One measurement: a rate or a time per round, and what it is compared with."""

    name: str
    group: str
    unit: str = "/s"
    rounds: list[float] = field(default_factory=list)
    p50: dict[str, float] = field(default_factory=dict)
    """Kind of request → median milliseconds."""
    p99: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def median(self) -> float:
        return statistics.median(self.rounds) if self.rounds else 0.0


class Results:
    """Everything measured on one database."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Result] = {}

    def get(self, group: str, name: str, unit: str = "/s") -> Result:
        return self._found.setdefault((group, name), Result(name, group, unit))

    def median(self, group: str, name: str) -> float | None:
        found = self._found.get((group, name))
        return found.median if found and found.rounds else None

    def documents(self) -> list[dict[str, Any]]:
        return [asdict(result) | {"median": result.median} for result in self._found.values()]

    @classmethod
    def of(cls, documents: list[dict[str, Any]]) -> Results:
        results = cls()
        for document in documents:
            known = {name: value for name, value in document.items() if name != "median"}
            result = Result(**known)
            # Measured by several runs (above all, how busy the machine was): belongs to all.
            earlier = results._found.setdefault((result.group, result.name), result)
            if earlier is not result:
                earlier.rounds += result.rounds
        return results

    def table(self, floors: dict[str, str]) -> str:
        """Return one line per measurement; `floors` names the divisor of a group."""
        lines: list[str] = []
        group = ""
        groups = list(dict.fromkeys(result.group for result in self._found.values()))
        for result in sorted(self._found.values(), key=lambda each: groups.index(each.group)):
            if result.group != group:
                group = result.group
                lines += ["", group, "-" * len(group)]
            base = self.median(group, floors.get(group, ""))
            ratio = f"{result.median / base:6.2f}×" if base else "       "
            spread = f"{_number(min(result.rounds))}–{_number(max(result.rounds))}"
            lines.append(
                f"{result.name:<58}{_readable(result):>14} {ratio}  "
                f"{spread:<18} {_latency(result)}{result.note}".rstrip()
            )
        return "\n".join(lines)


def _readable(result: Result) -> str:
    return f"{_number(result.median)} {result.unit}"


def _number(value: float) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def _latency(result: Result) -> str:
    return "".join(
        f"{kind} p50 {result.p50[kind]:.2f} p99 {result.p99[kind]:.2f} ms  " for kind in result.p50
    )
