"""Servers of AGQ and Rota as separate processes, for tests of connections."""

from __future__ import annotations

import contextlib
import socket
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


def connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=processes.PATIENCE)


def everything(connection: socket.socket) -> bytes:
    """Everything that the server sends until it closes the connection."""
    answer = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            answer += part
    return answer
