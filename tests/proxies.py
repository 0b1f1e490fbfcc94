"""A proxy to the test database that can be frozen, like a frozen server."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import Any

from tests.database import connection


class Proxy:
    """Forwards data. The kernel continues to accept connections for it, whatever it does."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = {name: connection.settings_dict[name] for name in ("HOST", "PORT")}
        self._door = socket.create_server((host, port))
        self.host, self.port = self._door.getsockname()[:2]
        self.taken = 0
        """Connections that it accepted."""
        self._frozen = threading.Event()
        self._over = threading.Event()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._forward, daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._over.set()
        self._thread.join()
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def freeze(self) -> None:
        """Stop reading, sending and accepting."""
        self._frozen.set()

    def close_the_door(self) -> None:
        """Stop accepting connections, and keep the existing ones."""
        self._selector.unregister(self._door)

    def _forward(self) -> None:
        while not self._over.is_set():
            for key, _ in self._selector.select(0.05):
                if self._frozen.is_set() or self._over.is_set():
                    break
                if key.data is None:
                    self._let_in()
                else:
                    self._pass_on(key.fileobj, key.data)
            if self._frozen.is_set():
                self._over.wait()

    def _let_in(self) -> None:
        visitor, _ = self._door.accept()
        self.taken += 1
        server = self._reach_the_server()
        self._selector.register(visitor, selectors.EVENT_READ, server)
        self._selector.register(server, selectors.EVENT_READ, visitor)

    def _pass_on(self, source: Any, target: Any) -> None:
        some = b""
        with contextlib.suppress(OSError):
            some = source.recv(65536)
        if some:
            with contextlib.suppress(OSError):
                target.sendall(some)
                return
        for end in (source, target):
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(end)
            end.close()

    def _reach_the_server(self) -> socket.socket:
        host, port = str(self._server["HOST"] or "localhost"), int(self._server["PORT"] or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        line = socket.socket(socket.AF_UNIX)
        line.connect(f"{host}/.s.PGSQL.{port}")
        return line
