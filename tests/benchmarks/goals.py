"""What we aim for on PostgreSQL, each as a ratio to something measured in the same run.

Goals that name another product became ratios by what both did on one machine: where that product
did a third of bare psycopg's rate, "as fast as it" reads "a third of bare psycopg".
"""

from __future__ import annotations

from dataclasses import dataclass

from .in_process import GROUP, LIMIT, RECOVERY
from .over_http import FLOOR, group_of
from .results import Results
from .scale import ACK, FETCH

Place = tuple[str, str]
BEST = "best of 1 and 2 processes"


@dataclass(frozen=True)
class Goal:
    text: str
    measured: Place
    base: Place | None
    """What it is divided by; None where the goal is a number of its own."""
    wanted: float
    at_most: bool = False

    def line(self, results: Results) -> str:
        value = _look_up(results, self.measured)
        base = 1.0 if self.base is None else _look_up(results, self.base)
        if not value or not base:
            return f"{'not measured':<13}{self.text}"
        ratio = value / base
        met = ratio <= self.wanted if self.at_most else ratio >= self.wanted
        sign = "≤" if self.at_most else "≥"
        wanted, found = (f"{number:,.4g}" for number in (self.wanted, ratio))
        return f"{'met' if met else 'NOT MET':<13}{self.text:<62}{found:>8}  (goal {sign} {wanted})"


def _look_up(results: Results, place: Place) -> float | None:
    group, name = place
    if group != BEST:
        return results.median(group, name)
    found = [results.median(group_of(processes), name) for processes in (1, 2)]
    return max((rate for rate in found if rate), default=None)


ONE, TWO = group_of(1), group_of(2)
ONE_BY_ONE, BY_HUNDRED = "fetch 1 + ack 1", "fetch 100 carrying acks"
PAIRS = 2
"""A job that is fetched and acked is two requests."""

GOALS = (
    Goal("HTTP enqueue 1: of the floor's rate", (ONE, "enqueue 1"), (ONE, FLOOR), 0.6),
    Goal(
        "HTTP fetch 1 + ack 1: of the floor's rate (2 requests a job)",
        (ONE, ONE_BY_ONE),
        (ONE, FLOOR),
        0.6 / PAIRS,
    ),
    Goal(
        "HTTP heartbeat, no jobs: of the floor's rate",
        (ONE, "heartbeat, no jobs"),
        (ONE, FLOOR),
        0.6,
    ),
    Goal(
        "HTTP fetch 50 + ack 50: of one by one", (ONE, "fetch 50 + ack 50"), (ONE, ONE_BY_ONE), 10
    ),
    Goal(
        "HTTP one by one: of pgbench claim 1 + ack 1, as many clients",
        (BEST, ONE_BY_ONE),
        (LIMIT, "pgbench: claim + ack 1, 8 connections"),
        0.3,
    ),
    Goal(
        "HTTP fetch 10 with acks (3× Celery threads): of bare psycopg",
        (BEST, "fetch 10 carrying acks"),
        (LIMIT, "psycopg: claim + ack 10"),
        3 * 1159 / 11_551,
    ),
    Goal(
        "HTTP batch of 100: of pgbench claim 100 + ack 100",
        (BEST, BY_HUNDRED),
        (LIMIT, "pgbench: claim + ack 100, 8 connections"),
        0.4,
    ),
    Goal("HTTP heartbeats with 10 jobs, a second", (BEST, "heartbeat, 10 jobs"), None, 2_000),
    Goal(
        "enqueue 1 in process (2× procrastinate, 1.5× django-tasks-db)",
        (GROUP, "enqueue 1"),
        (LIMIT, "psycopg: insert 1"),
        1.5 * 1736 / 3_881,
    ),
    Goal(
        "enqueue 1000 in process: of bare jsonb_to_recordset",
        (GROUP, "enqueue 1000"),
        (LIMIT, "psycopg: insert 1000"),
        0.5,
    ),
    Goal(
        "FETCH at 1,000,000 available: of 10,000",
        (FETCH, "1,000,000 available"),
        (FETCH, "10,000 available"),
        1.2,
        at_most=True,
    ),
    Goal(
        "FETCH with 1,000,000 completed too: of 10,000 available",
        (FETCH, "1,000,000 available, 1,000,000 completed"),
        (FETCH, "10,000 available"),
        1.2,
        at_most=True,
    ),
    Goal(
        "ACK at 10,000 in flight: of 100",
        (ACK, "10,000 in flight"),
        (ACK, "100 in flight"),
        1.2,
        at_most=True,
    ),
    Goal(
        "recovery of 10,000 jobs of dead workers, seconds",
        (RECOVERY, "10,000 jobs of 100 dead workers"),
        None,
        1.0,
        at_most=True,
    ),
)


def table(results: Results) -> str:
    return "\n".join(["", "Goals", "-----", *(goal.line(results) for goal in GOALS)])
