"""Which pages may use a server that asks for no key: those of its own site.

A browser sends requests on behalf of any page, to any address that its user can reach, and the
page cannot read the answer but need not. A key is what such a page does not have. Where none is
asked for (`ALLOW_ANONYMOUS`), the headers that browsers add tell them apart; clients that are no
browsers do not send these, and are served as ever.
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
"""A page of this very origin, or the user, who typed an address or opened a bookmark."""
SHOWN = 100


def check_page(method: str, meta: Meta) -> None:
    """Hold a request without a key to come from this site, or from no page at all.

    Raises:
        PermissionDenied: a browser sends it on behalf of another site's page.
    """
    origin, site = meta.get("HTTP_ORIGIN", ""), meta.get("HTTP_SEC_FETCH_SITE", "")
    if site in SAME_SITE or not (origin or site):
        return
    if origin:
        own = _is_trusted(origin) or (not site and _is_of_host(origin, hosts.named(meta)))
    else:
        # A link that somebody follows: no page gets to see where it leads.
        own = method in ("GET", "HEAD") and meta.get("HTTP_SEC_FETCH_MODE") == "navigate"
    if not own:
        raise _refusal(origin)


def check_type(meta: Meta) -> None:
    """Hold a body without a `Content-Type` to come with a key.

    A page of another site can send such a body without asking first; JSON, by its name, it cannot.

    Raises:
        InvalidRequest: it comes without one.
    """
    if not meta.get("HTTP_AUTHORIZATION"):
        raise InvalidRequest(
            "The request has a body and no Content-Type.",
            hint="Send 'Content-Type: application/openjobspec+json' (or application/json).",
        )


def check_socket(origin: str) -> None:
    """Hold a WebSocket handshake without a key to come from a page of this site.

    The page is served at another port than the socket, so its host name is what counts.

    Raises:
        PermissionDenied: it comes from another one.
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
    """Whether the site names this origin in `CSRF_TRUSTED_ORIGINS`, `*.` included."""
    scheme, netloc = origin.partition("://")[0].lower(), _netloc(origin)
    return any(
        trusted.scheme == scheme and is_same_domain(netloc, trusted.netloc.removeprefix("*"))
        for trusted in map(urlsplit, settings.CSRF_TRUSTED_ORIGINS)
    )


def _is_of_host(origin: str, host: str) -> bool:
    """Whether host and port are the same. The scheme may not be: a proxy may end HTTPS."""
    netloc = _netloc(origin)
    default = DEFAULT_PORTS.get(origin.partition("://")[0].lower(), "")
    return bool(netloc) and netloc.removesuffix(default) == host.lower().removesuffix(default)


def _netloc(origin: str) -> str:
    """Host and port of an origin; empty for what is none, such as `null`."""
    return origin.partition("://")[2].partition("/")[0].lower()
