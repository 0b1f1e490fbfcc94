"""Machines on one computer: network namespaces that are joined by a switch.

The switch is a bridge in a namespace of its own, with PostgreSQL; a cable leads from it to ours.
Nothing of this has a name that could collide, and all of it ends with the processes that hold the
namespaces.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.campaign.surroundings import (
    NAME,
    Missing,
    Namespace,
    Postgres,
    bundled_programs,
    random_network,
)
from tests.processes import Running, eventually, running

from . import servers
from .waiting import Line

PORT = 8000
"""Of the server on each machine, at its own 127.0.0.1."""
PATIENCE = 5
CLONE_NEWNET = 0x40000000
CONTROL_GROUPS = Path("/sys/fs/cgroup")
GROUP = "ojs-bench"
PERIOD = 20_000
"""Microseconds of a control group's period: short, so that a server is never held up for long."""


class Switch(Namespace):
    """What the machines are plugged into."""

    def __init__(self) -> None:
        super().__init__()
        self._network = random_network()
        self.address = f"{self._network}.1"
        ours = f"ojs{secrets.token_hex(3)}"
        with self.or_missing():
            self.inside(self.ip, "link", "add", "bridge", "type", "bridge")
            self.inside(self.ip, "addr", "add", f"{self.address}/24", "dev", "bridge")
            self.inside(self.ip, "link", "set", "bridge", "up")
            peer = ("peer", "name", "ours", "netns", str(self.pid))
            self.outside("link", "add", ours, "type", "veth", *peer)
            self.inside(self.ip, "link", "set", "ours", "master", "bridge", "up")
            self.outside("addr", "add", f"{self._network}.2/24", "dev", ours)
            self.outside("link", "set", ours, "up")

    def plug_in(self, machine: Namespace, cable: str, number: int) -> None:
        peer = ("peer", "name", "eth0", "netns", str(machine.pid))
        self.inside(self.ip, "link", "add", cable, "type", "veth", *peer)
        self.inside(self.ip, "link", "set", cable, "master", "bridge", "up")
        machine.inside(self.ip, "addr", "add", f"{self.address_of(number)}/24", "dev", "eth0")
        machine.inside(self.ip, "link", "set", "eth0", "up")

    def address_of(self, number: int) -> str:
        return f"{self._network}.{10 + number}"

    def turn(self, cable: str, way: str) -> None:
        self.inside(self.ip, "link", "set", cable, way)


