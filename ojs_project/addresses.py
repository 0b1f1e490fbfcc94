"""The address that a login comes from, as far as it is known."""

from __future__ import annotations

import ipaddress

from django.http import HttpRequest

from jobs.access.address import address_of

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
