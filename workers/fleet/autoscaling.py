"""Computes how many workers a queue needs, for KEDA, a HorizontalPodAutoscaler, or a person.

By Little's law a queue keeps as many places busy as jobs arrive in the time one job takes. Jobs
that already wait need extra places, enough to finish within `AUTOSCALE_WITHIN`, but never more
than one per job. The result never has fewer places than there are running jobs: scaling down in
the middle of a long job only makes it start again.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from jobs.conf import ojs_settings
from jobs.models import Queue
from jobs.record import counters, dashboard
from jobs.spec.lifecycle import State
from jobs.store import clock

from ..lifecycle import WorkerState
from ..models import Worker

UNKNOWN_RUN_TIME = timedelta(seconds=1)
"""Assumed for a queue without a finished job in the last minutes."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a queue, and the figures behind it."""

    queue: str
    waiting: int
    """Available jobs."""
    active: int
    arrivals: float
    """Jobs per second, over the last minutes."""
    run_time: timedelta | None
    """Mean for the jobs that ended in the last minutes; None if none did."""
    places: float
    """Jobs that should run at once."""
    concurrency: float
    """Jobs that a worker of this queue runs at once, on average."""
    paused: bool = False

    @property
    def wanted_workers(self) -> int:
        return math.ceil(self.places / self.concurrency)


def demands(
    queues: Iterable[str], depths: Mapping[str, dashboard.Depth] | None = None
) -> list[Demand]:
    """Return the demand of each of `queues`, in that order; an unused queue has none.

    Args:
        depths: the depths of the queues, if already known.
    """
    names = list(dict.fromkeys(queues))
    depths = dashboard.depths(names) if depths is None else depths
    flows = counters.flows(names, clock.now())
    concurrency = _concurrency()
    paused = set(Queue.objects.paused().filter(pk__in=names).values_list("pk", flat=True))
    found = []
    for name in names:
        flow = flows.get(name, counters.Flow())
        waiting, active = depths[name].of(State.AVAILABLE), depths[name].of(State.ACTIVE)
        places = float(active)
        if name not in paused:
            places = _places(waiting, active, flow)
        found.append(
            Demand(
                queue=name,
                waiting=waiting,
                active=active,
                arrivals=flow.arrivals,
                run_time=flow.run_time,
                places=places,
                concurrency=concurrency.get(name) or concurrency[""],
                paused=name in paused,
            )
        )
    return found


def _places(waiting: int, active: int, flow: counters.Flow) -> float:
    run_time = (flow.run_time or UNKNOWN_RUN_TIME).total_seconds()
    within = ojs_settings.AUTOSCALE_WITHIN.total_seconds()
    share = min(1.0, run_time / within) if within else 1.0
    return max(float(active), flow.arrivals * run_time) + waiting * share


def wanted_workers(demands: Sequence[Demand]) -> int:
    """How many workers a deployment needs to serve all these queues."""
    places = sum(demand.places for demand in demands)
    busiest = [demand.concurrency for demand in demands]
    return math.ceil(places / (sum(busiest) / len(busiest))) if busiest else 0


def _concurrency() -> dict[str, float]:
    """Queue → mean concurrency of its running workers; "" for all others."""
    given: dict[str, list[int]] = defaultdict(list)
    running = Worker.objects.live().filter(state=WorkerState.RUNNING, concurrency__gt=0)
    for queues, concurrency in running.values_list("queues", "concurrency"):
        for queue in ["", *queues]:
            given[queue].append(concurrency or 1)
    means = {queue: sum(numbers) / len(numbers) for queue, numbers in given.items()}
    means.setdefault("", float(max(1, ojs_settings.CONCURRENCY)))
    return means
