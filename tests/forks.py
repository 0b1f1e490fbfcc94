"""`manage.py` commands as processes that start sooner: forked from a preloaded one.

Starting Python and Django takes a second of processor time. A fork takes milliseconds if its parent
has set up Django with the same environment (`fork`), and two thirds of that second if it has only
imported what needs no settings (`fork_early`): this parent serves any environment. A forked process
is like any other: with its own pid, session, exit code and signals. Parents end with the tests,
however they end, and so do their children.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OWN = "SHOP_FOLDER"
"""The one variable in which commands of one parent may differ, as nothing reads it at import."""
OURS = ("OJS_", "DJANGO_", "DATABASE_URL", "Q_CLUSTER")
"""What variables begin with that only settings read."""
EARLY = """
    asyncio croniter dateutil.tz docutils.nodes docutils.parsers.rst.roles httptools jsonschema
    orjson psutil psycopg psycopg.types psycopg_pool pygments requests sqlparse
    uvicorn.supervisors uvloop websockets yaml
    django.contrib.postgres.fields django.core.cache django.core.handlers.asgi
    django.core.management django.core.serializers.json django.db.backends.postgresql.base
    django.db.backends.sqlite3.base django.db.migrations.executor django.db.models django.forms
    django.template.backends.django django.urls django.views.generic
"""
"""What most commands import, and what needs neither settings nor variables for it."""


class Forked:
    """A forked process with the interface of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.ended = threading.Event()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Parent:
    """The forking process, from the tests' side."""

    def __init__(self, environment: Mapping[str, str], tree: Path, *words: str) -> None:
        # Another release has a different version of this module, or none; PYTHONPATH leads to it.
        this = ["-m", "tests.forks"] if tree == ROOT else ["-P", __file__]
        self._process = subprocess.Popen(
            [sys.executable, *this, *words],
            cwd=tree,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._children: dict[int, Forked] = {}
        self._begun = threading.Condition()
        self._newest: list[Forked] = []
        self._asking = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self.close)

    def start(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Forked:
        assert self._process.stdin is not None
        log.touch()  # so that it can be read immediately
        with self._asking, self._begun:
            wanted = {
                "arguments": list(arguments),
                "log": str(log),
                "environment": dict(environment),
            }
            self._process.stdin.write(json.dumps(wanted) + "\n")
            self._process.stdin.flush()
            assert self._begun.wait_for(lambda: self._newest, timeout=120), "it does not fork"
            return self._newest.pop()

    def close(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message = json.loads(line)
            if "code" in message:
                child = self._children.pop(message["pid"])
                child.returncode = message["code"]
                child.ended.set()
                continue
            with self._begun:
                child = self._children[message["pid"]] = Forked(message["pid"])
                self._newest.append(child)
                self._begun.notify_all()


_parents: dict[tuple[Any, ...], Parent] = {}


def fork(
    arguments: Sequence[str], log: Path, environment: Mapping[str, str], tree: Path = ROOT
) -> Forked:
    """Run `manage.py` with `arguments`, writing to `log`.

    Args:
        tree: the release to run.
    """
    shared = {name: text for name, text in environment.items() if name != OWN}
    return _parent(shared, tree).start(arguments, log, {OWN: environment.get(OWN, "")})


def fork_early(arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> Forked:
    """Run `manage.py` with `arguments` and any environment, writing to `log`.

    Not for a command that starts itself again: it would find another command line.
    """
    shared = {name: text for name, text in environment.items() if not name.startswith(OURS)}
    return _parent(shared, ROOT, "early").start(arguments, log, environment)


def _parent(environment: dict[str, str], tree: Path, *words: str) -> Parent:
    """The process that forks with this environment; it is started for the first command."""
    # pytest's variable for the current test would make every environment different.
    environment.pop("PYTEST_CURRENT_TEST", None)
    key = (tree, words, *sorted(environment.items()))
    if key not in _parents:
        _parents[key] = Parent(environment, tree, *words)
    return _parents[key]


# The process that forks


def tell(**news: Any) -> None:
    print(json.dumps(news), flush=True)


def serve() -> None:
    """Fork on request, and report children that ended, until the input ends."""
    alarm, bell = os.pipe()
    os.set_blocking(alarm, False)
    os.set_blocking(bell, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(bell)
    children: set[int] = set()
    asked = b""
    while True:
        ready, _, _ = select.select([0, alarm], [], [])
        if alarm in ready:
            os.read(alarm, 1024)
            reap(children)
        if 0 in ready:
            some = os.read(0, 65536)
            if not some:
                break
            *lines, asked = (asked + some).split(b"\n")
            for line in lines:
                children.add(start(json.loads(line), (alarm, bell)))
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def reap(children: set[int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        children.discard(pid)
        tell(pid=pid, code=os.waitstatus_to_exitcode(status))


def start(wanted: dict[str, Any], own: Sequence[int]) -> int:
    pid = os.fork()
    if pid:
        tell(pid=pid)
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Ignored if the tests were started with `nohup`.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.setsid()
    sink = os.open(wanted["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for descriptor, place in ((nothing, 0), (sink, 1), (sink, 2)):
        os.dup2(descriptor, place)
    for descriptor in (nothing, sink, *own):
        os.close(descriptor)
    os.environ.update(wanted["environment"])
    script = str(ROOT / "manage.py")
    if sys.argv[1:] == ["early"]:
        sys.argv = [script, *wanted["arguments"]]
        runpy.run_path(script, run_name="__main__")
    else:
        sys.argv = ["manage.py", *wanted["arguments"]]
        from django.core.management import execute_from_command_line

        execute_from_command_line(sys.argv)
    # As at the end of a program: wait for other threads, write buffers.
    sys.exit(0)


def set_up() -> None:
    import django

    django.setup()
    import django.core.management.commands.runserver
    import django.db.backends.postgresql.base
    import django.db.backends.sqlite3.base

    import workers.management.commands.runjobworker
    import workers.urls  # noqa: F401 (whatever a server or a worker imports at its start)


if __name__ == "__main__":
    if sys.argv[1:] == ["early"]:
        for name in EARLY.split():
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)
    else:
        set_up()
    serve()
