"""Goals on PostgreSQL, each as a ratio of two measurements from the same run.

A goal that does not specify the number of connections can be read in two ways: then both readings
are here, labelled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .places import (
    ACK,
    BODIES,
    CLOCKS,
    CUT_OFF,
    EARLY,
    ELSEWHERE,
    ENDED,
    ENGINE,
    FETCH,
    FETCHES,
    FILLED,
    FILLED_PAGES,
    FLEET,
    FLOOR,
    GONE,
    HOT_VERBS,
    IDLE,
    LATE,
    LIMIT,
    LOGINS,
    LOST,
    PAGES,
    RECOVERY,
    REFERENCE,
    SOAK,
    STOCKS,
    THEIRS,
    WAITING,
    WOKEN,
    among,
    at_the_end,
    bare,
    group_of,
    in_number,
    of_clients,
    of_interface,
    of_machines,
    of_many,
    of_reference,
    of_verb,
    ours,
    recovered,
    with_past,
    woken,
)
from .results import Results

Place = tuple[str, str]


def served(name: str) -> tuple[Place, ...]:
    """Name of the HTTP server's rate; the best of one and two processes counts."""
    return tuple((group_of(processes), name) for processes in (1, 2))


@dataclass(frozen=True)
class Goal:
    text: str
    measured: Place | tuple[Place, ...]
    """Names of alternatives, of which the best counts."""
    base: Place | tuple[Place, ...] | None
    """The divisor; None if the goal is an absolute number."""
    wanted: float
    at_most: bool = False

    def line(self, results: Results) -> str:
        value = _look_up(results, self.measured)
        base = 1.0 if self.base is None else _look_up(results, self.base)
        if value is None or not base:
            return f"{'not measured':<13}{self.text}"
        ratio = value / base
        met = ratio <= self.wanted if self.at_most else ratio >= self.wanted
        sign = "≤" if self.at_most else "≥"
        wanted, found = (f"{number:,.4g}" for number in (self.wanted, ratio))
        return f"{'met' if met else 'NOT MET':<13}{self.text:<68}{found:>8}  (goal {sign} {wanted})"


def _look_up(results: Results, measured: Place | tuple[Place, ...]) -> float | None:
    places = [measured] if isinstance(measured[0], str) else measured
    found = [results.median(*place) for place in places]
    return max((rate for rate in found if rate is not None), default=None)


ONE, TWO = group_of(1), group_of(2)
ONE_BY_ONE, CARRIED = "fetch 1 + ack 1", "fetch 10 carrying acks"
BY_HUNDRED = "fetch 100 carrying acks"
PAIRS = 2
"""A job that is fetched and acked is two requests."""


def unless_usual(name: str, clients: int) -> str:
    return name if clients == 8 else of_clients(name, clients)


