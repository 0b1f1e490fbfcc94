"""Address of a client, as the audit and the last use of a key record it, on every protocol.

Behind a proxy the other end of a connection is the proxy. Each of our proxies (`PROXIES`) appends
the address that it saw to `X-Forwarded-For`. Anything before those entries was sent by the client
and cannot be trusted.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..conf import ojs_settings

WITH_PORT = re.compile(r"\[(?P<six>[^\]]*)\](:\d+)?|(?P<four>[\d.]+):\d+")
"""The form that some proxies use."""


def client_address(peer: str, forwarded: str) -> str:
    """Return the address that a client connects from; empty where it is unknown.

    Args:
        peer: the other end of the connection.
        forwarded: `X-Forwarded-For`; several headers joined by commas, in order of arrival.
    """
    proxies = ojs_settings.PROXIES
    if not proxies or forwarded.count(",") < proxies - 1 or not forwarded:
        return peer
    return _plain(forwarded.split(",")[-proxies].strip())


def address_of(meta: Mapping[str, Any]) -> str:
    """Like `client_address`, for a request with this `META` or WSGI environment."""
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