class Machine(Namespace):
    """A namespace with the processes that a machine of a deployment has."""

    def __init__(self, switch: Switch, number: int, folder: Path) -> None:
        self.name = "abcdefgh"[number]
        self.address = switch.address_of(number)
        self.quota = Quota(self.name)
        self._cable = f"to-{self.name}"
        self._switch = switch
        self._folder = folder / self.name
        self._running: dict[str, Running] = {}
        self._stack = contextlib.ExitStack()
        super().__init__()
        self._folder.mkdir()
        with self.or_missing():
            switch.plug_in(self, self._cable, number)
            # Its sockets belong to the namespace of the thread that made them.
            self._inside = ThreadPoolExecutor(1, initializer=_enter, initargs=[self.pid])
            self._inside.submit(os.getpid).result()

    def unplug(self) -> None:
        """Pull its cable at the switch: nothing passes, in either direction, and nobody is told."""
        self._switch.turn(self._cable, "down")

    def plug_in(self) -> None:
        self._switch.turn(self._cable, "up")

    def connect(self) -> socket.socket:
        """Connect to its server from the same machine."""
        address = ("127.0.0.1", PORT)
        made = self._inside.submit(socket.create_connection, address, PATIENCE).result()
        made.settimeout(None)
        return made

    def start(self, name: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        log = self._folder / f"{name}.log"
        started = running([*self.enter, *command], log, dict(environment))
        self._running[name] = self._stack.enter_context(started)

    def start_server(self, environment: Mapping[str, str]) -> None:
        self.start("server", self.quota.around(servers.command(PORT, 1)), environment)

    def start_reaper(self, environment: Mapping[str, str]) -> None:
        self.start("reaper", [sys.executable, "-m", "django", "runreaper"], environment)

    def wait_for_server(self) -> None:
        def answers() -> bool:
            assert not self.ended, f"{self.ended} ended: {self.output(*self.ended)}"
            with contextlib.suppress(OSError):
                self.connect().close()
                return True
            return False

        eventually(answers, lambda: self.output("server"))

    @property
    def ended(self) -> list[str]:
        """Names of the processes that have ended by themselves."""
        return [name for name, one in self._running.items() if one.process.poll() is not None]

    def output(self, *names: str) -> str:
        return "\n".join(f"{name}:\n{self._running[name].output[-2000:]}" for name in names)

    def logs(self) -> str:
        return f"--- {self.name}\n{self.output(*self._running)}"

    def ask_to_stop(self) -> None:
        for one in self._running.values():
            one.process.terminate()

    def stop(self) -> None:
        """End its processes; the machine stays."""
        self.ask_to_stop()
        self._stack.close()
        self._running.clear()

    def end(self) -> None:
        if hasattr(self, "_inside"):
            self._inside.shutdown()
        self._stack.close()
        self.quota.end()
        super().end()


def _enter(pid: int) -> None:
    """Move this thread into the network namespace of a process."""
    library = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net") as namespace:
        if library.setns(namespace.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns failed")


class Quota:
    """A limit of processor time: a control group, of either version, that is made when needed."""

    def __init__(self, name: str) -> None:
        old = CONTROL_GROUPS / "cpu"
        self._is_old = (old / "cpu.cfs_quota_us").exists()
        parent = old if self._is_old else CONTROL_GROUPS
        self._folder = parent / f"{GROUP}-{os.getpid()}-{name}"
        for left in parent.glob(f"{GROUP}-*-*"):
            # Of a run that was killed.
            if not Path("/proc", left.name.removeprefix(f"{GROUP}-").partition("-")[0]).exists():
                with contextlib.suppress(OSError):
                    left.rmdir()

    def around(self, command: Sequence[str]) -> list[str]:
        """Return a command that runs in the group, or the same one if there can be none."""
        try:
            if not self._is_old:
                (CONTROL_GROUPS / "cgroup.subtree_control").write_text("+cpu")
            self._folder.mkdir(exist_ok=True)
            self.limit(None)
        except OSError:
            self.end()
            return list(command)
        join = 'echo $$ > "$0" && exec "$@"'
        return ["sh", "-c", join, str(self._folder / "cgroup.procs"), *command]

    @property
    def is_there(self) -> bool:
        return self._folder.exists()

    def limit(self, share: float | None) -> None:
        """
        Args:
            share: of one processor; None for no limit.
        """
        quota = None if share is None else int(share * PERIOD)
        if self._is_old:
            (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD))
            (self._folder / "cpu.cfs_quota_us").write_text(str(quota or -1))
        else:
            (self._folder / "cpu.max").write_text(f"{quota or 'max'} {PERIOD}")

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._folder.rmdir()


@contextlib.contextmanager
def network(folder: Path, count: int) -> Iterator[tuple[Postgres, list[Machine]]]:
    """A PostgreSQL with an empty database, and machines that reach it; all ends with the block.

    Raises:
        Missing: this computer, or this user, cannot have network namespaces.
    """
    with contextlib.ExitStack() as stack:
        switch = Switch()
        stack.callback(switch.end)
        database = Postgres(folder / "postgres", host=switch.address, network=switch.pid)
        database.programs = bundled_programs()
        stack.callback(database.stop)
        database.create()
        database.start()
        database.make_database()
        machines = []
        for number in range(count):
            machines.append(Machine(switch, number, folder))
            stack.callback(machines[-1].end)
        try:
            yield database, machines
        finally:
            for machine in machines:
                machine.ask_to_stop()


def stop(machines: list[Machine]) -> None:
    """End what runs on them, at the same time."""
    for machine in machines:
        machine.ask_to_stop()
    for machine in machines:
        machine.stop()


async def open_line(machine: Machine, key: str, queue: str) -> Line:
    """A connection from a machine to its own server."""
    streams = await asyncio.open_connection(sock=machine.connect())
    return Line(key, queue, *streams)


def url_of(database: Postgres) -> str:
    """The URL of the database for its superuser, as in the other benchmarks."""
    return f"postgresql://postgres@{database.host}:{database.port}/{NAME}"


def lack() -> str:
    """Why there can be no machines here, or nothing."""
    try:
        Namespace().end()
    except Missing as missing:
        return str(missing)
    return ""
