"""Options of `make citus`, and the parts they choose from."""

from __future__ import annotations

import argparse
from pathlib import Path

PARTS = {
    "move": "a cell is moved under load",
    "conformance": "the public conformance cases on a distributed cell",
    "throughput": "two cells on two nodes beside one on one",
    "campaign": "processes and the cell's node are killed while the cell is moved",
}


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make citus ARGS=…",
        description="Try cells on Citus.",
        epilog="Parts: " + "; ".join(f"{name}: {what}" for name, what in PARTS.items())
        + ". Exit code: 1 if a job was lost, a promise broken, the campaign not finished, or a "
        "case failed that can pass.",
    )  # fmt: skip
    add = parser.add_argument
    add("--source", type=Path, help="folder with the source of Citus 12.1.6")
    add("--part", action="append", choices=PARTS, help="repeatable (default: all)")
    add("--json", type=Path, metavar="FOLDER", help="write results, and logs of the campaign")
    moved = parser.add_argument_group("move")
    moved.add_argument("--around", type=float, default=5, help="seconds of load before and after")
    rates = parser.add_argument_group("throughput")
    rates.add_argument("--seconds", type=float, default=4, help="of each load in each round")
    rates.add_argument("--rounds", type=int, default=5)
    rates.add_argument("--clients", type=int, default=4, help="of each cell")
    struck = parser.add_argument_group("campaign")
    struck.add_argument("--jobs", type=int, default=2_000)
    struck.add_argument("--disturbed", type=float, default=120, help="seconds of disturbance")
    struck.add_argument("--seed", help="repeats the order of an earlier run")
    return parser.parse_args(given)
