"""Restricts a server that requires no key to pages of its own site.

A browser sends requests on behalf of any page, to any address that its user can reach. The page
cannot read the response, but does not have to. What such a page lacks is a key. If none is
required (`ALLOW_ANONYMOUS`), the headers that browsers add identify the page; other clients do
not send these headers, and are not affected.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.utils.http import is_same_domain

from ..errors import InvalidRequest, PermissionDenied
from . import hosts
from .request import Meta

DEFAULT_PORTS = {"http": ":80", "https": ":443"}
SAME_SITE = ("same-origin", "none")
"""A page of the same origin, or a user who typed an address or opened a bookmark."""
SHOWN = 100


def check_page(method: str, meta: Meta) -> None:
    """Require that a request without a key comes from a page of this site, or from no page.

    Raises:
        PermissionDenied: a browser sent it on behalf of another site's page.
    """
    origin, site = meta.get("HTTP_ORIGIN", ""), meta.get("HTTP_SEC_FETCH_SITE", "")
    if site in SAME_SITE or not (origin or site):
        return
    if origin:
        own = _is_trusted(origin) or (not site and _is_of_host(origin, hosts.named(meta)))
    else:
        # The user followed a link: the linking page cannot read the response.
        own = method in ("GET", "HEAD") and meta.get("HTTP_SEC_FETCH_MODE") == "navigate"
    if not own:
        raise _refusal(origin)


def check_type(meta: Meta) -> None:
    """Require a key for a body without a `Content-Type`.

    A page of another site can send such a body without a preflight request, but not one that is
    declared as JSON.

    Raises:
        InvalidRequest: there is no key.
    """
    if not meta.get("HTTP_AUTHORIZATION"):
        raise InvalidRequest(
            "The request has a body and no Content-Type.",
            hint="Send 'Content-Type: application/openjobspec+json' (or application/json).",
        )


def check_socket(origin: str) -> None:
    """Require that a WebSocket handshake without a key comes from a page of this site.

    The page may be served from another port than the socket, so only its host name is compared.

    Raises:
        PermissionDenied: it comes from another site.
    """
    if origin and not (_is_trusted(origin) or hosts.answers_to(_netloc(origin))):
        raise _refusal(origin)


def _refusal(origin: str) -> PermissionDenied:
    page = f"the page of another site ({origin[:SHOWN]!r})" if origin else "a page of another site"
    return PermissionDenied(
        f"This request comes from {page} and carries no API key.",
        hint="Send an API key, or list the page's origin in CSRF_TRUSTED_ORIGINS.",
        origin=origin[:SHOWN],
    )


def _is_trusted(origin: str) -> bool:
    """Whether `CSRF_TRUSTED_ORIGINS` has this origin; supports `*.`."""
    scheme, netloc = origin.partition("://")[0].lower(), _netloc(origin)
    return any(
        trusted.scheme == scheme and is_same_domain(netloc, trusted.netloc.removeprefix("*"))
        for trusted in map(urlsplit, settings.CSRF_TRUSTED_ORIGINS)
    )


def _is_of_host(origin: str, host: str) -> bool:
    """Whether host and port are equal. The scheme may differ: a proxy may terminate HTTPS."""
    netloc = _netloc(origin)
    default = DEFAULT_PORTS.get(origin.partition("://")[0].lower(), "")
    return bool(netloc) and netloc.removesuffix(default) == host.lower().removesuffix(default)


def _netloc(origin: str) -> str:
    """Host and port of an origin; empty for anything else, such as `null`."""
    return origin.partition("://")[2].partition("/")[0].lower()
