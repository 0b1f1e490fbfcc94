"""Parts a and c: processes are killed and frozen repeatedly, and every job is done once."""

from __future__ import annotations

import contextlib
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.processes import eventually

from .account import Ledgers, account
from .cast import FEWER, QUICK, WORKERS, Cast, reign
from .load import KINDS, Load
from .report import Outcome, Plan, say
from .surroundings import Bouncer, Database, Kept, postgres

KILL = "kill -9"
SETTLING = 240
"""Seconds in which every job must have ended after the last disturbance."""


def killed(plan: Plan) -> list[Outcome]:
    """Part a: workers, servers, gateways, reapers and the postmaster."""
    with postgres(plan.folder / "postgres", plan.template) as database:
        cast = Cast(plan.folder, database.url, **QUICK)
        cast.use_key(plan.template.key)
        others = {("postmaster", KILL): database.kill}
        return [run(plan, "a", cast, database, others, [database], workers_of(plan))]


def pooled(plan: Plan) -> list[Outcome]:
    """Part c: the same behind PgBouncer in transaction mode, which is killed as well."""
    bouncer_folder = plan.folder / "pgbouncer"
    with postgres(plan.folder / "postgres", plan.template) as database:
        # The default settings, except in the suite, where it would only wait.
        bouncer = Bouncer(bouncer_folder, database, login_retry=1 if plan.short else 15)
        bouncer.start()
        try:
            variables = {"DJANGO_DB_DISABLE_SERVER_SIDE_CURSORS": "1"}
            cast = Cast(plan.folder, bouncer.url, variables=variables, **QUICK)
            cast.use_key(plan.template.key)
            others = {("postmaster", KILL): database.kill, ("pgbouncer", KILL): bouncer.kill}
            kept = [database, bouncer]
            return [run(plan, "c", cast, database, others, kept, workers_of(plan))]
        finally:
            bouncer.kill()


def workers_of(plan: Plan) -> Sequence[str]:
    return FEWER if plan.short else WORKERS


def run(
    plan: Plan,
    part: str,
    cast: Cast,
    database: Database,
    others: Mapping[tuple[str, str], Callable[[], object]],
    kept: Sequence[Any],
    workers: Sequence[str],
    rest: Callable[[], None] = lambda: None,
) -> Outcome:
    """Kill and freeze until all jobs are enqueued; return the account of them.

    Args:
        cast: with a key; nothing of it runs yet.
        others: (target, method) → a blow beside those to the cast.
        kept: what is started again whenever it is dead.
        rest: waits for what `others` have begun.
    """
    began = time.monotonic()
    chance = random.Random(plan.seed)
    outcome = Outcome(part)
    with contextlib.ExitStack() as stack:
        for thing in kept:
            stack.enter_context(Kept(thing))
        ledgers = Ledgers(cast.ledgers)
        load = Load(cast, ledgers, jobs=plan.jobs, seconds=plan.seconds * 0.9, seed=plan.seed)
        voices = [f"worker-{name}" for name in workers]
        with cast, load:
            cast.enter(workers=workers, reapers=1 if plan.short else 2)
            everybody_works(cast, ledgers, voices, began, outcome)
            voices += [f"enqueued-{kind}" for kind in KINDS]
            load.stream()
            until = time.monotonic() + plan.longest
            reporter = Reporter(plan, ledgers, cast)
            pauses = (0.2, 0.8) if plan.short else (0.5, 2.5)
            over = lambda: time.monotonic() > until or load.done or reporter.tick()  # noqa: E731
            reign(cast, chance, blows_of(cast, others), pauses, over, others)
            if not load.done and not plan.short:
                outcome.unfinished = (
                    f"{load.streamed:,} of {plan.jobs:,} jobs in {plan.longest:,.0f} s, the "
                    "longest that this part may take: give it more --seconds, or fewer --jobs"
                )
            rest()
            outcome.works_again = works_again(cast, ledgers, voices, time.monotonic(), outcome)
            load.end()
            settle(cast, database, outcome)
        finish(outcome, cast, ledgers, database, load)
    outcome.took = time.monotonic() - began
    keep(plan, part, plan.folder)
    return outcome


def everybody_works(
    cast: Cast, ledgers: Ledgers, voices: list[str], since: float, outcome: Outcome
) -> None:
    """Wait until each has finished something once."""
    found = cast.wait_for_voices(lambda: ledgers.first_after(since), voices, 90)
    if missing := sorted(set(voices) - found.keys()):
        outcome.broken.append(f"never worked: {', '.join(missing)}")
        say(cast.logs_of(*(name.removeprefix("worker-") for name in missing)))


