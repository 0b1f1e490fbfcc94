"""A short campaign on Citus: a cell's processes are killed, its node restarts, it is moved."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import psycopg

from tests.campaign import killed
from tests.campaign.cast import FEWER, QUICK, Cast
from tests.campaign.report import Outcome, Plan, say
from tests.campaign.surroundings import Postgres

from .cluster import Cell, cluster

REFUSED = "psycopg.errors.FeatureNotSupported:"
LOST, TOLD = "failed to commit transaction on", "could not commit transaction for shard"
"""What Citus logs when a node is lost during a commit, and what it then tells the client."""
PAUSE = 2
"""Seconds until a move that failed is tried again."""
PATIENCE = 300
"""Seconds for the last move, once nothing is struck any more."""


def struck(plan: Plan) -> Outcome:
    """Part a of the campaign on a cell, with immediate restarts of its node, and moves."""
    with cluster(plan.folder) as (coordinator, nodes):
        cell = Cell(coordinator, "cell_a")
        cast = Cast(plan.folder, cell.url, STORE="citus", **QUICK)
        cell.create(cast.prepare)
        cell.distribute()
        mover = Mover(cell, nodes)
        others = {
            ("node", "immediate restart"): lambda: cell.node(nodes).crash(),
            ("cell", "move"): mover.begin,
        }
        outcome = killed.run(plan, "Citus", cast, cell, others, nodes, FEWER, mover.rest)
        logged = coordinator.log.read_text(errors="replace")
    outcome.notes["commits in doubt"] = logged.count(LOST) - logged.count(TOLD)
    outcome.notes["moves"] = f"{mover.moved}, after {mover.failed.total()} that failed"
    if mover.failed:
        outcome.notes["why they failed"] = dict(mover.failed)
    if refused := refusals(cast.logs):
        outcome.broken.append(f"Citus refused statements: {dict(refused)}")
    if not mover.moved:
        outcome.unfinished = "; ".join(filter(None, [outcome.unfinished, "no move succeeded"]))
    return outcome


def refusals(logs: Path) -> Counter[str]:
    """What Citus said to statements that it does not support, by the processes' logs."""
    return Counter(
        line.removeprefix(REFUSED).strip()
        for log in logs.glob("*.log")
        for line in log.read_text(errors="replace").splitlines()
        if line.startswith(REFUSED)
    )


class Mover:
    """Moves a cell on request, once at a time, and again if that fails."""

    def __init__(self, cell: Cell, nodes: list[Postgres]) -> None:
        self.cell = cell
        self.nodes = nodes
        self.moved = 0
        self.failed: Counter[str] = Counter()
        self._thread: threading.Thread | None = None
        self._over = threading.Event()

    def begin(self) -> bool:
        """Return whether it did not move already."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._thread = threading.Thread(target=self._move, daemon=True)
        self._thread.start()
        return True

    def rest(self) -> None:
        """Wait for a move that has begun."""
        if self._thread is not None:
            self._thread.join(PATIENCE)
        self._over.set()

    def _move(self) -> None:
        target = self.cell.other_node(self.nodes)
        while not self._over.is_set():
            try:
                took = self.cell.move(target)
            except psycopg.Error as problem:
                self.failed[str(problem).splitlines()[0][:200]] += 1
                self._over.wait(PAUSE)
                continue
            self.moved += 1
            say(f"Citus: moved to port {target.port} in {took:.1f} s")
            return
