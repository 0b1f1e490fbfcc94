"""How many connections one client may keep open in a process (OJS realtime §5.2)."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from typing import Any

from ..conf import ojs_settings
from ..errors import TooManyConnections
from ..http.authentication import Caller

_lock = threading.Lock()
_taken: Counter[str] = Counter()


def client_of(caller: Caller, address: str) -> str:
    """Return what a client is counted by: its key, or its address where it has none."""
    return f"key:{caller.key_id}" if caller.key_id is not None else f"address:{address}"


class Place:
    """One of the connections that a client may have; it is given back when it is not used any more.

    So is that of a request whose client has left before it was answered: nothing refers to it then.
    """

    @classmethod
    def of(cls, caller: Caller, address: str) -> Place:
        """
        Raises:
            TooManyConnections: the client has all it may have.
        """
        return cls(client_of(caller, address))

    def __init__(self, client: str) -> None:
        """
        Raises:
            TooManyConnections: the client has all it may have.
        """
        most = ojs_settings.REALTIME_CONNECTIONS
        with _lock:
            if _taken[client] >= most:
                raise TooManyConnections(
                    f"This client keeps {most} connections for events open, which is all it may.",
                    hint="Subscribe to several channels on one WebSocket, or raise "
                    'OJS["REALTIME_CONNECTIONS"].',
                    limit=most,
                )
            _taken[client] += 1
        self.client = client
        self.give_back: Any = weakref.finalize(self, _give_back, client)


def _give_back(client: str) -> None:
    with _lock:
        _taken[client] -= 1
        if not _taken[client]:
            del _taken[client]
