"""Goals in comparison with other job servers."""

from __future__ import annotations

from ..goals import CARRIED, Goal, of_clients, served
from ..places import bare
from .contenders import CELERY, OURS
from .places import PEERS, enqueued, worked_off


def beside(peer: str, wanted: float, processes: int = 1) -> Goal:
    plural = "es" if processes > 1 else ""
    return Goal(
        f"runjobworker, {processes} process{plural}: of {peer}",
        (PEERS, worked_off(OURS, processes)),
        (PEERS, worked_off(peer, processes)),
        wanted,
    )


def enqueue_beside(peer: str, wanted: float, at_a_time: int = 1) -> Goal:
    return Goal(
        f"enqueue {at_a_time}: of {peer}",
        (PEERS, enqueued(OURS, at_a_time)),
        (PEERS, enqueued(peer, at_a_time)),
        wanted,
    )


GOALS = (
    beside("huey", 2),
    beside(CELERY, 5),
    beside("procrastinate", 10),
    beside("django-tasks-db", 10),
    Goal(
        "runjobworker, 2 processes: of pgbench 50 + 50, 2 connections",
        (PEERS, worked_off(OURS, 2)),
        (PEERS, bare(50, 2)),
        0.5,
    ),
    Goal(
        "runjobworker, 2 processes: of pgbench 50 + 50 at its best",
        (PEERS, worked_off(OURS, 2)),
        tuple((PEERS, bare(50, connections)) for connections in (2, 8)),
        0.5,
    ),
    enqueue_beside("django-tasks-db", 1.5),
    enqueue_beside("procrastinate", 2),
    enqueue_beside(CELERY, 1.2),
    enqueue_beside("procrastinate", 4, 1000),
)
OF_THE_SUITE = tuple(
    Goal(
        f"HTTP fetch 10 with acks, 2 clients: of Celery threads, {count} process{plural}",
        served(of_clients(CARRIED, 2)),
        (PEERS, worked_off(CELERY, count)),
        3,
    )
    for count, plural in ((1, ""), (2, "es"))
)
"""Goals that combine a run of the suite with one of the peers."""
