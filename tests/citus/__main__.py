"""A cell on Citus: distributed, used, and moved to another node under load (`make citus`).

    make citus ARGS="--source ../citus"

builds Citus from a folder with its source (the tag v12.1.6) against Debian's PostgreSQL, unless it
is installed, and starts a coordinator and two nodes on 127.0.0.1. Nothing is left behind, except
that the extension stays installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import processes
from tests.campaign.surroundings import NAME, Postgres, postgres_programs
from tests.processes import Api, eventually

CELL = "cell_a"
NODES = 3
"""The coordinator and two more."""
OPTIONS = {
    "shared_preload_libraries": "citus",
    "wal_level": "logical",
    # Between the nodes, which are all on this machine.
    "citus.node_conninfo": "sslmode=disable",
}
# A distributed table has no triggers. The portable store takes their lock by a statement.
BEFORE = f"DROP TRIGGER IF EXISTS ojs_jobs_event_writer ON {CELL}.ojs_jobs_event"
PLACE = "SELECT DISTINCT nodeport FROM citus_shards WHERE table_name::text LIKE %s"
SUITES = processes.ROOT.parent / "shared" / "conformance"


def say(text: str) -> None:
    print(text, flush=True)


def build(source: Path) -> None:
    """Build and install the extension, unless it is there; takes minutes."""
    config = str(postgres_programs() / "pg_config")
    shown = subprocess.run([config, "--sharedir"], capture_output=True, text=True, check=True)
    if (Path(shown.stdout.strip()) / "extension" / "citus.control").exists():
        return
    say("Building Citus.")
    for command in (
        ["./configure", "--without-libcurl", f"PG_CONFIG={config}"],
        ["make", "-j2", "with_llvm=no"],
        ["make", "install", "with_llvm=no"],
    ):
        subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[list[Postgres]]:
    """A coordinator, first, and its nodes."""
    with contextlib.ExitStack() as stack:
        servers = [Postgres(folder / f"node-{number}") for number in range(NODES)]
        for server in servers:
            stack.callback(server.stop)
            server.options |= OPTIONS
            server.create()
            server.start()
            server.make_database()
            with server.connect(NAME) as connection:
                connection.execute("CREATE EXTENSION citus")
        with servers[0].connect(NAME) as connection:
            connection.execute("SELECT citus_set_coordinator_host(%s, %s)", address(servers[0]))
            for server in servers[1:]:
                connection.execute("SELECT citus_add_node(%s, %s)", address(server))
        yield servers


def address(server: Postgres) -> list[Any]:
    return [server.host, server.port]


def url(server: Postgres) -> str:
    # The superuser: only it may move a schema, and there is nobody else here.
    return (
        f"postgresql://postgres@{server.host}:{server.port}/{NAME}?options=-csearch_path%3D{CELL}"
    )


def settle(coordinator: Postgres, environment: dict[str, str]) -> None:
    """Migrate into a plain schema, and distribute that."""
    with coordinator.connect(NAME) as connection:
        connection.execute(f"CREATE SCHEMA {CELL}".encode())
    migrate = [sys.executable, str(processes.ROOT / "manage.py"), "migrate", "--verbosity=0"]
    subprocess.run(migrate, cwd=processes.ROOT, env=environment, check=True)
    with coordinator.connect(NAME) as connection:
        connection.execute(BEFORE.encode())
        connection.execute("SELECT citus_schema_distribute(%s)", [CELL])


def place(coordinator: Postgres) -> int:
    with coordinator.connect(NAME) as connection:
        ((port,),) = connection.execute(PLACE, [f"{CELL}.%"]).fetchall()
    return int(port)


class Load:
    """Producers and workers, each with a ledger of what was confirmed."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.enqueued: set[str] = set()
        self.completed: list[str] = []
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=work, daemon=True)
            for work in (self._produce, self._produce, self._work, self._work)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(processes.PATIENCE)

    def _call(self, path: str, body: Any) -> dict[str, Any] | None:
        try:
            status, reply = self.api.call("POST", f"/ojs/v1/{path}", body)
        except OSError as problem:
            self.errors.append(str(problem))
            return None
        if status >= 300:
            self.errors.append(json.dumps(reply))
            return None
        return reply

    def _produce(self) -> None:
        while not self._stop.wait(0.5):
            reply = self._call("jobs/batch", {"jobs": [{"type": "a", "args": []}] * 5})
            if reply is not None:
                self.enqueued.update(job["id"] for job in reply["jobs"])

    def _work(self) -> None:
        name = threading.current_thread().name
        while not self._stop.is_set():
            body = {"queues": ["default"], "count": 20, "worker_id": name}
            reply = self._call("workers/fetch", body)
            for job in reply["jobs"] if reply else ():
                if self._call("workers/ack", {"job_id": job["id"], "worker_id": name}):
                    self.completed.append(job["id"])


