"""Part f: no space on the disk, no connections left, locked tables, crowds of waiting clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg

from tests.processes import eventually

from .account import Ledgers
from .cast import FEWEST, QUICK, WORKERS, Cast
from .clients import CHECKSUM, TYPE
from .killed import everybody_works, finish, keep, settle, works_again
from .load import KINDS, Load
from .report import Outcome, Plan, say
from .surroundings import NAME, Kept, Missing, Postgres, postgres, small_disk

MEGABYTES = 160
"""Size of a disk that is to become full."""
CROWDS = {"agq": 10_000, "rota": 2_000}
GATHERING = 900
"""Seconds for a crowd to come in."""
SMALL_CROWDS = {"agq": 200, "rota": 100}
Fault = Callable[[Postgres, float], None]


def pressure(plan: Plan) -> Iterator[Outcome]:
    lacking: list[Missing] = []
    held = plan.seconds / 3
    parts: list[Callable[[], Outcome]] = [
        lambda: _on_full_disk(plan, held),
        lambda: _with(plan, "f no connections", held, no_connections),
        lambda: _with(plan, "f locks", held, locks),
        lambda: _crowds(plan),
    ]
    if plan.short:
        # The suite has time for two of them, one after the other with the same processes.
        parts = [lambda: _with(plan, "f no connections, locks", held, no_connections, locks)]
    for part in parts:
        try:
            yield part()
        except Missing as lack:
            lacking.append(lack)
            say(f"f SKIPPED: {lack}")
    if lacking:
        raise lacking[0]


def _with(plan: Plan, name: str, held: float, *faults: Fault) -> Outcome:
    folder = plan.folder / name.replace(",", "").replace(" ", "-")
    with postgres(folder / "postgres", plan.template) as database:
        return _run(plan, name, folder, database, held, *faults)


def _on_full_disk(plan: Plan, held: float) -> Outcome:
    folder = plan.folder / "f-full-disk"
    with small_disk(folder / "disk", MEGABYTES) as disk:
        database = Postgres(folder / "disk" / "postgres")
        # The log is on another disk, because its messages about this one are of interest.
        database.log = folder / "postgres.log"
        database.options |= {"max_wal_size": "32MB", "min_wal_size": "32MB"}
        try:
            database.create(plan.template)
            database.start()

            def full_disk(database: Postgres, seconds: float) -> None:
                ballast = disk / "ballast"
                end = time.monotonic() + seconds
                with ballast.open("wb") as sink:
                    # Repeatedly: what PostgreSQL frees by recycling is taken as well.
                    while time.monotonic() < end:
                        with contextlib.suppress(OSError):
                            while True:
                                sink.write(b"\0" * 65536)
                                sink.flush()
                        time.sleep(0.2)
                ballast.unlink()

            return _run(plan, "f disk full", folder, database, held, full_disk)
        finally:
            database.stop()


def no_connections(database: Postgres, seconds: float) -> None:
    """Take all connections, and terminate those of others."""
    hogs: list[psycopg.Connection[Any]] = []
    end = time.monotonic() + seconds
    try:
        with database.connect() as operator:
            while time.monotonic() < end:
                operator.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE usename = %s AND application_name <> 'hog'",
                    [NAME],
                )
                with contextlib.suppress(psycopg.OperationalError):
                    while True:
                        hogs.append(
                            psycopg.connect(database.url, application_name="hog", connect_timeout=5)
                        )
                time.sleep(0.1)
    finally:
        for hog in hogs:
            hog.close()


def locks(database: Postgres, seconds: float) -> None:
    """Lock the jobs, then the workers, then both."""
    for tables in ("ojs_jobs_job", "ojs_workers_worker", "ojs_jobs_job, ojs_workers_worker"):
        with database.connect(NAME) as connection:
            while not _lock(connection, tables, seconds / 3):
                pass


def _lock(connection: psycopg.Connection[Any], tables: str, seconds: float) -> bool:
    """Lock these tables; False if a statement that had one of them and wanted the other went on."""
    try:
        with connection.transaction():
            connection.execute(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE".encode())
            time.sleep(seconds)
    except psycopg.errors.DeadlockDetected:
        return False
    return True


def _run(
    plan: Plan, name: str, folder: Path, database: Postgres, held: float, *faults: Fault
) -> Outcome:
    began = time.monotonic()
    outcome = Outcome(name)
    workers = FEWEST if plan.short else WORKERS
    cast = Cast(folder, database.url, **QUICK)
    cast.use_key(plan.template.key)
    ledgers = Ledgers(cast.ledgers)
    voices = [f"worker-{worker}" for worker in workers]
    load = Load(cast, ledgers, jobs=plan.jobs, seconds=plan.seconds, seed=plan.seed)
    with Kept(database), cast, load:
        cast.enter(workers=workers, reapers=1)
        everybody_works(cast, ledgers, voices, began, outcome)
        voices += [f"enqueued-{kind}" for kind in KINDS]
        load.stream()
        for fault in faults:
            threading.Event().wait(plan.seconds / 3)
            kind = fault.__name__.replace("_", " ")
            say(f"f {kind}: for {held:.0f} s")
            fault(database, held)
            outcome.faults[kind] += 1
            again = works_again(cast, ledgers, voices, time.monotonic(), outcome)
            outcome.works_again = max(again or 0, outcome.works_again or 0)
        load.end()
        settle(cast, database, outcome)
    finish(outcome, cast, ledgers, database, load)
    outcome.took = time.monotonic() - began
    keep(plan, folder.name, folder)
    return outcome


# Crowds


def _crowds(plan: Plan) -> Outcome:
    """Thousands of waiting connections, while the others work."""
    began = time.monotonic()
    outcome = Outcome("f crowds")
    sizes = SMALL_CROWDS if plan.short else CROWDS
    raise_limit(max(sizes.values()) + 500)
    folder = plan.folder / "f-crowds"
    quiet = {
        "HEARTBEAT_TIMEOUT": "600",
        "AGQ_HEARTBEAT_TIMEOUT": "600",
        "ROTA_HEARTBEAT_TIMEOUT": "120",
        "AGQ_MAX_CONNECTIONS": str(sizes["agq"] + 100),
        "ROTA_MAX_CONNECTIONS": str(sizes["rota"] + 100),
    }
    workers = ("agq-1", "rota-1", "local-1", "http-1", "flare-1")
    with postgres(folder / "postgres", plan.template) as database:
        cast = Cast(folder, database.url, **quiet)
        cast.use_key(plan.template.key)
        ledgers = Ledgers(cast.ledgers)
        voices = [f"worker-{name}" for name in workers]
        load = Load(cast, ledgers, jobs=plan.jobs, seconds=plan.seconds, seed=plan.seed)
        with cast, load:
            cast.enter(workers=workers, reapers=1)
            everybody_works(cast, ledgers, voices, began, outcome)
            voices += [f"enqueued-{kind}" for kind in KINDS]
            crowd = Crowd(cast, sizes)
            gather = time.monotonic()
            with crowd:
                eventually_all = crowd.gathered.wait(GATHERING)
                outcome.notes["crowd"] = (
                    f"{crowd.count['agq']:,} AGQ and {crowd.count['rota']:,} Rota connections "
                    f"in {time.monotonic() - gather:.0f} s"
                )
                if not eventually_all:
                    outcome.broken.append(f"not all came in: {crowd.count} {crowd.problems[:3]}")
                outcome.faults["connections that wait"] += sum(crowd.count.values())
                for name in ("agq", "rota"):
                    memory = psutil.Process(cast.members[name].pid).memory_info().rss
                    outcome.notes[f"memory of run{name}"] = f"{memory / 2**20:.0f} MiB"
                load.stream()
                threading.Event().wait(plan.seconds)
                outcome.works_again = works_again(cast, ledgers, voices, time.monotonic(), outcome)
                if crowd.lost:
                    outcome.broken.append(f"{crowd.lost} of the crowd lost their connection")
            load.end()
            settle(cast, database, outcome)
        finish(outcome, cast, ledgers, database, load)
    outcome.took = time.monotonic() - began
    keep(plan, "f-crowds", folder)
    return outcome


def raise_limit(wanted: int) -> None:
    """
    Raises:
        Missing: this process may not have so many files open.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Missing(f"{wanted} open files are needed, and `ulimit -Hn` allows {hard}")
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Crowd:
    """Registered workers that wait for jobs of a queue that has none."""

    AT_ONCE = 50
    """Connections that are made at once."""

    def __init__(self, cast: Cast, sizes: dict[str, int]) -> None:
        self.cast, self.sizes = cast, sizes
        self.count = {"agq": 0, "rota": 0}
        self.lost = 0
        self.problems: list[str] = []
        self.gathered = threading.Event()
        self._over: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> Crowd:
        self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        eventually(lambda: self._loop)
        assert self._loop is not None and self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(60)

    async def _run(self) -> None:
        self._over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        turn = asyncio.Semaphore(self.AT_ONCE)
        tasks = [
            asyncio.create_task(self._stay(kind, number, turn))
            for kind, size in self.sizes.items()
            for number in range(size)
        ]
        await self._over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _stay(self, kind: str, number: int, turn: asyncio.Semaphore) -> None:
        wait = self._wait_at_agq if kind == "agq" else self._wait_at_rota
        try:
            await wait(number, turn)
        except Exception as problem:
            self.lost += 1
            self.problems.append(f"{kind} {number}: {type(problem).__name__} {problem}")

    def _came(self, kind: str) -> None:
        self.count[kind] += 1
        if self.count == self.sizes:
            self.gathered.set()

    async def _wait_at_agq(self, number: int, turn: asyncio.Semaphore) -> None:
        async with turn:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.cast.ports["agq"])
            said = {
                "worker_id": f"crowd-{number}",
                "hostname": "campaign",
                "agw_version": "1",
                "capabilities": {"tools": ["jq"], "agentic_units": []},
            }
            for words in (("AUTH", self.cast.key), ("WORKER.REGISTER", json.dumps(said))):
                writer.write(resp(*words))
                answer = await asyncio.wait_for(reader.readline(), 60)
                if not answer.startswith(b"+OK"):
                    raise ConnectionError(answer.decode())
        writer.write(resp("BRPOP", "queue:nothing", "0"))
        self._came("agq")
        try:
            if not await reader.read(1):
                raise ConnectionError("closed")
        finally:
            writer.transport.abort()

    async def _wait_at_rota(self, number: int, turn: asyncio.Semaphore) -> None:
        from websockets.asyncio.client import connect

        async with turn:
            socket = await connect(
                f"ws://127.0.0.1:{self.cast.ports['rota']}/work",
                additional_headers={"Authorization": f"Bearer {self.cast.key}"},
                compression=None,
                ping_interval=None,
                proxy=None,
                open_timeout=60,
            )
            who = {"worker_id": f"crowd-rota-{number}", "hostname": "campaign"}
            who |= {"queues": ["nothing"], "specs": [{"id": TYPE, "checksum": CHECKSUM}]}
            beat = {"type": "heartbeat", "registration": who, "wanted": 1}
            await socket.send(json.dumps(beat))
            await asyncio.wait_for(socket.recv(), 60)
        self._came("rota")
        while True:
            with contextlib.suppress(TimeoutError):
                while True:
                    await asyncio.wait_for(socket.recv(), 20 + number % 20)
            await socket.send('{"type": "heartbeat"}')


def resp(*words: str) -> bytes:
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word.encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)
