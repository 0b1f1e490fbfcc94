"""Part g: a rolling deploy from the last release, under load.

As in README: the new release's `migrate` while the old one works, then new processes beside the
old ones, then the old ones end.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import time
from pathlib import Path

from tests.processes import ROOT

from .account import Ledgers
from .cast import FEWEST, QUICK, WORKERS, Cast
from .killed import Reporter, everybody_works, finish, keep, settle, works_again
from .load import KINDS, Load
from .report import Outcome, Plan, say
from .surroundings import Missing, postgres


def earlier(rev: str, folder: Path) -> Path:
    """Put the release `rev` into `folder`.

    Raises:
        Missing: it is not available here.
    """
    archive = ["git", "archive", "--format=tar", rev]
    try:
        done = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise Missing(f"the release {rev!r} cannot be had: {problem}") from problem
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder


def deploy(plan: Plan) -> list[Outcome]:
    began = time.monotonic()
    outcome = Outcome("g")
    tree = earlier(plan.rev, plan.folder / "earlier")
    workers = FEWEST if plan.short else WORKERS
    with postgres(plan.folder / "postgres") as database:
        old = Cast(plan.folder / "old", database.url, tree=tree, **QUICK)
        old.prepare()
        new = Cast(plan.folder / "new", database.url, ledgers=old.ledgers, **QUICK)
        new.use_key(old.key)
        ledgers = Ledgers(old.ledgers)
        load = Load(old, ledgers, jobs=plan.jobs, seconds=plan.seconds, seed=plan.seed)
        reporter = Reporter(plan, ledgers, old)
        with new, old, load:
            old.enter(workers=workers, reapers=1)
            old_voices = [f"worker-{name}" for name in workers]
            everybody_works(old, ledgers, old_voices, began, outcome)
            load.stream()
            wait(reporter, plan.seconds / 4)
            before = migrations(new)
            new.manage_once("migrate", "--verbosity", "0")
            outcome.notes["migrations while the old release works"] = before
            outcome.faults["migrate"] += 1
            say("g: migrated")
            wait(reporter, plan.seconds / 4)
            still = works_again(old, ledgers, old_voices, time.monotonic(), outcome)
            outcome.notes["seconds of the old release to work on the new tables"] = still
            # New ones beside the old ones: workers with different ids.
            names = [name.replace("-", "-new") for name in workers]
            for name in ("server-1", "server-2"):
                new.add_server(name)
            for name in ("agq", "rota"):
                new.add_gateway(name)
            new.add_reaper("reaper-1")
            for name in names:
                new.add_worker(name)
            voices = [f"worker-{name}" for name in names]
            moment = time.monotonic()
            works_again(new, ledgers, voices, moment, outcome)
            say("g: the new release works beside the old one")
            # As a load balancer is switched to the new servers.
            load.cast = new
            ended = time.monotonic()
            for name in [*workers, "django", "reaper-1", "rota", "agq", "server-1", "server-2"]:
                old.members[name].retire()
                outcome.faults["old process ended"] += 1
            say("g: the old release is gone")
            new.add_command("django", "campaignenqueue")
            voices += [f"enqueued-{kind}" for kind in KINDS]
            wait(reporter, plan.seconds / 4)
            again = works_again(new, ledgers, voices, ended, outcome)
            outcome.works_again = again
            load.end()
            settle(new, database, outcome)
        new.faults += old.faults
        finish(outcome, new, ledgers, database, load)
    outcome.took = time.monotonic() - began
    keep(plan, "g", plan.folder)
    for release in ("old", "new"):
        keep(plan, f"g-{release}", plan.folder / release)
    return [outcome]


def migrations(cast: Cast) -> list[str]:
    """The migrations of the new release that are not applied yet."""
    planned = cast.manage_once("showmigrations", "--plan").splitlines()
    return [line.split("]")[1].strip() for line in planned if line.startswith("[ ]")]


def wait(reporter: Reporter, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        reporter.tick()
        time.sleep(0.2)
