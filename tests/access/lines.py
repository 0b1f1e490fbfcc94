"""Connections to AGQ and Rota, driven message by message."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests import processes
from workers.bindings.rota.session import REVOKED


class AGQLine:
    """A connection, and the replies on it."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=processes.PATIENCE)
        self.file = self.socket.makefile("rb")

    def __call__(self, *words: str) -> Any:
        try:
            self.send(*words)
            return self.hear()
        except ConnectionError:
            return ""

    def send(self, *words: str) -> None:
        parts = [word.encode() for word in words]
        said = b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)
        self.socket.sendall(b"*%d\r\n%b" % (len(parts), said))

    def hear(self) -> Any:
        """One reply: an error as its line, nothing as None; the end of the connection as ''."""
        line = self.file.readline().decode().rstrip("\r\n")
        kind, rest = line[:1], line[1:]
        if kind == "$":
            return None if rest == "-1" else self.file.read(int(rest) + 2)[:-2].decode()
        if kind in ("*", "%", "~"):
            return None if rest == "-1" else [self.hear() for _ in range(int(rest))]
        return int(rest) if kind == ":" else line if kind == "-" else rest

    def close(self) -> None:
        self.file.close()
        self.socket.close()


class RotaLine:
    """A worker's connection; `closed` is the code it was closed with."""

    def __init__(self, port: int, key: str, headers: Mapping[str, str] | None = None) -> None:
        headers = ({"Authorization": f"Bearer {key}"} if key else {}) | dict(headers or {})
        self.closed = 0
        url = f"ws://127.0.0.1:{port}/work"
        self._open = contextlib.ExitStack()
        self.socket = self._open.enter_context(
            connect(url, additional_headers=headers, open_timeout=processes.PATIENCE, proxy=None)
        )

    def __call__(self, **message: Any) -> list[dict[str, Any]]:
        """All replies up to the answer to a heartbeat sent afterwards."""
        heard: list[dict[str, Any]] = []
        try:
            self.socket.send(json.dumps({"type": "heartbeat"} | message))
            while not heard or heard[-1]["type"] == "assignment":
                heard.append(json.loads(self.socket.recv(processes.PATIENCE)))
        except ConnectionClosed as end:
            self.closed = end.rcvd.code if end.rcvd else 0
        return heard

    def hear(self, patience: float = processes.PATIENCE) -> dict[str, Any]:
        """The next message; fails if none comes."""
        message: dict[str, Any] = json.loads(self.socket.recv(patience))
        return message

    def close(self) -> None:
        self._open.close()

    def is_closed(self) -> bool:
        """Wait until the connection ends."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.socket.recv(processes.PATIENCE)
        code: int | None = self.socket.protocol.close_code
        return code == REVOKED
