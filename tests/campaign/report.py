"""Options and results of a part, and the table of all results."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.processes import ROOT

from .account import Account
from .surroundings import Template

STRETCH = 2.5
"""How many times its seconds a part may take on a slow machine."""


@dataclass
class Plan:
    """The options of a part.

    Args:
        jobs: how many are enqueued; only a and c run until they are.
        seconds: of disturbance; a and c take up to `longest` for their jobs. The time until
            everything is settled afterwards is limited, too.
        short: the form for the test suite.
        folder: a separate folder, deleted afterwards.
    """

    jobs: int
    seconds: float
    short: bool
    folder: Path
    seed: str
    prepared: Future[Template] = field(default_factory=Future)
    rev: str = ""
    keep: Path | None = None
    """Where logs and ledgers are copied to."""

    @property
    def template(self) -> Template:
        """What all parts share, once it has been created."""
        return self.prepared.result()

    @property
    def longest(self) -> float:
        """Maximum seconds of disturbance; a short part makes do with fewer jobs."""
        return self.seconds if self.short else self.seconds * STRETCH


@dataclass
class Outcome:
    """The result of a part, or of one of its faults."""

    part: str
    account: Account = field(default_factory=Account)
    faults: Counter[str] = field(default_factory=Counter)
    works_again: float | None = None
    """Seconds until each had finished something again."""
    took: float = 0
    notes: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Broken promises, beyond those of the account."""
    unfinished: str = ""
    """What had to be skipped for lack of time."""

    @property
    def all_broken(self) -> list[str]:
        return [*self.account.broken, *self.broken]

    def document(self) -> dict[str, Any]:
        return asdict(replace(self, faults=Counter())) | {
            "faults": dict(self.faults),
            "all_broken": self.all_broken,
        }


HEAD = (
    "part",
    "jobs",
    "faults",
    "lost",
    "finished twice",
    "unaccounted",
    "run again",
    "refused",
    "works again",
)


def row(outcome: Outcome) -> list[str]:
    done = outcome.account
    again = "" if outcome.works_again is None else f"{outcome.works_again:.1f} s"
    return [
        outcome.part,
        f"{done.jobs:,}",
        str(sum(outcome.faults.values())),
        str(len(done.lost) + len(done.forgotten)),
        str(len(done.twice)),
        str(len(done.unaccounted)),
        str(done.run_again),
        str(done.refused),
        again,
    ]


def table(outcomes: list[Outcome]) -> str:
    """A table in Markdown, followed by the faults by kind and other notes."""
    rows = [list(HEAD), *map(row, outcomes)]
    widths = [max(len(line[place]) for line in rows) for place in range(len(HEAD))]
    lines = []
    for line in rows:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        lines.append(f"| {' | '.join(cells)} |")
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for outcome in outcomes:
        kinds = ", ".join(f"{count} × {kind}" for kind, count in sorted(outcome.faults.items()))
        lines += ["", f"{outcome.part} ({outcome.took:.0f} s): {kinds or 'no faults'}"]
        lines += [f"    {name}: {value}" for name, value in outcome.notes.items()]
        lines += [f"    BROKEN: {text}" for text in outcome.all_broken]
        lines += [f"    UNFINISHED: {text}" for text in [outcome.unfinished] if text]
    return "\n".join(lines)


def commit() -> str:
    git = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    done = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def write(outcomes: list[Outcome], skipped: dict[str, str], plan: Plan, file: Path) -> None:
    document = {
        "commit": commit(),
        "seed": plan.seed,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "skipped": skipped,
        "outcomes": [outcome.document() for outcome in outcomes],
    }
    file.write_text(json.dumps(document, indent=2, default=str))


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