def move(coordinator: Postgres, api: Api, servers: list[Postgres], seconds: float) -> None:
    """Move the cell to another node under load, and account for every job."""
    before = place(coordinator)
    target = next(server for server in servers[1:] if server.port != before)
    with Load(api) as load:
        time.sleep(seconds)
        began = time.monotonic()
        with coordinator.connect(NAME) as connection:
            connection.execute(
                "SELECT citus_schema_move(%s, %s, %s, 'force_logical')", [CELL, *address(target)]
            )
        took = time.monotonic() - began
        time.sleep(seconds)
    assert place(coordinator) == target.port
    counts: dict[str, int] = {}
    with coordinator.connect(NAME) as connection:
        rows = connection.execute(
            f"SELECT id::text, state FROM {CELL}.ojs_jobs_job WHERE type = 'a'".encode()
        ).fetchall()
    states = dict(rows)
    for state in states.values():
        counts[state] = counts.get(state, 0) + 1
    lost = load.enqueued - states.keys()
    forgotten = [job for job in load.completed if states.get(job) != "completed"]
    say(
        f"Moved from port {before} to {target.port} in {took:.1f} s: {len(load.enqueued)} jobs "
        f"confirmed, {len(load.completed)} completed, states {counts}, {len(lost)} lost, "
        f"{len(forgotten)} completions lost, {len(load.errors)} requests refused."
    )
    for error in sorted(set(load.errors))[:5]:
        say(f"  {error[:300]}")
    if lost or forgotten:
        sys.exit(1)


def conformance(api: Api, folder: Path) -> None:
    """Run the public cases, if they are beside the repository."""
    if not (SUITES / "run_cases.py").exists():
        say(f"The public conformance cases are not in {SUITES}.")
        return
    passed, failed = 0, []
    for suite in sorted((SUITES / "suites").iterdir()):
        report = folder / f"{suite.name}.json"
        command = [sys.executable, str(SUITES / "run_cases.py"), "--strict", "--json", str(report)]
        command += ["--url", api.url, "--suites", str(suite)]
        command += ["--reset-url", f"{api.url}/ojs/v1/admin/reset"]
        subprocess.run(command, check=False, capture_output=True, timeout=600)
        for test in json.loads(report.read_text())["tests"]:
            if test["status"] == "pass":
                passed += 1
            else:
                failed.append(test["test_id"])
    say(f"Conformance: {passed} cases passed, not passed: {', '.join(sorted(failed)) or 'none'}.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make citus", description=__doc__)
    parser.add_argument("--source", type=Path, help="folder with the source of Citus 12.1.6")
    parser.add_argument("--seconds", type=float, default=5, help="load before and after the move")
    parser.add_argument("--without-conformance", action="store_true")
    given = parser.parse_args()
    if given.source:
        build(given.source)
    with tempfile.TemporaryDirectory(prefix="ojs-citus-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        with cluster(folder) as servers:
            coordinator = servers[0]
            environment = processes.environment(
                url(coordinator),
                STORE="portable",
                ALLOW_ANONYMOUS=1,
                CONFORMANCE_MODE=1,
                REAPER_INTERVAL=0.2,
            )
            settle(coordinator, environment)
            say(f"{CELL} is on port {place(coordinator)}.")
            with (
                processes.server(folder, environment) as api,
                processes.manage(folder, environment, "runreaper") as reaper,
            ):
                eventually(lambda: reaper.process.poll() is None)
                move(coordinator, api, servers, given.seconds)
                if not given.without_conformance:
                    conformance(api, folder)
            for log in folder.glob("*.log"):
                text = log.read_text(errors="replace")
                lines = [line for line in text.splitlines() if "Error" in line or "ERROR" in line]
                for line in lines[:5]:
                    say(f"{log.name}: {line[:300]}")


if __name__ == "__main__":
    main()
