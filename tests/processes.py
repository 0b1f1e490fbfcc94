"""Real processes for tests: servers, reapers, clusters. None outlives the `with` that started it.

They use the database whose URL they are given, and nothing of the test's own process.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from tests import routers
from tests.database import alias, connection
from tests.forks import OURS, Forked, fork, fork_early

ROOT = Path(__file__).resolve().parent.parent
MEDIA_TYPE = "application/openjobspec+json"
PATIENCE = 300
"""Seconds to wait on a busy machine; only a failing test waits that long."""


def environment(database_url: str, **options: Any) -> dict[str, str]:
    """Return the environment of the stand-alone project; `options` are those of `OJS`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    apart = routers.OTHER in inherited
    return inherited | {
        "DJANGO_SETTINGS_MODULE": "tests.apart" if apart else "ojs_project.settings",
        "DJANGO_DEBUG": "1",
        "DATABASE_URL": database_url,
        "PYTHONUNBUFFERED": "1",
        **{f"OJS_{name}": str(value) for name, value in options.items()},
    }


class Running:
    """A process and its output so far."""

    def __init__(self, process: subprocess.Popen[bytes] | Forked, log: Path) -> None:
        self.process = process
        self.log = log
        self.port = 0
        """Its port, if it was started with one."""

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def terminate(self) -> int:
        """Ask it to stop, and return its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def wait_for(self, text: str) -> None:
        """Return once it has written `text`."""
        eventually(lambda: text in self.output, lambda: f"no {text!r} in:\n{self.output}")


@contextlib.contextmanager
def running(
    command: list[str], log: Path, environment: dict[str, str], folder: Path = ROOT
) -> Iterator[Running]:
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with ended_at_last(Running(process, log)) as started:
        yield started


@contextlib.contextmanager
def forked(
    log: Path, environment: dict[str, str], *arguments: str, tree: Path = ROOT
) -> Iterator[Running]:
    """Run `manage.py` with `arguments`, without the second starting Python and Django takes."""
    with ended_at_last(Running(fork(arguments, log, environment, tree), log)) as started:
        yield started


@contextlib.contextmanager
def ended_at_last(started: Running) -> Iterator[Running]:
    try:
        yield started
    finally:
        if started.process.poll() is None:
            started.process.terminate()
            try:
                started.process.wait(30)
            except subprocess.TimeoutExpired:
                started.process.kill()
                started.process.wait()


@contextlib.contextmanager
def manage(
    folder: Path, environment: dict[str, str], *arguments: str, name: str = ""
) -> Iterator[Running]:
    """Run `manage.py` with `arguments`, writing to a log in `folder`."""
    log = folder / f"{name or arguments[0]}.log"
    with ended_at_last(Running(fork_early(arguments, log, environment), log)) as started:
        yield started


def manage_to(log: Path, environment: dict[str, str], *arguments: str) -> Any:
    """Run `manage.py` with `arguments` as a shell would; a context manager."""
    return running([sys.executable, str(ROOT / "manage.py"), *arguments], log, environment)


def migrate(environment: dict[str, str]) -> None:
    words = ("migrate", "--verbosity=0", f"--database={alias()}")
    with (
        tempfile.TemporaryDirectory() as folder,
        manage(Path(folder), environment, *words) as migrating,
    ):
        assert migrating.wait() == 0, migrating.output


@contextlib.contextmanager
def own_database(database_url: str, folder: Path) -> Iterator[str]:
    """An empty, migrated database beside the tests' one, as long as the block runs."""
    if connection.vendor == "sqlite":
        url = f"sqlite:///{quote(str(folder / 'own.sqlite3'))}"
        migrate(environment(url))
        yield url
        return
    with empty_database(database_url) as url:
        migrate(environment(url))
        yield url


@contextlib.contextmanager
def empty_database(database_url: str) -> Iterator[str]:
    """A PostgreSQL database beside the tests' one, without tables."""
    name = f"ojs_{secrets.token_hex(6)}"
    url = urlsplit(database_url)._replace(path=f"/{name}").geturl()
    with connection._nodb_cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
    try:
        yield url
    finally:
        with connection._nodb_cursor() as cursor:
            cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


FIRST_PORT, PORTS = 10_000, 4_000
"""Below those that the system gives to whoever connects. Each process of a test run has its own."""
_ports = count()


