"""Addresses of the worker endpoints besides HTTP (OJS HTTP §8).

Servers with a port of their own announce where they listen. WebSockets of the ASGI server are at
the address of the request.
"""

from __future__ import annotations

import ipaddress
from datetime import timedelta

from django.db.models.functions import Now
from django.http import HttpRequest

from ..conf import has_socket, options_of, protocols
from ..models import Endpoint
from .loop import LOOP

EVERY = 10.0
"""Seconds between two announcements of a server."""
FADES = timedelta(seconds=60)
"""Seconds after its last announcement during which a server is assumed to be listening."""


def url_of(scheme: str, host: str, port: int, path: str = "", *, public: str = "") -> str:
    """The address to announce: the one that the site configured, else where the server listens."""
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
        host: by which the client reached this server; used for servers that listen on every host.
    """
    rows = Endpoint.objects.filter(seen_at__gt=Now() - FADES).order_by("-url")
    return {name: url.replace("*", host, 1) for name, url in rows.values_list("name", "url")}


def at_this_port(request: HttpRequest, mount: str) -> dict[str, str]:
    """The address of each protocol whose WebSocket the server of this request serves.

    Args:
        mount: the prefix below which the site includes `workers.urls`: `/queue`.
    """
    if LOOP not in request.META:  # a WSGI server
        return {}
    found = {}
    for protocol in protocols():
        if protocol.socket is not None and has_socket(protocol):
            options = options_of(protocol.options) if protocol.options else None
            here = request.build_absolute_uri(f"{mount}{protocol.socket.path}")
            found[protocol.name] = getattr(options, "URL", "") or f"ws{here.removeprefix('http')}"
    return found
