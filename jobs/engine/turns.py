"""Whose turn it is in a queue that tenants share (OJS multi-tenancy §7, fair scheduling §9).

Deficit round-robin: the tenants with waiting jobs have turns one after the other, each of as many
jobs as its weight says; what is left of a fraction counts in its next turn. How many jobs a tenant
has makes no difference. Turns are taken within the highest priority that waits (§9.3).

The position is kept in the queue's row, whose lock the caller holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..models import Queue, Tenant
from ..store.database import run

MOST = 1_000
"""Most tenants that one fetch considers; it begins after the one that had the last turn."""
# Two probes of the partial index on projects for each tenant, however many jobs it has.
WAITING = """
    WITH RECURSIVE tenant (project, number) AS (
        SELECT (SELECT min(project)
                  FROM ojs_jobs_job
                 WHERE state = 'available' AND NOT (project = '') AND project > %s), 1
     UNION ALL
        SELECT (SELECT min(project)
                  FROM ojs_jobs_job
                 WHERE state = 'available' AND NOT (project = '') AND project > tenant.project),
               number + 1
          FROM tenant
         WHERE project IS NOT NULL AND number < %s
    )
    SELECT project,
           (SELECT max(priority)
              FROM ojs_jobs_job
             WHERE state = 'available' AND NOT (project = '')
               AND project = tenant.project AND queue = %s)
      FROM tenant
     WHERE project IS NOT NULL
"""


def waiting(queue: Queue) -> dict[str, int]:
    """Return the tenants with available jobs in the queue, and their highest priority.

    In the order of their turns, which ends with the one that has the turn now.
    """
    current = str(queue.turn.get("tenant", ""))
    rows = run(WAITING, [current, MOST, queue.pk])
    if current and len(rows) < MOST:
        known = {name for name, _ in rows}
        first = run(WAITING, ["", MOST - len(rows), queue.pk])
        rows = [*rows, *(row for row in first if row[0] not in known)]
    return {name: top for name, top in rows if top is not None}


class Turns:
    """The turns of one fetch."""

    def __init__(self, queue: Queue, tenants: Sequence[str]) -> None:
        """
        Args:
            tenants: in the order of their turns.
        """
        self.ring = list(tenants)
        self.place = {name: index for index, name in enumerate(self.ring)}
        self.current = str(queue.turn.get("tenant", ""))
        self.credit = float(queue.turn.get("left", 0))
        self.owed: dict[str, float] = dict(queue.turn.get("owed", {}))
        self._weights = weights(queue, self.ring)

    def next(self, candidates: Collection[str]) -> str:
        """Return the candidate whose turn it is; the order is that of the ring."""
        while self.current not in candidates or self.credit < 1:
            self._end_turn(waits=self.current in candidates)
            start = self.place.get(self.current, -1)
            count = len(self.ring)
            self.current = next(
                name
                for name in (self.ring[(start + step) % count] for step in range(1, count + 1))
                if name in candidates
            )
            self.credit = self.owed.pop(self.current, 0) + self._weights[self.current]
        return self.current

    def take(self) -> None:
        """Count a job of the tenant that has the turn."""
        self.credit -= 1

    def _end_turn(self, *, waits: bool) -> None:
        # A tenant without jobs saves nothing up.
        if waits and 0 < self.credit < 1:
            self.owed[self.current] = self.credit
        self.credit = 0

    def save(self, queue: Queue) -> None:
        owed = {name: left for name, left in self.owed.items() if name in self.place}
        turn: dict[str, Any] = {"tenant": self.current, "left": round(self.credit, 6)}
        if owed:
            turn["owed"] = {name: round(left, 6) for name, left in owed.items()}
        queue.turn = turn
        Queue.objects.filter(pk=queue.pk).update(turn=turn)


def weights(queue: Queue, tenants: Sequence[str]) -> dict[str, float]:
    """Return the weight of each tenant: the queue's own, the tenant's, or the queue's default."""
    policy: Mapping[str, Any] = queue.config.get("tenant_fairness", {})
    own: Mapping[str, float] = policy.get("weights", {})
    default = float(policy.get("default_weight", 1))
    rows = Tenant.objects.filter(pk__in=tenants).values_list("pk", "fairness_weight")
    known = dict(rows)
    return {name: float(own.get(name, known.get(name, default))) for name in tenants}
