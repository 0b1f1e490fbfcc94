"""Real servers for the benchmarks, with connections spread evenly over their processes."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
PATIENCE = 30
OURS = ("OJS_", "DJANGO_", "DATABASE_URL")


def environment(database_url: str, **more: str) -> dict[str, str]:
    """Return the environment of a production server: no DEBUG, a secret key, hosts named."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return inherited | {
        "DJANGO_SETTINGS_MODULE": "ojs_project.settings",
        "DJANGO_SECRET_KEY": "for-benchmarks-only-and-long-enough-to-be-taken-for-a-real-one",
        "DJANGO_ALLOWED_HOSTS": "127.0.0.1",
        "DJANGO_LOG_LEVEL": "ERROR",
        "DATABASE_URL": database_url,
        **more,
    }


def command(port: int, processes: int, threads: int = 1, *, interface: str = "asgi") -> list[str]:
    """Return the command of a server; under ASGI, `OJS_SERVER_THREADS` is the number of threads."""
    where = ["--host", "127.0.0.1", "--port", str(port)]
    if interface == "asgi":
        run = [sys.executable, "-m", "django", "runhttp", "ojs_project.asgi:application"]
        return [*run, *where, "--processes", str(processes)]
    run = [str(Path(sys.executable).with_name("granian")), "--interface", "wsgi", *where]
    run += ["--workers", str(processes), "--log-level", "warning", "--no-ws"]
    return [*run, "--blocking-threads", str(threads), "ojs_project.wsgi:application"]


class Server:
    """A running server, and the one parent of all its processes."""

    def __init__(self, port: int, processes: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.processes = processes
        self._process = process

    def connect(self, count: int) -> list[socket.socket]:
        """Return `count` connections, the same number to each process of the server.

        The kernel chooses the process of a connection; with both of two clients on one of two
        processes, a run would measure half a server. If the owner cannot be determined (it is
        read from /proc), the connections are used as they are.
        """
        share = -(-count // self.processes)
        kept: list[socket.socket] = []
        spare: list[socket.socket] = []
        owners: Counter[int | None] = Counter()
        for _ in range(200):
            connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
            # With a timeout the descriptor would not block, and a client gets only the descriptor.
            connection.settimeout(None)
            owner = self._owner(connection) if self.processes > 1 else None
            if owner is not None and owners[owner] >= share:
                # Kept open, so that the next one is likelier to reach another process.
                spare.append(connection)
                continue
            owners[owner] += 1
            kept.append(connection)
            if len(kept) == count:
                break
        for connection in spare:
            connection.close()
        if len(kept) < count:
            raise RuntimeError(f"One process of the server on port {self.port} takes everything.")
        return kept

    def memory(self) -> int:
        """Bytes used by the largest of its processes, which is one that serves."""
        return max(process.memory_info().rss for process in self._family())

    def computed(self) -> float:
        """Processor time of its processes, in seconds."""
        times = [process.cpu_times() for process in self._family()]
        return sum(taken.user + taken.system for taken in times)

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self) -> None:
        self._process.wait(PATIENCE)

    def _family(self) -> list[Any]:
        import psutil

        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def _owner(self, connection: socket.socket) -> int | None:
        """The process that accepted our connection."""
        import psutil

        ours = connection.getsockname()
        with contextlib.suppress(psutil.Error):
            family = self._family()
            for _ in range(50):
                for process in family:
                    for entry in process.net_connections("tcp"):
                        if entry.raddr and entry.raddr[:2] == ours:
                            return int(process.pid)
                time.sleep(0.002)  # not accepted yet
        return None


@contextlib.contextmanager
def serve(
    command: list[str], port: int, processes: int, environment: dict[str, str]
) -> Iterator[Server]:
    """Run a server until the block ends, however it ends."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_until_it_answers(process, port, log)
            yield Server(port, processes, process)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.02)
    log.seek(0)
    raise RuntimeError(f"The server did not start:\n{log.read().decode(errors='replace')}")
