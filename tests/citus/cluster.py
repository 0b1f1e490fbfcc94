"""A coordinator of Citus and its nodes on 127.0.0.1, and cells on them."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.campaign.report import say
from tests.campaign.surroundings import NAME, Postgres, postgres_programs

NODES = 2
"""Beside the coordinator, which holds no cells."""
OPTIONS = {
    "shared_preload_libraries": "citus",
    "wal_level": "logical",
    # Between the nodes, which are all on this machine.
    "citus.node_conninfo": "sslmode=disable",
}
# A distributed table has no triggers. The stores for it take their lock by a statement.
BEFORE = "DROP TRIGGER IF EXISTS ojs_jobs_event_writer ON ojs_jobs_event"
# Not `citus_shards`, which asks every node.
PLACE = """
    SELECT nodeport FROM pg_dist_shard_placement JOIN pg_dist_shard USING (shardid)
     WHERE logicalrelid = 'ojs_jobs_job'::regclass
"""
GOING_ON, AT_REST = "force_logical", "block_writes"
"""How a cell is moved: with its work going on, or held up."""


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
def cluster(folder: Path) -> Iterator[tuple[Postgres, list[Postgres]]]:
    """A coordinator, and its nodes."""
    with contextlib.ExitStack() as stack:
        names = ("coordinator", *(f"node-{number + 1}" for number in range(NODES)))
        servers = [Postgres(folder / name) for name in names]
        for server in servers:
            stack.callback(server.stop)
            server.options |= OPTIONS
            server.create()
            server.start()
            server.make_database()
            with server.connect(NAME) as connection:
                connection.execute("CREATE EXTENSION citus")
        coordinator, *nodes = servers
        with coordinator.connect(NAME) as connection:
            connection.execute("SELECT citus_set_coordinator_host(%s, %s)", address(coordinator))
            for node in nodes:
                connection.execute("SELECT citus_add_node(%s, %s)", address(node))
        yield coordinator, nodes


def address(server: Postgres) -> list[Any]:
    return [server.host, server.port]


class Cell:
    """A deployment in a schema of its own.

    Args:
        server: a coordinator of Citus, or a plain PostgreSQL.
    """

    def __init__(self, server: Postgres, name: str) -> None:
        self.server = server
        self.name = name

    @property
    def url(self) -> str:
        # The superuser: only it may move a schema, and there is nobody else here.
        address = f"{self.server.host}:{self.server.port}"
        return f"postgresql://postgres@{address}/{NAME}?options=-csearch_path%3D{self.name}"

    def connect(self, database: str = NAME, **options: Any) -> psycopg.Connection[Any]:
        return self.server.connect(database, options=f"-csearch_path={self.name}", **options)

    def execute(self, statement: str, *parameters: Any) -> None:
        with self.connect() as connection:
            connection.execute(statement.encode(), parameters)

    def answers(self) -> bool:
        """Whether its tables can be read, wherever they are."""
        with contextlib.suppress(psycopg.Error):
            self.execute("SELECT 1 FROM ojs_jobs_job LIMIT 1")
            return True
        return False

    def create(self, prepare: Callable[[], Any]) -> None:
        """Have `prepare` create the tables."""
        self.execute(f"CREATE SCHEMA {self.name}")
        prepare()

    def distribute(self) -> None:
        """Give it to Citus, which chooses a node."""
        self.execute(BEFORE)
        self.execute("SELECT citus_schema_distribute(%s)", self.name)

    @property
    def port(self) -> int:
        """That of its node."""
        with self.connect() as connection:
            ((port,),) = connection.execute(PLACE).fetchall()
        return int(port)

    def node(self, nodes: list[Postgres]) -> Postgres:
        """The one it is on."""
        port = self.port
        return next(node for node in nodes if node.port == port)

    def other_node(self, nodes: list[Postgres]) -> Postgres:
        """One it is not on."""
        port = self.port
        return next(node for node in nodes if node.port != port)

    def move(self, target: Postgres, how: str = GOING_ON) -> float:
        """Move it to another node; return how many seconds that took."""
        began = time.monotonic()
        self.execute(
            "SELECT citus_schema_move(%s, %s, %s, %s::citus.shard_transfer_mode)",
            self.name,
            *address(target),
            how,
        )
        return time.monotonic() - began
