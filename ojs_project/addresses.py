"""Who tries to log in: the name, and the address as far as it is known."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest

from jobs.access.address import address_of

LONGEST = 255
"""Characters of a name that are recorded; no user has a longer one."""
PREFIX = 64
"""Prefix length of IPv6 networks: the owner of one address usually has the whole network."""


def client_address(request: HttpRequest) -> str | None:
    """Return the client's address, for IPv6 its network; None where it is unknown."""
    try:
        address = ipaddress.ip_address(address_of(request.META))
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(address), PREFIX), strict=False)[0])
        address = address.ipv4_mapped
    return str(address)


def client_name(request: HttpRequest, credentials: Mapping[str, Any] | None = None) -> str | None:
    """Return the user name that was typed, as far as it fits into a record."""
    name = (credentials or request.POST).get("username")
    return None if name is None else str(name)[:LONGEST]
