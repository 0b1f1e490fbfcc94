"""The parts, one after the other; what `guard` runs."""

from __future__ import annotations

import argparse
import importlib
import os
import secrets
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from .cast import Cast
from .report import Outcome, Plan, commit, say, table, write
from .surroundings import Missing, Template, postgres

PARTS = {
    # letter: (module, function, what it is, jobs, jobs of the short form, seconds, seconds of it)
    "a": ("killed", "killed", "processes killed and frozen", 100_000, 300, 840, 6),
    "b": ("failover", "failover", "the primary dies, freezes, falls silent", 3_000, 200, 90, 10),
    "c": ("killed", "pooled", "PgBouncer in transaction mode", 10_000, 200, 120, 5),
    "d": ("finishers", "finishers", "two finishers of one job", 8_000, 200, 300, 20),
    "e": ("clocks", "clocks", "clocks an hour wrong", 5_000, 200, 150, 8),
    "f": ("pressure", "pressure", "disk, connections, locks, crowds", 3_000, 150, 60, 4),
    "g": ("deploy", "deploy", "a rolling deploy", 10_000, 200, 120, 5),
}
BEYOND = 1500
"""Seconds that a part may take beyond those of disturbance: to begin, and to settle."""
KEPT, BROKEN, SKIPPED = 0, 1, 3


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make campaign ARGS=…",
        description="Break what can break, and account for every job.",
        epilog="Parts: " + "; ".join(f"{letter}: {part[2]}" for letter, part in PARTS.items())
        + f". Exit code: {KEPT} all promises kept, {BROKEN} one was not, {SKIPPED} a part was "
        "skipped because this machine lacks what it needs.",
    )  # fmt: skip
    parser.add_argument("--part", action="append", choices=PARTS, help="repeatable (default: all)")
    parser.add_argument("--jobs", type=int, help="of each part")
    parser.add_argument("--seconds", type=float, help="of disturbance in each part, at most")
    parser.add_argument("--short", action="store_true", help="the form for the test suite")
    parser.add_argument("--seed", help="repeats the order of an earlier run")
    parser.add_argument(
        "--from", dest="rev", default="8e6cda7", metavar="REV", help="the release g deploys over"
    )
    parser.add_argument("--json", type=Path, metavar="FOLDER", help="write results, logs, ledgers")
    given = sys.argv[2:] if len(sys.argv) > 1 and os.path.isabs(sys.argv[1]) else sys.argv[1:]
    return parser.parse_args(given)


class OutOfTime(Exception):
    pass


def ring(number: int, frame: Any) -> None:
    raise OutOfTime


def prepare(folder: Path) -> Template:
    """Make the tables once, for all parts."""
    with postgres(folder / "template") as database:
        cast = Cast(folder / "template", database.url)
        cast.prepare()
        database.end()
        return Template(database.data, cast.key)


def main() -> int:
    options = arguments()
    folder = Path(sys.argv[1])
    seed = options.seed or secrets.token_hex(4)
    signal.signal(signal.SIGALRM, ring)
    say(f"commit {commit()}, --seed {seed}")
    outcomes: list[Outcome] = []
    skipped: dict[str, str] = {}
    template = prepare(folder)
    for letter in options.part or PARTS:
        module, name, what, *sizes = PARTS[letter]
        jobs, few, seconds, moments = sizes
        plan = Plan(
            jobs=options.jobs or (few if options.short else jobs),
            seconds=options.seconds or (moments if options.short else seconds),
            short=options.short,
            folder=folder / letter,
            seed=seed,
            template=template,
            rev=options.rev,
            keep=options.json,
        )
        plan.folder.mkdir()
        say(f"{letter}: {what}; {plan.jobs:,} jobs")
        began = time.monotonic()
        signal.alarm(int(plan.seconds + (120 if options.short else BEYOND)))
        try:
            part = getattr(importlib.import_module(f"tests.campaign.{module}"), name)
            # One by one: what came of the first is kept if the second does not end.
            for outcome in part(plan):
                outcomes.append(outcome)
        except Missing as lack:
            skipped[letter] = str(lack)
            say(f"{letter} SKIPPED: {lack}")
        except Exception as problem:
            traceback.print_exc()
            failed = Outcome(letter, took=time.monotonic() - began)
            failed.broken.append(f"not carried out: {type(problem).__name__} {problem}"[:300])
            outcomes.append(failed)
        finally:
            signal.alarm(0)
        if options.json:
            options.json.mkdir(parents=True, exist_ok=True)
            write(outcomes, skipped, plan, options.json / "campaign.json")
    print(table(outcomes))
    for letter, why in skipped.items():
        print(f"\n{letter} SKIPPED: {why}")
    print(f"\ncommit {commit()}, --seed {seed}")
    if any(outcome.all_broken for outcome in outcomes):
        return BROKEN
    return SKIPPED if skipped else KEPT


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # What still runs is the guard's to end.
    os._exit(code)