def free_port() -> int:
    """A port that nothing listens on, and that no test beside this one is given."""
    place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw4").removeprefix("gw")) % 5
    for number in _ports:
        port = FIRST_PORT + place * PORTS + number % PORTS
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError


@contextlib.contextmanager
def server(
    folder: Path,
    environment: dict[str, str],
    threads: int = 4,
    interface: str = "asgi",
    application: str = "",
) -> Iterator[Api]:
    """A job server on a separate port; yields a client once it responds.

    Args:
        threads: number of threads that answer requests.
        interface: `asgi` (`runhttp`), `wsgi` as on some sites, or another ASGI server, `granian` or
            `uvicorn`.
        application: that of another site, as `module:name`.
    """
    port = free_port()
    application = (
        application or f"ojs_project.{'wsgi' if interface == 'wsgi' else 'asgi'}:application"
    )
    if interface != "wsgi":
        environment = environment | {"OJS_SERVER_THREADS": str(threads)}
    place = ["--host", "127.0.0.1", "--port", str(port)]
    if interface == "asgi":
        serving = manage(folder, environment, "runhttp", application, *place, name="server")
    else:
        name = "uvicorn" if interface == "uvicorn" else "granian"
        command = [str(Path(sys.executable).with_name(name)), application]
        command += ["--workers", "1", "--log-level", "warning", *place]
        if interface == "wsgi":
            command += ["--interface", "wsgi", "--blocking-threads", str(threads), "--no-ws"]
        elif interface == "granian":
            command += ["--interface", "asgi", "--backpressure", "20000", "--loop", "asyncio"]
        serving = running(command, folder / "server.log", environment)
    with serving as started:
        api = Api(f"http://127.0.0.1:{port}")
        eventually(lambda: api.is_there(started.process), lambda: started.output)
        api.started = started
        with passers_by(api.url) if interface == "wsgi" else contextlib.nullcontext():
            yield api


@contextlib.contextmanager
def passers_by(url: str) -> Iterator[None]:
    """Request the server's health now and then.

    Of two WSGI requests that arrive at the same moment, granian may queue the second behind the
    first although it could start another thread, which it starts when the next request arrives.
    """
    ended = threading.Event()

    def pass_by() -> None:
        while not ended.wait(0.5):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/ojs/v1/health", timeout=1).close()

    thread = threading.Thread(target=pass_by, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def front_door(folder: Path, environment: dict[str, str]) -> Iterator[Running]:
    """The process of a `server()`, with its `port`; several may share a folder."""
    own = folder / f"asgi-{secrets.token_hex(4)}"
    own.mkdir()
    with server(own, environment) as api:
        api.started.port = urlsplit(api.url).port or 0
        yield api.started


ROTA_SERVERS = ("runrota", "front door")


@contextlib.contextmanager
def rota_server(kind: str, folder: Path, environment: dict[str, str]) -> Iterator[Running]:
    """One of `ROTA_SERVERS`, on a separate port (`port`), once it listens."""
    if kind == "front door":
        with front_door(folder, environment) as started:
            yield started
        return
    port = free_port()
    environment = environment | {"OJS_ROTA_PORT": str(port)}
    with manage(folder, environment, "runrota", name=f"runrota-{port}") as started:
        started.wait_for("Rota workers are served at")
        started.port = port
        yield started


class Api:
    """A client of the HTTP binding written only from the protocol document."""

    started: Running
    """The server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}{path}", data, {"Content-Type": MEDIA_TYPE}, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, json.load(refusal)

    def post(self, path: str, body: Any) -> dict[str, Any]:
        status, document = self.call("POST", f"/ojs/v1/{path}", body)
        assert status < 300, document
        return document

    def get(self, path: str) -> dict[str, Any]:
        status, document = self.call("GET", f"/ojs/v1/{path}")
        assert status < 300, document
        return document

    def is_there(self, process: subprocess.Popen[bytes] | Forked) -> bool:
        if process.poll() is not None:
            raise AssertionError("the server ended at once")
        with contextlib.suppress(OSError):
            return self.call("GET", "/ojs/v1/health")[0] == 200
        return False


def eventually(
    holds: Callable[[], Any], otherwise: Callable[[], str] = lambda: "it never came true"
) -> None:
    """Return as soon as `holds()`; fail if it does not within `PATIENCE`."""
    deadline = time.monotonic() + PATIENCE
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < deadline, otherwise()
        pause.wait(0.02)
