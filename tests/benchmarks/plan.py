"""Options of a run of the benchmarks."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .results import Results

OTHERS = ("The machine", "busy with other things")
IDLE = 0.1
Name = TypeVar("Name")


@dataclass
class Plan:
    database_url: str
    processes: tuple[int, ...] = (1, 2)
    seconds: float = 3
    rounds: int = 3
    clients: int = 8
    threads: int = 8
    """Blocking threads of a server process."""
    only: tuple[str, ...] = ()
    sizes: tuple[int, ...] = (10_000, 1_000_000)
    """The number of available jobs that FETCH can choose from."""
    in_flight: tuple[int, ...] = (100, 10_000)
    recovered: int = 10_000
    fleet: int = 10_000
    """The number of workers whose heartbeats are sent in turn, with ten jobs each."""
    samples: int = 300

    @property
    def is_postgresql(self) -> bool:
        return not self.database_url.startswith("sqlite:")

    def stock(self, jobs: float) -> int:
        """How many jobs to enqueue if PostgreSQL may use up `jobs`."""
        # SQLite processes a tenth of it, and fills its tables slowly.
        return int(jobs if self.is_postgresql else jobs / 6)

    def wants(self, name: str, group: str) -> bool:
        """Whether `--only` selects this one, by any part of its name or of its group's."""
        return not self.only or any(word in f"{group}: {name}".lower() for word in self.only)


def stop_when_asked() -> None:
    """Run every `finally` on SIGTERM too: there are servers to stop."""

    def leave(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit("Stopped.")

    signal.signal(signal.SIGTERM, leave)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def rounds(plan: Plan, names: Iterable[Name], results: Results) -> Iterator[Name]:
    """Each name once per round, so that a slow minute of the machine affects all of them.

    Between two of them, idle for a moment, and measure how busy the machine is otherwise.
    """
    import psutil  # comes with the PostgreSQL that the tests start

    names = list(names)
    for _ in range(plan.rounds):
        for name in names:
            others = psutil.cpu_percent(interval=IDLE)
            results.get(*OTHERS, "%").rounds.append(others)
            yield name


def given(options: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Those of the named options that were given."""
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def words(options: argparse.Namespace, flags: Sequence[str], *names: str) -> list[str]:
    """The given ones of these flags and options as arguments of a command."""
    found = [f"--{flag}" for flag in flags if getattr(options, flag)]
    values = given(options, *names).items()
    return found + [f"--{name.replace('_', '-')}={value}" for name, value in values]
