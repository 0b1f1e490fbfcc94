"""The parts, one after the other, or several at a time if they are short; what `guard` runs."""

from __future__ import annotations

import argparse
import importlib
import os
import secrets
import sys
import time
import traceback
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from .cast import Cast
from .options import BEYOND, BROKEN, KEPT, LANES, LENGTHY, PARTS, SKIPPED, arguments
from .report import Outcome, Plan, commit, say, table, write
from .surroundings import Missing, Template, postgres


def prepare(folder: Path) -> Template:
    """Make the tables once, for all parts."""
    with postgres(folder / "template") as database:
        cast = Cast(folder / "template", database.url)
        cast.prepare()
        database.end()
        return Template(database.data, cast.key)


class Campaign:
    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.seed = options.seed or secrets.token_hex(4)
        self.outcomes: list[Outcome] = []
        self.skipped: dict[str, str] = {}

    def run(self) -> None:
        short = self.options.short
        letters = self.options.part or list(PARTS)
        if short:
            letters = sorted(letters, key=lambda one: (f"{LENGTHY}{one}".index(one), one))
        # Not as a context manager, which would wait for a part that does not end.
        lanes = ThreadPoolExecutor(LANES[short])
        prepared = lanes.submit(prepare, self.folder)
        parts = {letter: lanes.submit(self.carry_out, letter, prepared) for letter in letters}
        for letter, part in parts.items():
            patience = self.plan(letter, prepared).longest + BEYOND[short]
            try:
                part.result(patience)
            except TimeoutError:
                self.fail(letter, f"no end after {patience:.0f} s; what follows is left out")
                return

    def plan(self, letter: str, prepared: Future[Template]) -> Plan:
        options = self.options
        jobs, few, seconds, moments = PARTS[letter][3:]
        return Plan(
            jobs=options.jobs or (few if options.short else jobs),
            seconds=options.seconds or (moments if options.short else seconds),
            short=options.short,
            folder=self.folder / letter,
            seed=self.seed,
            prepared=prepared,
            rev=options.rev,
            keep=options.json,
        )

    def carry_out(self, letter: str, prepared: Future[Template]) -> None:
        module, name, what, *_ = PARTS[letter]
        plan = self.plan(letter, prepared)
        plan.folder.mkdir()
        say(f"{letter}: {what}; {plan.jobs:,} jobs")
        began = time.monotonic()
        try:
            part = getattr(importlib.import_module(f"tests.campaign.{module}"), name)
            # One by one, so that the result of the first is kept if the second does not end.
            for outcome in part(plan):
                self.outcomes.append(outcome)
        except Missing as lack:
            self.skipped[letter] = str(lack)
            say(f"{letter} SKIPPED: {lack}")
        except Exception as problem:
            traceback.print_exc()
            why = f"not carried out: {type(problem).__name__} {problem}"[:300]
            self.fail(letter, why, time.monotonic() - began)
        self.outcomes.sort(key=lambda outcome: outcome.part)
        if plan.keep:
            plan.keep.mkdir(parents=True, exist_ok=True)
            write(self.outcomes, self.skipped, plan, plan.keep / "campaign.json")

    def fail(self, letter: str, why: str, took: float = 0) -> None:
        self.outcomes.append(Outcome(letter, took=took, broken=[why]))

    @property
    def code(self) -> int:
        if any(outcome.all_broken for outcome in self.outcomes):
            return BROKEN
        if self.skipped or any(outcome.unfinished for outcome in self.outcomes):
            return SKIPPED
        return KEPT


def main() -> int:
    campaign = Campaign(arguments(sys.argv[2:]), Path(sys.argv[1]))
    say(f"commit {commit()}, --seed {campaign.seed}")
    campaign.run()
    print(table(campaign.outcomes))
    for letter, why in campaign.skipped.items():
        print(f"\n{letter} SKIPPED: {why}")
    print(f"\ncommit {commit()}, --seed {campaign.seed}")
    return campaign.code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # The guard ends whatever still runs.
    os._exit(code)
