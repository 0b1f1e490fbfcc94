"""A real server with an event loop, in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import processes


@contextlib.contextmanager
def server(folder: Path, database_url: str, **options: Any) -> Iterator[Any]:
    """Yield the server's process and a client of it."""
    port = processes.free_port()
    granian = str(Path(sys.executable).with_name("granian"))
    command = [granian, "--interface", "asgi", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--log-level", "warning", "ojs_project.asgi:application"]
    environment = processes.environment(database_url, **options)
    with processes.running(command, folder / "server.log", environment) as started:
        api = processes.Api(f"http://127.0.0.1:{port}")
        processes.eventually(lambda: api.is_there(started.process), lambda: started.output)
        yield started, api


def run(command: list[str], text: str) -> str:
    """Give a program its text and return what it prints."""
    done = subprocess.run(
        command,
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=processes.PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
