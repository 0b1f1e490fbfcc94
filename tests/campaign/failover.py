"""Part b: the database's primary dies, freezes or falls silent, and its standby takes over.

Commits wait for the standby. Everything has its default settings, processes connect with both
hosts in `DATABASE_URL`, and none of them is restarted.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from tests.processes import eventually

from .account import Ledgers
from .cast import FEWEST, WORKERS, Cast
from .killed import everybody_works, finish, keep, settle, works_again
from .load import KINDS, Load
from .report import Outcome, Plan, say
from .surroundings import NAME, Missing, Network, Postgres, Proxy, network

PROMISED = 30
"""Seconds from promotion until everything works again."""
NOTICED = {False: 5, True: 1}
"""Seconds until the standby is promoted, by whether the part is short."""
PATIENCE = 150
HOW = ("killed", "frozen", "silent")


def failover(plan: Plan) -> Iterator[Outcome]:
    for how in HOW[:1] if plan.short else HOW:
        with contextlib.ExitStack() as stack:
            try:
                cable = stack.enter_context(network()) if how == "silent" else None
            except Missing as lack:
                say(f"b: {lack}; a proxy falls silent instead")
                how, cable = "silent proxy", None
            yield _run(plan, how, cable)


def _run(plan: Plan, how: str, cable: Network | None) -> Outcome:
    began = time.monotonic()
    outcome = Outcome(f"b {how}")
    folder = plan.folder / how.replace(" ", "-")
    where: dict[str, Any] = {"host": cable.there, "network": cable.pid} if cable else {}
    primary = Postgres(folder / "primary", **where)
    # One port for both, as in most installations.
    here = cable.here if cable else "127.0.0.2"
    standby = Postgres(folder / "standby", host=here, port=primary.port)
    with contextlib.ExitStack() as stack:
        stack.callback(standby.stop)
        stack.callback(primary.stop)
        primary.create(plan.template)
        primary.start()
        couple(primary, standby)
        first: Postgres | Proxy = primary
        if how == "silent proxy":
            first = Proxy(primary)
            stack.callback(first.end)
        cast = Cast(folder, both(first, standby))
        cast.use_key(plan.template.key)
        ledgers = Ledgers(cast.ledgers)
        workers = FEWEST if plan.short else WORKERS
        load = Load(cast, ledgers, jobs=plan.jobs, seconds=plan.seconds, seed=plan.seed)
        voices = [f"worker-{name}" for name in workers]
        with cast, load:
            cast.enter(workers=workers, reapers=1 if plan.short else 2)
            everybody_works(cast, ledgers, voices, began, outcome)
            voices += [f"enqueued-{kind}" for kind in KINDS]
            load.stream()
            pause = threading.Event()
            pause.wait(plan.seconds / 3)
            say(f"b: the primary is {how}")
            fault: dict[str, Callable[[], Any]] = {
                "killed": primary.stop,
                "frozen": primary.freeze,
                "silent": cable.cut if cable else list,
                "silent proxy": first.cut if isinstance(first, Proxy) else list,
            }
            fault[how]()
            outcome.faults[f"primary {how}"] += 1
            pause.wait(NOTICED[plan.short])
            standby.promote()
            promoted = time.monotonic()
            say("b: the standby is promoted")
            again = works_again(cast, ledgers, voices, promoted, outcome, PATIENCE)
            reaped = all_reap(cast, standby, promoted, outcome)
            ready = all_ready(cast, promoted, outcome)
            if again is not None and reaped is not None and ready is not None:
                outcome.works_again = max(again, reaped, ready)
                if outcome.works_again > PROMISED and not plan.short:
                    outcome.broken.append(
                        f"worked again {outcome.works_again:.0f} s after promotion, not {PROMISED}"
                    )
            load.end()
            settle(cast, standby, outcome)
            restarts = {name: one.incarnation - 1 for name, one in cast.members.items()}
            outcome.notes["restarted"] = {name: n for name, n in restarts.items() if n} or "none"
        finish(outcome, cast, ledgers, standby, load)
    outcome.took = time.monotonic() - began
    keep(plan, f"b-{how.replace(' ', '-')}", folder)
    return outcome


def all_ready(cast: Cast, since: float, outcome: Outcome) -> float | None:
    """Wait until a load balancer would send requests to each server; return how long that took."""
    waited_for = ["server-1", "server-2"]
    while waited_for:
        seconds = time.monotonic() - since
        with contextlib.suppress(httpx.HTTPError):
            reply = httpx.get(f"{cast.url_of(waited_for[0])}/ojs/v1/ready", timeout=5)
            if reply.status_code == 200:
                waited_for.pop(0)
                continue
        if seconds > PATIENCE:
            outcome.broken.append(f"{waited_for[0]} is not ready {PATIENCE} s after promotion")
            return None
        threading.Event().wait(0.2)
    return seconds


def couple(primary: Postgres, standby: Postgres) -> None:
    """Start the standby, and make the primary's commits wait for it."""
    standby.standby_of(primary)
    standby.start()
    with primary.connect() as connection:
        # Not in the standby's copy of the settings: it has no standby to wait for.
        connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        connection.execute("SELECT pg_reload_conf()")

        def is_waited_for() -> bool:
            rows = connection.execute("SELECT sync_state FROM pg_stat_replication").fetchall()
            return ("sync",) in rows

        eventually(is_waited_for)


def both(primary: Postgres | Proxy, standby: Postgres) -> str:
    """Both servers as one `DATABASE_URL`, as in README."""
    hosts = ",".join(f"{one.host}:{one.port}" for one in (primary, standby))
    return f"postgresql://{NAME}@{hosts}/{NAME}?target_session_attrs=read-write"


def all_reap(cast: Cast, database: Postgres, since: float, outcome: Outcome) -> float | None:
    """Wait for each reaper's sign of life after `since`; return how long that took."""
    reapers = sum(member.kind == "reaper" for member in cast.members.values())
    with database.connect(NAME) as connection:
        while True:
            seconds = time.monotonic() - since
            found = connection.execute(
                "SELECT count(*) FROM ojs_workers_reaper"
                " WHERE seen_at > clock_timestamp() - make_interval(secs => %s)",
                [seconds],
            ).fetchone()
            if found and found[0] >= reapers:
                return seconds
            if seconds > PATIENCE:
                outcome.broken.append(f"a reaper is silent {PATIENCE} s after promotion")
                return None
            threading.Event().wait(0.2)
