"""A real PgBouncer in front of the test database, if one is installed."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from tests.database import connection
from tests.processes import eventually, free_port

SETTINGS = """
[databases]
{name} = host={host} port={port} dbname={name} user={user}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = 3
ignore_startup_parameters = extra_float_digits
"""


def is_installed() -> bool:
    return program() is not None


def program() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextlib.contextmanager
def pgbouncer(mode: str) -> Iterator[dict[str, Any]]:
    """Parameters of a connection through a pooler in the given mode."""
    given = connection.settings_dict
    port = free_port()
    found = program()
    assert found is not None
    with tempfile.TemporaryDirectory(prefix="ojs-pgbouncer-") as folder:
        file = Path(folder) / "pgbouncer.ini"
        text = SETTINGS.format(
            name=given["NAME"],
            host=given["HOST"],
            port=given["PORT"] or 5432,
            user=given["USER"],
            password=f" password={given['PASSWORD']}" if given["PASSWORD"] else "",
            own_port=port,
            mode=mode,
        )
        file.write_text(text)
        command = [found, str(file)]
        if os.geteuid() == 0:
            # It refuses root. The owner of the socket's folder may use it.
            there = Path(given["HOST"])
            owner = there.owner() if there.is_absolute() else "nobody"
            os.chown(folder, pwd.getpwnam(owner).pw_uid, -1)
            command[1:1] = ["-u", owner]
        log = Path(folder) / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stdout=sink, stderr=sink, start_new_session=True)
        parameters = {"host": "127.0.0.1", "port": port, "dbname": given["NAME"], "user": "tests"}
        try:
            eventually(lambda: process.poll() or _answers(parameters), log.read_text)
            assert process.returncode is None, log.read_text()
            yield parameters
        finally:
            process.kill()
            process.wait()


def _answers(parameters: dict[str, Any]) -> bool:
    try:
        with psycopg.connect(**parameters, connect_timeout=2) as trial:
            return bool(trial.execute("SELECT true").fetchone())
    except psycopg.OperationalError:
        return False
