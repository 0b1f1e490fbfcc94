"""The parts, one after the other; what `guard` runs."""

from __future__ import annotations

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
from .options import BEYOND, BROKEN, KEPT, PARTS, SKIPPED, arguments
from .report import Outcome, Plan, commit, say, table, write
from .surroundings import Missing, Template, postgres


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
    options = arguments(sys.argv[2:])
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
        signal.alarm(int(plan.seconds + BEYOND[options.short]))
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
