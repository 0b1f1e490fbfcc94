"""Servers of AGQ and Rota as separate processes, and a loop for the connections to them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests import processes
from tests.conftest import url_of_test_database

STARTED = {"runagq": "AGQ workers are served on", "runrota": "Rota workers are served at"}


@contextlib.contextmanager
def serving_rota(
    kind: str, folder: Path, variables: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> Iterator[processes.Running]:
    """Start one of `processes.ROTA_SERVERS` with our options and other variables."""
    environment = processes.environment(url_of_test_database(), **options) | variables
    with processes.rota_server(kind, folder, environment) as process:
        yield process
        assert "Traceback" not in process.output, process.output


@contextlib.contextmanager
def listening(
    folder: Path, command: str, variables: Mapping[str, str] = MappingProxyType({}), **options: Any
) -> Iterator[Any]:
    """Start the server with our options and other variables; yield its process."""
    port = processes.free_port()
    name = "AGQ_PORT" if command == "runagq" else "ROTA_PORT"
    environment = processes.environment(url_of_test_database(), **{name: port}, **options)
    environment |= variables
    with processes.manage(folder, environment, command, name=f"{command}-{port}") as process:
        process.wait_for(STARTED[command])
        process.port = port  # type: ignore[attr-defined]
        yield process
        assert "Traceback" not in process.output, process.output


@contextlib.contextmanager
def agq_and_rota(folder: Path, **options: Any) -> Iterator[dict[str, int]]:
    """Start a server of each with our options; yield their ports. Neither may end by itself."""
    # No worker here is silent unless the scenario says so: the machine may be slow.
    patient = {"ROTA_HEARTBEAT_TIMEOUT": 600} | options
    with (
        listening(folder, "runagq", **options) as agq,
        listening(folder, "runrota", **patient) as rota,
    ):
        yield {"agq": agq.port, "rota": rota.port}
        for server in (agq, rota):
            assert server.process.poll() is None, server.output


@contextlib.contextmanager
def loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread of its own: a server that stops expects an answer."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(processes.PATIENCE)
        loop.close()


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=processes.PATIENCE)


def everything(connection: socket.socket) -> bytes:
    """Everything that the server sends until it closes the connection."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            answer += part
    return answer
