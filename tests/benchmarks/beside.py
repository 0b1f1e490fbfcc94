"""`make bench ARGS="--beside ../older"`: this checkout and another one, in turn, in one run.

Both need an environment of their own (`make install` there). Names that only one of them measures
are left out.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests import postgres
from tests.processes import ROOT

from .plan import say

Rates = dict[tuple[str, str], list[float]]
"""Group and name of a measurement → a value of each round."""


def compare(other: Path, rounds: int, given: Sequence[str]) -> str:
    """Measure the suite of both on PostgreSQL; return a table of ratios.

    Args:
        given: further arguments of `make bench` for both, such as `--only` and `--seconds`.
    """
    server = postgres.start()
    here: Rates = {}
    there: Rates = {}
    sides = [(ROOT, here), (other.resolve(), there)]
    for number in range(rounds):
        # The order changes, so that a drift of the machine's speed favours neither.
        for checkout, rates in sides if number % 2 else reversed(sides):
            say(f"Round {number + 1} of {rounds}: {checkout}")
            _measure(checkout, server, given, rates)
    return _table(here, there)


def _measure(checkout: Path, server: str, given: Sequence[str], rates: Rates) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        command = [checkout / ".venv/bin/python", "-m", "tests.benchmarks"]
        command += ["--database", "postgres", "--part", "suite", "--rounds", "1"]
        command += ["--url", server, "--json", file, *given]
        done = subprocess.run(
            command, cwd=checkout, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False
        )
        if done.returncode:
            sys.exit(f"{checkout}: the benchmarks failed.\n{done.stderr.decode()[-2000:]}")
        documents = json.loads(file.read_text())["postgres"]
    for document in documents:
        if document["rounds"] and document["unit"].endswith("/s"):
            name = document["group"], document["name"]
            rates.setdefault(name, []).append(statistics.median(document["rounds"]))


def _table(here: Rates, there: Rates) -> str:
    lines = [f"{'':<86}{'other':>10}{'this':>10}  ratio  of each round"]
    for (group, name), now in here.items():
        if before := there.get((group, name)):
            ratio = statistics.median(now) / statistics.median(before)
            each = " ".join(f"{a / b:.2f}" for a, b in zip(now, before, strict=True))
            lines.append(
                f"{group:<34.32}{name:<52.50}{statistics.median(before):>10,.0f}"
                f"{statistics.median(now):>10,.0f}  {ratio:5.2f}  {each}"
            )
    return "\n".join(lines)
