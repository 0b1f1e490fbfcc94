"""Checks the host that a request names, on every path: Django's `ALLOWED_HOSTS`.

By DNS rebinding, a page of another site can reach a server on the user's own machine under the
page's own host name, and then has the same origin. The `Host` header, which contains that name,
is the only sign of it.
"""

from __future__ import annotations

import logging
from typing import Any

from django.conf import settings
from django.core.exceptions import DisallowedHost
from django.http import HttpRequest

from ..errors import InvalidRequest
from .once import Once
from .request import Meta

logger = logging.getLogger("jobs.http")

MOST = 1_000
SHOWN = 100
_served: set[tuple[Any, ...]] = set()
_refused = Once()


def is_served(meta: Meta) -> bool:
    """Whether `ALLOWED_HOSTS` has the host that a request names.

    Args:
        meta: the WSGI environment. A host is checked only once.
    """
    asked = (
        meta.get("HTTP_HOST"),
        meta.get("HTTP_X_FORWARDED_HOST") if settings.USE_X_FORWARDED_HOST else None,
        meta.get("SERVER_NAME"),
        meta.get("SERVER_PORT"),
        settings.DEBUG,
        tuple(settings.ALLOWED_HOSTS),
    )
    if asked in _served:
        return True
    request = HttpRequest()
    request.META = {"SERVER_NAME": "", "SERVER_PORT": "", **meta}
    try:
        request.get_host()
    except DisallowedHost:
        return False
    if len(_served) >= MOST:
        _served.clear()
    _served.add(asked)
    return True


def answers_to(host: str) -> bool:
    """Whether `ALLOWED_HOSTS` has `host`, a name with or without a port."""
    return is_served({"HTTP_HOST": host})


def named(meta: Meta) -> str:
    """The host that a request names, unchanged and unchecked."""
    forwarded = meta.get("HTTP_X_FORWARDED_HOST") if settings.USE_X_FORWARDED_HOST else ""
    return str(forwarded or meta.get("HTTP_HOST") or meta.get("SERVER_NAME") or "")


def check_host(meta: Meta) -> None:
    """
    Raises:
        InvalidRequest: `ALLOWED_HOSTS` does not have the host that the request names. Logged once
            for each host, for at most a hundred hosts.
            for each host, and for a hundred of them at most.
    """
    if is_served(meta):
        return
    host = named(meta)[:SHOWN]
    if _refused.is_new(host):
        logger.warning(
            "Requests that name the host %r are refused: it is not in ALLOWED_HOSTS.", host
        )
    raise InvalidRequest(
        f"This server does not answer to the host {host!r}.",
        hint="Ask for it by one of the names in ALLOWED_HOSTS.",
        host=host,
    )