def works_again(
    cast: Cast,
    ledgers: Ledgers,
    voices: list[str],
    since: float,
    outcome: Outcome,
    seconds: float = 120,
) -> float | None:
    """Wait until each has finished something after `since`; return how long that took."""
    for member in cast.members.values():
        member.thaw()
    found = cast.wait_for_voices(lambda: ledgers.first_after(since), voices, seconds)
    if missing := sorted(set(voices) - found.keys()):
        outcome.broken.append(f"silent for {seconds:.0f} s: {', '.join(missing)}")
        known = [name.removeprefix("worker-").removeprefix("enqueued-") for name in missing]
        say(cast.logs_of(*(name for name in known if name in cast.members)))
        return None
    slowest = sorted(found, key=lambda who: -found[who])[:3]
    outcome.notes["slowest to work again"] = {who: f"{found[who]:.1f} s" for who in slowest}
    return max(found.values(), default=0.0)


def blows_of(cast: Cast, others: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Every place once for each method: most of them are workers."""
    blows = []
    for name, member in cast.members.items():
        if member.kind in ("local", "http", "agq", "rota", "flare") and "-" in name:
            blows += [(name, "SIGKILL"), (name, "SIGSTOP")]
        elif member.kind != "django":
            blows.append((name, KILL))
    return [*blows, *others]


class Reporter:
    """Print a line every ten seconds."""

    def __init__(self, plan: Plan, ledgers: Ledgers, cast: Cast) -> None:
        self.plan, self.ledgers, self.cast = plan, ledgers, cast
        self._next = 0.0

    def tick(self) -> bool:
        if time.monotonic() > self._next:
            self._next = time.monotonic() + 10
            counts = self.ledgers.counts
            say(
                f"{counts['enqueued']:,} of {self.plan.jobs:,} enqueued, {counts['finished']:,} "
                f"executions finished, {sum(self.cast.faults.values())} faults"
            )
        return False


def settle(cast: Cast, database: Database, outcome: Outcome, seconds: float = SETTLING) -> None:
    """Wait until every job has ended; those that have not by then count as lost."""
    for member in cast.members.values():
        member.thaw()
    began = time.monotonic()
    left: list[Any] = []

    def all_ended() -> bool:
        nonlocal left
        if time.monotonic() - began > seconds:
            return True
        with contextlib.suppress(psycopg.Error), database.connect("ojs") as connection:
            left = connection.execute(
                "SELECT state, count(*) FROM ojs_jobs_job WHERE finished_at IS NULL GROUP BY 1"
            ).fetchall()
            return not left
        return False

    while not all_ended():
        threading.Event().wait(0.5)
    with contextlib.suppress(psycopg.Error), database.connect("ojs") as connection:
        listeners = connection.execute("SELECT count(*) FROM ojs_jobs_listener").fetchone()
        outcome.notes["processes that listen, by the database"] = listeners and listeners[0]
    outcome.notes["settled after the last of it"] = f"{time.monotonic() - began:.1f} s"
    if left:
        outcome.broken.append(f"not ended after {seconds:.0f} s: {dict(left)}")


def finish(
    outcome: Outcome, cast: Cast, ledgers: Ledgers, database: Database, load: Load | None
) -> None:
    """Draw up the account, once all of the cast have ended."""
    eventually(database.answers)
    with database.connect("ojs") as connection:
        outcome.account = account(ledgers, connection)
    outcome.faults += cast.faults
    done = outcome.account
    outcome.notes["executions"] = (
        f"{ledgers.counts['started']:,} begun, {ledgers.counts['finished']:,} finished, "
        f"{ledgers.counts['failed']:,} failed as planned; {done.attempts:,} attempts recorded"
    )
    outcome.notes["enqueued without an answer"] = done.unconfirmed
    outcome.notes["longest standstill"] = f"{ledgers.longest_standstill():.1f} s"
    if load is not None and load.errors:
        outcome.notes["refused producers"] = dict(load.errors.most_common(8))
        # A client that follows the protocol drops the report then, and with it the job.
        if final := {kind: count for kind, count in load.errors.items() if " 500 " in kind}:
            outcome.broken.append(f"trouble of the database was answered 500: {final}")
    by_itself = {kind: count for kind, count in cast.faults.items() if "by itself" in kind}
    if by_itself:
        outcome.notes["ended by themselves"] = by_itself
        for kind in by_itself:
            del outcome.faults[kind]


def keep(plan: Plan, part: str, folder: Path) -> None:
    """Copy logs and ledgers to a place where they are kept."""
    if plan.keep is None:
        return
    shutil.rmtree(plan.keep / part, ignore_errors=True)
    (plan.keep / part).mkdir(parents=True)
    for name in ("logs", "ledgers"):
        if (folder / name).exists():
            shutil.copytree(folder / name, plan.keep / part / name)
    for log in folder.glob("*/postgres.log"):
        shutil.copy(log, plan.keep / part / f"{log.parent.name}.log")
