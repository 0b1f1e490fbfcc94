"""From where somebody logs in, as far as it can be known."""

from __future__ import annotations

import ipaddress

from django.conf import settings
from django.http import HttpRequest

PREFIX = 64
"""Of an IPv6 address: whoever has one has all that begin alike."""


def client_address(request: HttpRequest) -> str | None:
    """Return the client's address, of IPv6 the network; None where it is unknown.

    Each proxy in front of us (`DJANGO_PROXIES`) has added one to `X-Forwarded-For`. What stands
    before those was sent by the client, and may be anything.
    """
    found = request.META.get("REMOTE_ADDR", "")
    forwarded = request.META.get("HTTP_X_FORWARDED_FOR", "")
    proxies: int = getattr(settings, "PROXIES", 0)
    if proxies and forwarded and forwarded.count(",") >= proxies - 1:
        found = forwarded.split(",")[-proxies]
    try:
        address = ipaddress.ip_address(found.strip())
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.ip_network((int(address), PREFIX), strict=False)[0])
        address = address.ipv4_mapped
    return str(address)
