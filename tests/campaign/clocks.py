"""Part e: the clocks of servers, reapers, gateways and workers are an hour fast or slow.

The database's clock is right. No worker may be declared dead, nothing may expire or be delayed, and
cron must make each of its jobs once.
"""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psycopg

from .account import Ledgers
from .cast import FEWER, WORKERS, Cast
from .killed import everybody_works, finish, keep, settle, works_again
from .load import KINDS, Load
from .report import Outcome, Plan
from .surroundings import NAME, Missing, Postgres, postgres, program

HOUR = 3600
SOURCE = Path(__file__).with_name("clock_shift.c")
SHIFTED = {
    "server-1": HOUR,
    "server-2": -HOUR,
    "reaper-1": -HOUR,
    "reaper-2": HOUR,
    "agq": HOUR,
    "rota": -HOUR,
    "local-1": HOUR,
    "local-2": -HOUR,
    "http-1": -HOUR,
    "http-2": HOUR,
    "agq-1": -HOUR,
    "rota-1": HOUR,
    "flare-1": HOUR,
}
LATE = 60
"""Seconds by which a cron run or a delayed job may be late on a busy machine."""


def clock_shift(folder: Path) -> Path:
    """Compile the library that makes a process's clock wrong.

    Raises:
        Missing: there is no C compiler.
    """
    library = folder / "clock_shift.so"
    compiler = program("cc", "gcc libc6-dev")
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise Missing(f"{SOURCE.name} does not compile: {done.stderr[:200]}")
    return library


def clocks(plan: Plan) -> list[Outcome]:
    began = time.monotonic()
    outcome = Outcome("e")
    library = str(clock_shift(plan.folder))
    wrong = {
        name: {"LD_PRELOAD": library, "CLOCK_SHIFT": str(seconds)}
        for name, seconds in SHIFTED.items()
    }
    with postgres(plan.folder / "postgres", plan.template) as database:
        cast = Cast(plan.folder, database.url)
        cast.use_key(plan.template.key)
        ledgers = Ledgers(cast.ledgers)
        workers = FEWER if plan.short else WORKERS
        voices = [f"worker-{name}" for name in workers]
        load = Load(cast, ledgers, jobs=plan.jobs, seconds=plan.seconds * 0.9, seed=plan.seed)
        with cast, load:
            for name in ("server-1", "server-2"):
                cast.add_server(name, **wrong[name])
            for name in ("agq", "rota"):
                cast.add_gateway(name, **wrong[name])
            for name in ("reaper-1",) if plan.short else ("reaper-1", "reaper-2"):
                cast.add_reaper(name, **wrong[name])
            for name in workers:
                cast.add_worker(name, **wrong.get(name, {}))
            everybody_works(cast, ledgers, voices, began, outcome)
            voices += [f"enqueued-{kind}" for kind in KINDS]
            outcome.faults["wrong clock"] += sum(name in cast.members for name in SHIFTED)
            since = None if plan.short else make_cron(cast, database)
            delayed = delay(cast, 2)
            load.stream()
            until = time.monotonic() + plan.seconds
            while time.monotonic() < until and not (load.done and plan.short):
                time.sleep(0.2)
            outcome.works_again = works_again(cast, ledgers, voices, time.monotonic(), outcome)
            load.end()
            look(database, delayed, outcome, since)
            settle(cast, database, outcome)
        finish(outcome, cast, ledgers, database, load)
    outcome.took = time.monotonic() - began
    keep(plan, "e", plan.folder)
    return [outcome]


def make_cron(cast: Cast, database: Postgres) -> Any:
    """Have a job made every minute; return the start by the database's clock."""
    template = {
        "type": "campaign.job",
        "args": [{"seconds": 0, "fails": False}],
        "options": {"queue": "campaign"},
    }
    body = {"name": "campaign", "cron": "* * * * *", "overlap_policy": "allow"}
    with database.connect(NAME) as connection:
        found = connection.execute("SELECT clock_timestamp()").fetchone()
    call(cast, "cron", body | {"job_template": template})
    assert found is not None
    return found[0]


def delay(cast: Cast, seconds: int) -> list[str]:
    """Enqueue jobs at either server that are due in that many seconds; return their ids."""
    due = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))
    work = {"seconds": 0, "fails": False}
    options = {"queue": "campaign", "delay_until": due}
    job = {"type": "campaign.job", "args": [work], "options": options}
    return [
        call(cast, "jobs", job, server)["job"]["id"]
        for server in ("server-1", "server-2")
        for _ in range(5)
    ]


def call(cast: Cast, path: str, body: Any, server: str = "server-1") -> Any:
    headers = {"Authorization": f"Bearer {cast.key}"}
    reply = httpx.post(
        f"{cast.url_of(server)}/ojs/v1/{path}", json=body, headers=headers, timeout=20
    )
    if reply.status_code >= 300:
        raise RuntimeError(f"{path}: {reply.status_code} {reply.text[:300]}")
    return reply.json()


def look(database: Postgres, delayed: list[str], outcome: Outcome, since: Any) -> None:
    """Check which workers were declared dead, what cron made, and when delayed jobs began."""
    deadline = time.monotonic() + LATE
    with database.connect(NAME) as connection:
        while time.monotonic() < deadline:
            waiting = connection.execute(
                "SELECT count(*) FROM ojs_jobs_job WHERE id = ANY(%s::uuid[])"
                " AND state = 'scheduled'",
                [delayed],
            ).fetchone()
            if waiting == (0,):
                break
            time.sleep(0.2)
        else:
            outcome.broken.append(f"{waiting} jobs wait beyond the time they were due at")
        early = connection.execute(
            "SELECT count(*) FROM ojs_jobs_job WHERE id = ANY(%s::uuid[])"
            " AND started_at < scheduled_at",
            [delayed],
        ).fetchone()
        if early != (0,):
            outcome.broken.append(f"{early} jobs began before they were due")
        wrong = connection.execute(
            "SELECT type, count(*) FROM ojs_jobs_joberror WHERE type NOT LIKE '%Planned' GROUP BY 1"
        ).fetchall()
        if wrong:
            outcome.broken.append(f"attempts that failed for no reason: {dict(wrong)}")
        dead = connection.execute(
            "SELECT worker_id FROM ojs_workers_worker WHERE state = 'terminated'"
        ).fetchall()
        if dead:
            outcome.broken.append(f"taken for dead while they lived: {[name for (name,) in dead]}")
        if since is not None:
            look_at_cron(connection, since, outcome)


def look_at_cron(connection: psycopg.Connection[Any], since: Any, outcome: Outcome) -> None:
    """Compare cron's jobs with the minutes that have passed, by the database's clock."""
    due = connection.execute(
        "SELECT generate_series(date_trunc('minute', %s) + interval '1 minute',"
        " clock_timestamp() - make_interval(secs => %s), interval '1 minute')",
        [since, LATE],
    ).fetchall()
    made = connection.execute(
        "SELECT scheduled_for FROM ojs_jobs_cronrun WHERE outcome <> 'refused'"
    ).fetchall()
    counted = Counter(made)
    outcome.notes["cron"] = f"{len(due)} times due, made {len(made)} times"
    missed = [str(moment) for (moment,) in due if not counted[(moment,)]]
    again = [str(moment) for (moment,), times in counted.items() if times > 1]
    if missed or again:
        outcome.broken.append(f"cron missed {missed} and ran twice for {again}")
