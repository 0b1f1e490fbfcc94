"""Processes of a campaign: servers, gateways, reapers and workers, kept alive and killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks import servers
from tests.processes import PATIENCE, ROOT, Running, eventually, forked, free_port, running

SITE = Path(__file__).resolve().parent / "site"
QUICK = {
    "HEARTBEAT_INTERVAL": "1",
    "HEARTBEAT_TIMEOUT": "5",
    "AGQ_HEARTBEAT_INTERVAL": "1",
    "AGQ_HEARTBEAT_TIMEOUT": "5",
    "ROTA_HEARTBEAT_TIMEOUT": "5",
}
"""Short, so that deaths are detected within a run. Measurements keep the defaults."""
VISIBILITY = 15
"""Seconds that each job may be without a sign of life, as set by the job itself."""
WORKERS = ("local-1", "local-2", "http-1", "http-2", "agq-1", "agq-2", "rota-1", "flare-1")
"""Eight workers of five kinds; the first of each kind come first."""
FEWER = ("local-1", "http-1", "agq-1", "rota-1", "flare-1")
FEWEST = ("local-1", "http-1", "agq-1")


class Member:
    """A place in the cast: a process and its successors."""

    def __init__(self, name: str, start: Callable[[int], Any]) -> None:
        self.name = name
        self.kind = name.partition("-")[0]
        self._start = start
        self._stack = contextlib.ExitStack()
        self._lock = threading.RLock()
        self.incarnation = 0
        self.running: Running | None = None
        self.retired = False
        self.frozen_until: float | None = None

    def start(self) -> None:
        with self._lock:
            if self.retired:
                return
            self._stack.close()
            self.incarnation += 1
            self.running = self._stack.enter_context(self._start(self.incarnation))

    @property
    def alive(self) -> bool:
        return self.running is not None and self.running.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.running is not None
        return int(self.running.process.pid)

    @property
    def output(self) -> str:
        return self.running.output if self.running else ""

    def signal(self, number: int) -> None:
        """Signal the whole group, as an init system does with a unit."""
        with self._lock:
            if self.alive:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.pid, number)

    def kill(self) -> None:
        with self._lock:
            self.frozen_until = None
            self.signal(signal.SIGKILL)
            if self.running is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.running.process.wait(10)

    def freeze(self, seconds: float) -> None:
        with self._lock:
            self.frozen_until = time.monotonic() + seconds
            self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        with self._lock:
            self.frozen_until = None
            self.signal(signal.SIGCONT)

    def retire(self, *, patience: float = 40) -> None:
        """Ask it to end, as a deployment does, and do not start it again."""
        with self._lock:
            self.retired = True
            if self.running is None:
                return
            self.thaw()
            self.running.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.running.process.wait(patience)
        self.close()

    def close(self) -> None:
        with self._lock:
            self.retired = True
            self.kill()
            self._stack.close()


class Cast:
    """The members, by name, and a thread that restarts dead ones.

    Args:
        url: of the database.
        tree: the release they run; another folder is an earlier release.
        ledgers: the folder of the ledgers; `logs` beside it has what the processes write.
        options: environment variables beyond those of production, `OJS_` left out.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        *,
        tree: Path = ROOT,
        ledgers: Path | None = None,
        variables: dict[str, str] | None = None,
        **options: str,
    ) -> None:
        self.folder = folder
        self.ledgers = ledgers or folder / "ledgers"
        self.logs = folder / "logs"
        for place in (self.ledgers, self.logs):
            place.mkdir(parents=True, exist_ok=True)
        self.tree = tree
        self.ports = {name: free_port() for name in ("server-1", "server-2", "agq", "rota")}
        self.members: dict[str, Member] = {}
        self.faults: Counter[str] = Counter()
        self.key = ""
        given = {"FLARE_ENABLED": "1", "AGQ_PORT": self.ports["agq"]}
        given |= {"ROTA_PORT": self.ports["rota"]} | options
        self.environment = servers.environment(
            url,
            **{
                "DJANGO_SETTINGS_MODULE": "campaign_site.settings",
                "DJANGO_LOG_LEVEL": "INFO",
                "PYTHONPATH": f"{tree}{os.pathsep}{SITE}",
                "PYTHONUNBUFFERED": "1",
                "CAMPAIGN_FOLDER": str(self.ledgers),
            },
            **{f"OJS_{name}": str(value) for name, value in given.items()},
            **(variables or {}),
        )
        self._over = threading.Event()
        self._watching = threading.Thread(target=self._watch, daemon=True)

    @property
    def here(self) -> list[str]:
        """The beginning of a command, so that it runs in our tree."""
        return ["env", "--chdir", str(self.tree)]

    # Preparation

    def manage_once(self, *arguments: str) -> str:
        """Run a command of the site to its end; return what it printed."""
        log = self.logs / f"{arguments[0]}.log"
        with forked(log, self.environment, *arguments, tree=self.tree) as started:
            if started.process.wait(180):
                raise RuntimeError(f"manage.py {arguments[0]} failed: {started.output[-3000:]}")
            return started.output

    def prepare(self) -> None:
        """Create the tables, a key with all scopes, and the job spec for Rota."""
        self.use_key(self.manage_once("campaignprepare").split()[-1])

    def use_key(self, key: str) -> None:
        self.key = key
        self.environment |= {"CAMPAIGN_KEY": key, "OJS_AUTH_TOKEN": key}

    def url_of(self, server: str) -> str:
        return f"http://127.0.0.1:{self.ports[server]}"

    # Starting

    def add(self, name: str, start: Callable[[int], Any]) -> Member:
        member = self.members[name] = Member(name, start)
        member.start()
        return member

    def add_command(self, name: str, *arguments: str, **variables: str) -> Member:
        """A command of the site: `{id}` in an argument is the place and the incarnation."""
        environment = self.environment | variables

        def start(incarnation: int) -> Any:
            log = self.logs / f"{name}.{incarnation}.log"
            given = [word.format(id=f"{name}.{incarnation}") for word in arguments]
            return forked(log, environment, *given, tree=self.tree)

        return self.add(name, start)

    def add_server(self, name: str, **variables: str) -> Member:
        # The previous release has no ASGI application.
        interface = "asgi" if self.tree == ROOT else "wsgi"
        command = [*self.here, *servers.command(self.ports[name], 1, 16, interface=interface)]
        log = self.logs

        def start(incarnation: int) -> Any:
            environment = self.environment | variables
            return running(command, log / f"{name}.{incarnation}.log", environment)

        return self.add(name, start)

    def add_gateway(self, name: str, **variables: str) -> Member:
        return self.add_command(name, f"run{name}", **variables)

    def add_reaper(self, name: str, **variables: str) -> Member:
        return self.add_command(name, "runreaper", **variables)

    def add_worker(self, name: str, *, server: str = "", **variables: str) -> Member:
        kind, _, number = name.partition("-")
        server = server or ("server-2" if number.endswith("2") else "server-1")
        if kind in ("local", "http"):
            over = ["--url", self.url_of(server)] if kind == "http" else []
            own = ["--queues", "campaign", "--concurrency", "4", "--worker-id", "{id}"]
            return self.add_command(name, "runjobworker", *own, *over, **variables)
        command = [sys.executable, "-m", "tests.campaign.clients", kind, "--id"]
        address = {
            "agq": ["--port", str(self.ports["agq"])],
            "rota": ["--port", str(self.ports["rota"])],
            "flare": ["--url", self.url_of(server)],
        }[kind]

        def start(incarnation: int) -> Any:
            log = self.logs / f"{name}.{incarnation}.log"
            environment = self.environment | variables
            return running([*command, f"{name}.{incarnation}", *address], log, environment)

        return self.add(name, start)

    def enter(self, *, workers: Sequence[str] = WORKERS, reapers: int = 2) -> None:
        """Two servers, both gateways, reapers, and the workers."""
        for name in ("server-1", "server-2"):
            self.add_server(name)
        for name in ("agq", "rota"):
            self.add_gateway(name)
        for number in range(reapers):
            self.add_reaper(f"reaper-{number + 1}")
        for name in workers:
            self.add_worker(name)

    # Running

    def __enter__(self) -> Cast:
        self._watching.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._over.set()
        self._watching.join(PATIENCE)
        for member in self.members.values():
            with contextlib.suppress(Exception):
                member.close()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            now = time.monotonic()
            for member in list(self.members.values()):
                if member.frozen_until is not None and member.frozen_until <= now:
                    member.thaw()
                if member.running and not member.alive and not member.retired:
                    self.faults_by_itself(member)
                    member.start()

    def faults_by_itself(self, member: Member) -> None:
        """Count an end that we did not cause."""
        assert member.running is not None
        code = member.running.process.poll()
        if code != -signal.SIGKILL:
            self.faults[f"{member.kind} ended by itself ({code})"] += 1

    def strike(self, name: str, blow: str, seconds: float = 0) -> None:
        member = self.members[name]
        if blow == "SIGSTOP":
            if member.frozen_until is not None:
                return
            member.freeze(seconds)
        else:
            member.kill()
        what = "worker" if name in WORKERS else member.kind
        self.faults[f"{what} {blow}"] += 1

    def wait_for_voices(
        self, first_after: Callable[[], dict[str, float]], wanted: Sequence[str], seconds: float
    ) -> dict[str, float]:
        """Wait until each of `wanted` has finished something again; return when each did."""
        deadline = time.monotonic() + seconds
        pause = threading.Event()
        while True:
            found = first_after()
            if all(who in found for who in wanted) or time.monotonic() > deadline:
                return {who: found[who] for who in wanted if who in found}
            pause.wait(0.2)

    def logs_of(self, *names: str, last: int = 1500) -> str:
        parts = []
        for name in names:
            parts.append(f"--- {name}\n{self.members[name].output[-last:]}")
        return "\n".join(parts)


def reign(
    cast: Cast,
    chance: random.Random,
    blows: Sequence[tuple[str, str]],
    pauses: tuple[float, float],
    over: Callable[[], bool],
    others: Mapping[tuple[str, str], Callable[[], object]],
) -> None:
    """Strike until it is over: each blow once in random order, then at random.

    Args:
        blows: (target, method); those in `others` are carried out by what is given there,
            which returns False if it did nothing.
        pauses: shortest and longest pause between two blows, in seconds.
    """
    left: list[tuple[str, str]] = []
    pause = threading.Event()
    while not over():
        pause.wait(chance.uniform(*pauses))
        if not left:
            left = chance.sample(blows, len(blows))
        whom, how = left.pop()
        if (whom, how) in others:
            if others[whom, how]() is not False:
                cast.faults[f"{whom} {how}"] += 1
        elif cast.members[whom].alive:
            cast.strike(whom, how, chance.uniform(0.5, 12))


__all__ = ["FEWER", "QUICK", "VISIBILITY", "WORKERS", "Cast", "Member", "eventually", "reign"]
