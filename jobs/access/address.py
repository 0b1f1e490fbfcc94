"""The client's address: what the audit and a key's last use write down, on every protocol.

Behind a proxy the other end of a connection is the proxy. Each one in front of us (`PROXIES`) has
added the address that it saw to `X-Forwarded-For`. What stands before those was sent by the client,
and may be anything.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..conf import ojs_settings

WITH_PORT = re.compile(r"\[(?P<six>[^\]]*)\](:\d+)?|(?P<four>[\d.]+):\d+")
"""How some proxies write it."""


def client_address(peer: str, forwarded: str) -> str:
    """Return the address that a client connects from; empty where it is unknown.

    Args:
        peer: the other end of the connection.
        forwarded: `X-Forwarded-For`; several of them joined by commas, as they came.
    """
    proxies = ojs_settings.PROXIES
    if not proxies or forwarded.count(",") < proxies - 1 or not forwarded:
        return peer
    return _plain(forwarded.split(",")[-proxies].strip())


def address_of(meta: Mapping[str, Any]) -> str:
    """As `client_address`, of a request with this `META` or WSGI environment."""
    return client_address(meta.get("REMOTE_ADDR") or "", meta.get("HTTP_X_FORWARDED_FOR") or "")


@lru_cache(maxsize=1024)
def _plain(text: str) -> str:
    found = WITH_PORT.fullmatch(text)
    if found is not None:
        text = found["six"] or found["four"] or ""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return ""  # a proxy may say "unknown"
    return str(getattr(address, "ipv4_mapped", None) or address)
