"""Limits the open connections of a client in a process (OJS realtime §5.2)."""

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
    """Return the identity by which a client is counted: its key, or else its address."""
    return f"key:{caller.key_id}" if caller.key_id is not None else f"address:{address}"


class Place:
    """One of a client's permitted connections, released when it is garbage collected.

    That includes requests whose client disconnected before the response: nothing refers to it then.
    """

    @classmethod
    def of(cls, caller: Caller, address: str) -> Place:
        """
        Raises:
            TooManyConnections: the client has reached its limit.
        """
        return cls(client_of(caller, address))

    def __init__(self, client: str) -> None:
        """
        Raises:
            TooManyConnections: the client has reached its limit.
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
