"""A process of the product without some of its fast paths; see `fast_paths`.

    python -m tests.benchmarks.without "one round trip,plain outcomes" runhttp --port 8000

runs a command of Django that way, in one process. `Side` does it for `paths`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.processes import PATIENCE, free_port

from .tables import QUEUE

# Forked from a process that has imported everything: both sides are alike, and start at once.
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.benchmarks.imported"])
HTTP, WORKER, STEPS = "runhttp", "runjobworker", "in process"
WORD = "\0"
"""Ends a process of steps."""


class Side:
    """A process with or without a fast path, as long as the `with` block lasts.

    Args:
        kind: an HTTP server, a worker process, or one that does something of `in_process`.
        off: the fast paths that it does without.
        counted: functions whose calls are counted.
    """

    def __init__(
        self, kind: str, off: Sequence[str], folder: Path, *, counted: Sequence[str] = ()
    ) -> None:
        self.kind = kind
        self.port = free_port()
        self.counts: dict[str, int] = {}
        """Set when the process has ended."""
        self._log = folder / f"{self.port}.log"
        self._counts = folder / f"{self.port}.json"
        self.pipe, theirs = FORKING.Pipe()
        ways = {"off": off, "counted": counted, "log": self._log, "counts": self._counts}
        given: Any = theirs if kind == STEPS else _command(kind, self.port)
        self._process = FORKING.Process(target=go, args=(given,), kwargs=ways, daemon=True)

    def __enter__(self) -> Side:
        self._process.start()
        if self.kind == HTTP:
            try:
                self._wait_until_it_answers()
            except BaseException:
                self.__exit__()
                raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self.kind == STEPS:
            self.pipe.send((WORD, 0))
        else:
            self._process.terminate()
        self._process.join(PATIENCE)
        self._process.kill()
        if self._counts.exists():
            self.counts = json.loads(self._counts.read_text())

    def computed(self) -> float:
        """Its processor time so far, in seconds."""
        import psutil

        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def connect(self, count: int) -> list[socket.socket]:
        return [socket.create_connection(("127.0.0.1", self.port)) for _ in range(count)]

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self._process.is_alive():
            try:
                self.connect(1)[0].close()
                return
            except OSError:
                time.sleep(0.02)
        log = self._log.read_text() if self._log.exists() else ""
        raise RuntimeError(f"The server did not start:\n{log}")


def _command(kind: str, port: int) -> list[str]:
    if kind == WORKER:
        return [kind, "--queues", QUEUE, "--concurrency", "100"]
    return [kind, "ojs_project.asgi:application", "--host", "127.0.0.1", "--port", str(port)]


def go(
    given: Sequence[str] | Connection,
    *,
    off: Sequence[str],
    counted: Sequence[str] = (),
    log: Path | None = None,
    counts: Path | None = None,
) -> None:
    """Run a command of Django, or do steps, without some fast paths.

    Args:
        counts: where the numbers of calls are written.
    """
    import django

    django.setup()
    from . import fast_paths

    if log is not None:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
    numbers = fast_paths.counted(counted)
    fast_paths.turn_off(off)
    try:
        if isinstance(given, Connection):
            _steps(given)
        else:
            _run(given)
    finally:
        if counts is not None:
            counts.write_text(json.dumps(numbers))


def _run(command: Sequence[str]) -> None:
    from django.core.management import execute_from_command_line

    if command[0] == WORKER:
        from workers.runtime import handler

        handler("bench.noop")(_noop)
    execute_from_command_line(["manage.py", *command])


def _noop(context: Any, *args: Any) -> None:
    pass


def _steps(pipe: Connection) -> None:
    """Do things of `in_process`, each for as long as asked; send how often, and the time taken."""
    from . import in_process

    while True:
        name, seconds = pipe.recv()
        if name == WORD:
            return
        make, count, _ = in_process.MEASURED[name]
        turn = make(count)
        done, began = 0, time.perf_counter()
        while time.perf_counter() < began + seconds:
            done += turn()
        pipe.send((done, time.perf_counter() - began))


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "ojs_project.settings")
    go(sys.argv[2:], off=[name for name in sys.argv[1].split(",") if name])
