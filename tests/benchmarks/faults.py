"""Machines that are cut off, or whose clocks differ: every job is accounted for nevertheless.

The machines have the same load: a producer, which enqueues at its own server, and workers. All of
them keep ledgers, as in the campaign.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.campaign.account import Account, Ledgers, account
from tests.campaign.cast import SITE
from tests.campaign.clocks import HOUR, clock_shift
from tests.campaign.load import QUEUE, RETRY, TYPE
from tests.campaign.site.campaign_site.ledger import Ledger
from tests.campaign.surroundings import NAME, Missing, Postgres

from . import tables
from .network import PORT, Machine, open_line, stop, url_of
from .places import CLOCKS, CUT_OFF, EARLY, ELSEWHERE, LATE, LOST
from .plan import say
from .results import Results
from .servers import ROOT, environment
from .waiting import Line

if TYPE_CHECKING:
    from .machines import Sizes

LONGEST = 0.8
"""Seconds of a job: some are being run at every moment."""
PATIENCE = 300
ANSWER = 5
"""Seconds that a producer waits for an answer."""
LOOK = 0.1
DELAYED = 5
"""Jobs that are enqueued for later, at each machine."""
DELAY = 2.0
"""Seconds."""
CRON = "*/2 * * * * *"
GATHERED = """
    SELECT 1
      FROM ojs_jobs_job
     WHERE state = 'available' AND enqueued_at < now() - interval '0.3 seconds'
     LIMIT 1
