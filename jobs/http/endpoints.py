"""Where workers are served beside the HTTP port, as those servers say (OJS HTTP §8)."""

from __future__ import annotations

import ipaddress
from datetime import timedelta

from django.db.models.functions import Now

from ..models import Endpoint

EVERY = 10.0
"""Seconds between two announcements of a server."""
FADES = timedelta(seconds=60)
"""How long a server is taken to listen that has not said so again."""


def url_of(scheme: str, host: str, port: int, path: str = "", *, public: str = "") -> str:
    """The address to announce: the one that the site names, else where the server listens."""
    if public:
        return public
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        shown = host
    else:
        shown = "*" if address.is_unspecified else host if address.version == 4 else f"[{host}]"
    return f"{scheme}://{shown}:{port}{path}"


def announce(name: str, url: str) -> None:
    Endpoint.objects.update_or_create(pk=url, defaults={"name": name, "seen_at": Now()})
    Endpoint.objects.filter(seen_at__lt=Now() - 10 * FADES).delete()


def withdraw(url: str) -> None:
    Endpoint.objects.filter(pk=url).delete()


def announced(host: str) -> dict[str, str]:
    """The address of each protocol that is served now.

    Args:
        host: how the one who asks reached us; it stands for servers that listen on every host.
    """
    rows = Endpoint.objects.filter(seen_at__gt=Now() - FADES).order_by("-url")
    return {name: url.replace("*", host, 1) for name, url in rows.values_list("name", "url")}