IN_PROCESS = (
    Goal(
        "enqueue 1000: of bare jsonb_to_recordset",
        (ENGINE, "enqueue 1000"),
        (LIMIT, "psycopg: insert 1000"),
        0.5,
    ),
)
OVER_HTTP = (
    *(
        Goal(
            f"HTTP batch of 100, {clients} clients: of pgbench 100 + 100, {clients} connections",
            served(unless_usual(BY_HUNDRED, clients)),
            (LIMIT, bare(100, clients)),
            0.4,
        )
        for clients in (2, 8)
    ),
    *(
        Goal(
            f"HTTP one by one, {clients} clients: of pgbench 1 + 1, {count} connection{plural}",
            served(unless_usual(ONE_BY_ONE, clients)),
            (LIMIT, bare(1, count)),
            0.3,
        )
        for clients, count, plural in ((2, 1, ""), (2, 2, "s"), (8, 8, "s"))
    ),
    Goal(
        "HTTP heartbeats a second, of 10,000 workers with 10 jobs each",
        served(FLEET),
        None,
        2_000,
    ),
    Goal("HTTP enqueue 1: of the floor's rate", (ONE, "enqueue 1"), (ONE, FLOOR), 0.6),
    Goal(
        "HTTP fetch 1 + ack 1: of the floor's rate (2 requests a job)",
        (ONE, ONE_BY_ONE),
        (ONE, FLOOR),
        0.6 / PAIRS,
    ),
    Goal(
        "HTTP heartbeat, no jobs: of the floor's rate",
        (ONE, "heartbeat, no jobs"),
        (ONE, FLOOR),
        0.6,
    ),
    Goal(
        "HTTP fetch 50 + ack 50: of one by one", (ONE, "fetch 50 + ack 50"), (ONE, ONE_BY_ONE), 10
    ),
)
AT_SCALE = (
    Goal(
        "FETCH p50 at 1,000,000 available: of 10,000",
        (FETCH, "1,000,000 available"),
        (FETCH, "10,000 available"),
        1.2,
        at_most=True,
    ),
    Goal(
        "FETCH p50 with 1,000,000 completed: of 10,000 available",
        (FETCH, "1,000,000 available, 1,000,000 completed"),
        (FETCH, "10,000 available"),
        1.2,
        at_most=True,
    ),
    Goal(
        "ACK p50 at 10,000 in flight: of 100",
        (ACK, "10,000 in flight"),
        (ACK, "100 in flight"),
        1.2,
        at_most=True,
    ),
    Goal(
        "recovery of 10,000 jobs of dead workers, seconds",
        (RECOVERY, "10,000 jobs of 100 dead workers"),
        None,
        1.0,
        at_most=True,
    ),
    Goal(
        "idle worker, commit to handler, p50, ms",
        (IDLE, "commit to handler, p50"),
        None,
        10,
        at_most=True,
    ),
    Goal(
        "idle worker, commit to handler, p99, ms",
        (IDLE, "commit to handler, p99"),
        None,
        50,
        at_most=True,
    ),
    Goal("slowest admin page, ms", (PAGES, "slowest"), None, 300, at_most=True),
    Goal("most queries of an admin page", (PAGES, "most queries"), None, 15, at_most=True),
    Goal("largest admin page, compressed, kB", (PAGES, "largest"), None, 50, at_most=True),
)
WHILE_WAITING = (
    *(
        Goal(
            f"5,000 waiting fetches: {measure}, {unit}",
            (WAITING, of_many(5_000, FETCHES, measure)),
            None,
            wanted,
            at_most=True,
        )
        for measure, unit, wanted in (
            ("memory", "MB", 400),
            ("heartbeat, p99", "ms", 100),
            ("enqueue to start, p99", "ms", 20),
        )
    ),
    *(
        Goal(
            f"1,000 {what}: slowest /ojs/v1/health, ms",
            (WAITING, of_many(1_000, what, "health, slowest")),
            None,
            1_000,
            at_most=True,
        )
        for what in (BODIES, LOGINS)
    ),
    Goal(
        "10,000 fetches that left: memory, of before",
        (WAITING, of_many(10_000, GONE, "memory, of before")),
        None,
        1.1,
        at_most=True,
    ),
    Goal(
        "20 fetches at SIGTERM: answered, %",
        (WAITING, of_many(20, ENDED, "answered with an empty list")),
        None,
        100,
    ),
)
BESIDE_WSGI = tuple(
    Goal(
        f"event loop, {of_clients(name, clients)}: of WSGI",
        (of_interface("asgi"), of_clients(name, clients)),
        (of_interface("wsgi"), of_clients(name, clients)),
        0.8 if clients == 1 else wanted,
    )
    for name, wanted, some in (
        ("enqueue 1", 1.0, (1, 8, 32)),
        ("heartbeat, no jobs", 1.0, (1, 8, 32)),
        (ONE_BY_ONE, 0.9, (1, 8, 32)),
        ("enqueue 100", 0.9, (1, 8)),
    )
    for clients in some
)
LEVEL = (
    *(
        Goal(
            f"{kind} p99 of the last ten minutes: of the first",
            (SOAK, at_the_end(f"{kind}, p99")),
            None,
            1.3,
            at_most=True,
        )
        for kind in ("enqueue", "fetch", "ack", "beat")
    ),
    Goal(
        "size at most in the last third: of the second", (SOAK, at_the_end("size")), None, 1.1, True
    ),
    *(
        Goal(
            f"{kind} p99 two minutes after an idle transaction: of before",
            (SOAK, recovered(kind)),
            None,
            1.3,
            at_most=True,
        )
        for kind in ("enqueue", "fetch", "ack", "beat")
    ),
    Goal(
        "fetch p50 with 10,000,000 finished jobs: of without",
        (SOAK, with_past(10_000_000)),
        None,
        1.1,
        at_most=True,
    ),
)
WHEN_FILLED = (
    *(
        Goal(
            f"filled tables, {verb} {share}: of small ones",
            (FILLED, of_verb(verb, share, "filled")),
            (FILLED, of_verb(verb, share, "small")),
            1.2,
            at_most=True,
        )
        for verb in HOT_VERBS
        for share in ("p50", "p99")
    ),
    Goal("filled tables: slowest admin page, ms", (FILLED_PAGES, "slowest"), None, 300, True),
)
BESIDE_REFERENCE = tuple(
    Goal(
        of_reference(f"of the {THEIRS}", name, connections),
        tuple(
            (REFERENCE, of_reference(ours(processes), name, connections)) for processes in (1, 2)
        ),
        (REFERENCE, of_reference(THEIRS, name, connections)),
        wanted,
    )
    for name, connections, wanted in (
        ("enqueue 1", 8, 1.0),
        ("enqueue 1", 1, 0.8),
        ("enqueue 100", 4, 1.9),
        *((among(ONE_BY_ONE, stock), 8, 8.0) for stock in STOCKS),
        ("heartbeat, no jobs", 8, 0.8),
        ("heartbeat, no jobs", 32, 0.8),
    )
)
ON_MACHINES = (
    *(
        Goal(
            f"{load}, three machines, servers limited to 0.2: of one",
            (of_machines(load, 0.2), in_number(3)),
            (of_machines(load, 0.2), in_number(1)),
            2.4,
        )
        for load in ("fetch 10 + ack 10", "enqueue 1")
    ),
    Goal(
        "a fetch woken across machines, p50: of within one",
        (WOKEN, woken("across machines", 50)),
        (WOKEN, woken("within one machine", 50)),
        2,
        at_most=True,
    ),
    *(
        Goal(f"{when}: jobs lost", (group, LOST), None, 0, at_most=True)
        for when, group in (("machines cut off", CUT_OFF), ("clocks an hour apart", CLOCKS))
    ),
    Goal(
        "a machine cut off (timeout 5 s): its jobs run elsewhere, seconds",
        (CUT_OFF, ELSEWHERE),
        None,
        10,
        at_most=True,
    ),
    Goal(
        "clocks an hour apart: a delayed job or a cron early, seconds",
        (CLOCKS, EARLY),
        None,
        0,
        at_most=True,
    ),
    Goal(
        "clocks an hour apart: a delayed job or a cron late, seconds",
        (CLOCKS, LATE),
        None,
        1,
        at_most=True,
    ),
)
GOALS = (
    *IN_PROCESS,
    *OVER_HTTP,
    *AT_SCALE,
    *BESIDE_WSGI,
    *WHILE_WAITING,
    *LEVEL,
    *WHEN_FILLED,
    *BESIDE_REFERENCE,
    *ON_MACHINES,
)


def table(results: Results, goals: Sequence[Goal]) -> str:
    return "\n".join(["", "Goals", "-----", *(goal.line(results) for goal in goals)])