"""
"""Jobs that have waited longer than any does while workers keep up."""
SHIFTS = (0, HOUR, -HOUR)
"""Seconds by which the clock of each machine is wrong."""


class Site:
    """A deployment with workers on each machine, one after the other."""

    def __init__(
        self,
        folder: Path,
        database: Postgres,
        machines: list[Machine],
        key: str,
        sizes: Sizes,
        results: Results,
    ) -> None:
        self._folder = folder
        self._database = database
        self._machines = machines
        self._key = key
        self._sizes = sizes
        self._results = results
        self._chance = random.Random(0)
        self._ledgers = Ledgers(folder)
        self._numbers = itertools.count(1)
        self._refused: Counter[str] = Counter()
        """What producers got instead of a confirmation."""

    def cut_off(self) -> None:
        """Each machine in turn loses its cable while it holds jobs, and gets it back."""

        async def run() -> None:
            for machine in self._machines[: self._sizes.cuts]:
                await asyncio.sleep(self._sizes.calm)
                await self._cut_off(machine)
            await asyncio.sleep(self._sizes.calm)

        say("machines are cut off …")
        self._accounted(CUT_OFF, {}, run)

    def clocks(self) -> None:
        """The clock of one machine is right, one is fast, one slow; the database's is right."""
        try:
            library = str(clock_shift(self._folder))
        except Missing as lack:
            say(f"  Clocks are not measured: {lack}.")
            return
        wrong = {
            machine.name: {"LD_PRELOAD": library, "CLOCK_SHIFT": str(seconds)}
            for machine, seconds in zip(self._machines, SHIFTS, strict=True)
        }
        say("their clocks differ …")
        self._accounted(CLOCKS, wrong, self._on_time)

    # One machine without its cable

    async def _cut_off(self, machine: Machine) -> None:
        while True:
            await self._until(lambda: self._held_by(machine), f"{machine.name} gets no jobs")
            machine.unplug()
            began = time.monotonic()
            # What PostgreSQL had received is still done.
            await self._until(lambda: not self._active(machine), f"{machine.name} is still served")
            if held := self._held_by(machine):
                break
            machine.plug_in()
        recovered: list[float] = []
        others = {name for one in self._machines if one is not machine for name in self._of(one)}

        def run_elsewhere() -> bool:
            self._ledgers.read()
            if not recovered and not self._held_by(machine):
                recovered.append(time.monotonic() - began)
            return held <= {
                line.job
                for who, line in self._ledgers.all("started")
                if line.time > began and who in others
            }

        try:
            await self._until(run_elsewhere, f"the jobs of {machine.name} do not run elsewhere")
            self._note(CUT_OFF, "its jobs are taken back after", recovered[0], "s")
            self._note(CUT_OFF, ELSEWHERE, time.monotonic() - began, "s", f"({len(held)} jobs)")
            await asyncio.sleep(max(0, began + self._sizes.cut - time.monotonic()))
        finally:
            machine.plug_in()
        back = time.monotonic()
        producer = {f"enqueued-{machine.name}"}
        await self._until(
            lambda: self._heard_since(back) >= self._of(machine) | producer,
            f"{machine.name} does not work again",
        )
        self._note(CUT_OFF, "it works again after", time.monotonic() - back, "s")

    def _of(self, machine: Machine) -> set[str]:
        """Names of the ledgers of its workers."""
        return {f"worker-{kind}-{machine.name}" for kind in self._sizes.workers}

    def _held_by(self, machine: Machine) -> set[str]:
        names = [f"{kind}-{machine.name}.1" for kind in self._sizes.workers]
        found = self._ask(
            "SELECT id::text FROM ojs_jobs_job WHERE state = 'active' AND reserved_by = ANY(%s)",
            names,
        )
        return {job for (job,) in found}

    def _active(self, machine: Machine) -> list[Any]:
        """The statements of a machine that are being executed."""
        return self._ask(
            "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND client_addr = %s::inet",
            machine.address,
        )

    def _heard_since(self, moment: float) -> set[str]:
        """Names of the ledgers of workers that have started a job, and of confirmed producers."""
        self._ledgers.read()
        lines = self._ledgers.all("started", "enqueued")
        return {who for who, line in lines if line.time > moment}

    # Clocks

    async def _on_time(self) -> None:
        template = {"type": TYPE, "args": [work(0)], "options": {"queue": QUEUE}}
        every = {"name": "machines", "cron": CRON, "overlap_policy": "allow"}
        # Registered where the clock is fast.
        line = await open_line(self._machines[1], self._key, QUEUE)
        await line.post("cron", every | {"job_template": template})
        ended = time.monotonic() + self._sizes.clocks
        delayed = [
            await self._enqueue_later(machine) for _ in range(DELAYED) for machine in self._machines
        ]
        await asyncio.sleep(max(0, ended - time.monotonic()))
        line.write("DELETE", "/ojs/v1/cron/machines")
        await line.reply()
        line.close()
        await self._until(lambda: not self._unfinished(delayed), "delayed jobs do not end")
        took = self._ask(
            "SELECT extract(epoch FROM started_at - scheduled_at)::float FROM ojs_jobs_job"
            " WHERE id = ANY(%s::uuid[])",
            delayed,
        )
        runs = self._ask(
            "SELECT extract(epoch FROM job.created_at - run.scheduled_for)::float"
            " FROM ojs_jobs_cronrun run JOIN ojs_jobs_job job ON job.id = run.job_id"
        )
        twice = self._ask(
            "SELECT scheduled_for FROM ojs_jobs_cronrun GROUP BY 1 HAVING count(job_id) > 1"
        )
        late = [seconds for (seconds,) in [*took, *runs]]
        self._note(CLOCKS, LATE, max(late), "s", f"({len(took)} jobs, {len(runs)} runs)")
        self._note(CLOCKS, EARLY, max(0.0, -min(late)), "s")
        self._note(CLOCKS, "cron runs made twice", len(twice), "")

    async def _enqueue_later(self, machine: Machine) -> str:
        due = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + DELAY))
        options = {"queue": QUEUE, "delay_until": due}
        line = await open_line(machine, self._key, QUEUE)
        try:
            job = {"type": TYPE, "args": [work(0)], "options": options}
            return str((await line.post("jobs", job))["job"]["id"])
        finally:
            line.close()

    # The load, and what became of it

    def _accounted(
        self, group: str, own: Mapping[str, Mapping[str, str]], run: Callable[[], Awaitable[None]]
    ) -> None:
        """Do something under load, and account for every job.

        Args:
            own: environment variables of the processes of a machine.
        """
        ledgers = self._folder / f"ledgers-{next(self._numbers)}"
        ledgers.mkdir()
        self._ledgers = Ledgers(ledgers)
        self._refused.clear()
        tables.empty()
        try:
            self._start(own, ledgers)
            asyncio.run(self._under_load(ledgers, run))
            dead = self._ask("SELECT worker_id FROM ojs_workers_worker WHERE died_at IS NOT NULL")
            ended = [f"{one.name}: {one.output(*one.ended)}" for one in self._machines if one.ended]
        finally:
            stop(self._machines)
        with self._database.connect(NAME) as connection:
            done = account(self._ledgers, connection)
        self._report(group, done)
        self._note(group, "workers that were declared dead", len(dead), "")
        self._note(group, "processes that ended by themselves", len(ended), "")
        self._note(group, "enqueues that were not confirmed", self._refused.total(), "")
        for text, times in self._refused.most_common(5):
            say(f"    {times} × {text}")
        for text in [*done.broken, *ended]:
            say(f"  BROKEN: {text}")

    async def _under_load(self, ledgers: Path, run: Callable[[], Awaitable[None]]) -> None:
        """Return when every job has ended."""
        async with self._producers(ledgers):
            workers = {name for machine in self._machines for name in self._of(machine)}
            await self._until(lambda: self._heard_since(0) >= workers, "not every worker works")
            # While they were starting, jobs gathered.
            await self._until(lambda: not self._ask(GATHERED), "the workers do not keep up")
            say("  All of it works.")
            await run()
        await self._until(lambda: not self._unfinished(), "not every job ends")

    def _start(self, own: Mapping[str, Mapping[str, str]], ledgers: Path) -> None:
        quick = {
            "OJS_HEARTBEAT_TIMEOUT": str(self._sizes.timeout),
            "OJS_HEARTBEAT_INTERVAL": "1",
        }
        environ = environment(url_of(self._database), **quick)
        site = {
            "DJANGO_SETTINGS_MODULE": "campaign_site.settings",
            "PYTHONPATH": f"{ROOT}{os.pathsep}{SITE}",
            "CAMPAIGN_FOLDER": str(ledgers),
            "OJS_AUTH_TOKEN": self._key,
        }
        for machine in self._machines:
            variables = environ | own.get(machine.name, {})
            machine.start_server(variables)
            machine.start_reaper(variables)
        for machine in self._machines:
            machine.wait_for_server()
            variables = environ | site | own.get(machine.name, {})
            for kind in self._sizes.workers:
                command = [sys.executable, "-m", "django", "runjobworker", "--queues", QUEUE]
                command += ["--concurrency", "4", "--worker-id", f"{kind}-{machine.name}.1"]
                over = ["--url", f"http://127.0.0.1:{PORT}"] if kind == "http" else []
                machine.start(kind, [*command, *over], variables)

    @contextlib.asynccontextmanager
    async def _producers(self, ledgers: Path) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    self._produce(machine, Ledger(ledgers / f"enqueued-{machine.name}.txt"))
                )
                for machine in self._machines
            ]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _produce(self, machine: Machine, book: Ledger) -> None:
        """Enqueue at a steady rate; write down what was confirmed."""
        line: Line | None = None
        options = {"queue": QUEUE, "retry": RETRY}
        while True:
            await asyncio.sleep(1 / self._sizes.rate)
            seconds = self._chance.uniform(0, LONGEST)
            job = {"type": TYPE, "args": [work(seconds)], "options": options}
            try:
                line = line or await open_line(machine, self._key, QUEUE)
                # Not `wait_for`, which may overlook that the task is cancelled.
                async with asyncio.timeout(ANSWER):
                    reply = await line.post("jobs", job)
                book.write("enqueued", reply["job"]["id"])
            except (OSError, EOFError, RuntimeError) as problem:
                # Refused, or without an answer: the job may exist, and nobody waits for it.
                self._refused[f"{type(problem).__name__} {str(problem)[:60]!r}"] += 1
                if line is not None:
                    line.close()
                line = None

    def _report(self, group: str, done: Account) -> None:
        self._note(group, "jobs that were confirmed", done.confirmed, "")
        self._note(group, LOST, len(done.lost) + len(done.forgotten), "")
        self._note(group, "jobs completed twice", len(done.twice), "")
        self._note(group, "attempts unaccounted for", len(done.unaccounted), "")
        self._note(group, "executions beyond the first", done.run_again, "")
        self._note(group, "finishes that came too late", done.refused, "")

    def _note(self, group: str, name: str, value: float, unit: str, remark: str = "") -> None:
        result = self._results.get(group, name, unit)
        result.rounds.append(value)
        result.note = remark
        say(f"  {name}: {value:,.4g} {unit} {remark}".rstrip())

    async def _until(self, holds: Callable[[], Any], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds():
            if time.monotonic() > deadline:
                outputs = "\n".join(one.logs() for one in self._machines)
                raise RuntimeError(f"{otherwise} within {PATIENCE} s\n{outputs}")
            await asyncio.sleep(LOOK)

    def _unfinished(self, jobs: list[str] | None = None) -> int:
        query = "SELECT count(*) FROM ojs_jobs_job WHERE finished_at IS NULL"
        if jobs is None:
            return int(self._ask(query)[0][0])
        return int(self._ask(f"{query} AND id = ANY(%s::uuid[])", jobs)[0][0])

    def _ask(self, query: str, *given: Any) -> list[Any]:
        with self._database.connect(NAME) as connection:
            return connection.execute(query.encode(), given).fetchall()


def work(seconds: float) -> dict[str, Any]:
    return {"seconds": round(seconds, 3), "fails": False}
