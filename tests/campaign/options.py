"""The options of `make campaign`, and the parts they choose from."""

from __future__ import annotations

import argparse
from pathlib import Path

PARTS = {
    # letter: (module, function, description, jobs, jobs if short, seconds, seconds if short)
    "a": ("killed", "killed", "processes killed and frozen", 100_000, 300, 840, 6),
    "b": ("failover", "failover", "the primary dies, freezes, falls silent", 3_000, 200, 90, 10),
    "c": ("killed", "pooled", "PgBouncer in transaction mode", 5_000, 200, 120, 5),
    "d": ("finishers", "finishers", "two finishers of one job", 8_000, 200, 300, 20),
    "e": ("clocks", "clocks", "clocks an hour wrong", 5_000, 200, 150, 8),
    "f": ("pressure", "pressure", "disk, connections, locks, crowds", 3_000, 150, 60, 4),
    "g": ("deploy", "deploy", "a rolling deploy", 10_000, 200, 120, 5),
}
BEYOND = {False: 1500, True: 300}
"""Seconds that a part may take beyond the disturbance, by whether it is short."""
LANES = {False: 1, True: 3}
"""Parts at the same time, by whether they are short: short ones mostly wait."""
LENGTHY = "gbac"
"""The short ones that begin first, so that none is left over at the end."""
KEPT, BROKEN, SKIPPED = 0, 1, 3


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make campaign ARGS=…",
        description="Break what can break, and account for every job.",
        epilog="Parts: " + "; ".join(f"{letter}: {part[2]}" for letter, part in PARTS.items())
        + f". Exit code: {KEPT} all promises kept, {BROKEN} one was not, {SKIPPED} a part was "
        "skipped because this machine lacks what it needs, or not finished because it is slow.",
    )  # fmt: skip
    parser.add_argument("--part", action="append", choices=PARTS, help="repeatable (default: all)")
    parser.add_argument("--jobs", type=int, help="of each part")
    parser.add_argument("--seconds", type=float, help="of disturbance in each part")
    parser.add_argument("--short", action="store_true", help="the form for the test suite")
    parser.add_argument("--seed", help="repeats the order of an earlier run")
    parser.add_argument(
        "--from", dest="rev", default="8e6cda7", metavar="REV", help="the release g deploys over"
    )
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="write results, logs, ledgers")
    return parser.parse_args(given)
