"""Requests of this server to an address that a user typed, such as a webhook.

Such a request must not reach what only this server can reach: its own machine, the networks behind
it, the metadata of a cloud. A name is resolved once, and the connection goes to an address that was
checked, so that a name cannot mean something else a moment later. Redirects are followed only where
the caller says so, and each target is held to the same rules.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin, urlsplit

from ..conf import ojs_settings

TIMEOUT = 10.0
"""Seconds that a whole request may take, and each of its steps."""
EXCERPT = 500
"""Bytes that are read of a response."""
PORTS = {"http": 80, "https": 443}
INTERIM_RESPONSES = 20
"""How many are read over before the final one."""
REDIRECTS = frozenset({301, 302, 303, 307, 308})

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class OutboundError(Exception):
    """A request was not made, or there was no response; the text says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(_line_of(reason))


class Refused(OutboundError):
    """The address must not be connected to, whatever it is: trying again is no use."""


@dataclass(frozen=True)
class Target:
    """A URL, taken apart."""

    scheme: str
    host: str
    port: int
    path: str


@dataclass(frozen=True)
class Reply:
    """The beginning of a response."""

    status: int
    text: str
    """In one line."""
    location: str = ""
    """Where a redirect leads."""
    retry_after: str = ""
    """Header `Retry-After`, as it was sent."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def _line_of(text: str) -> str:
    """What a receiver sent, in one line that every database can store: PostgreSQL takes no NUL."""
    return " ".join(text.replace("\x00", " ").split())


def read_url(url: str, *, only_https: bool = False) -> Target:
    """Take a URL apart, without resolving its name.

    Raises:
        Refused: it is no complete `http` or `https` URL, has a user or a password, or names an
            address that is refused.
    """
    if not url.isascii() or not url.isprintable() or " " in url:
        raise Refused("A URL has only printable ASCII characters, and no spaces.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise Refused(f"This is not a URL: {problem}.") from problem
    if parts.scheme not in PORTS or not parts.hostname:
        raise Refused("A URL begins with http:// or https:// and a host.")
    if only_https and parts.scheme != "https":
        raise Refused("A URL must begin with https://.")
    if port == 0:
        raise Refused("A URL's port is between 1 and 65535.")
    if "@" in parts.netloc:
        raise Refused("A URL must not contain a user or a password.")
    try:
        address = ipaddress.ip_address(parts.hostname)
    except ValueError:
        pass  # a name
    else:
        if not is_allowed(address):
            raise Refused(_not_allowed(parts.hostname))
    path = parts.path or "/"
    if parts.query:
        path = f"{path}?{parts.query}"
    return Target(parts.scheme, parts.hostname, port or PORTS[parts.scheme], path)


def networks() -> list[Network]:
    """The networks that a site allows although they are not public (`OUTBOUND_NETWORKS`).

    Raises:
        ValueError: an entry is no network.
    """
    return [ipaddress.ip_network(text) for text in ojs_settings.OUTBOUND_NETWORKS]


def is_allowed(address: Address) -> bool:
    """Whether this server may connect to an address: a public one, or one that the site allows."""
    return all(map(_is_public, _meanings(address))) or any(
        each in network
        for each in _meanings(address)
        for network in networks()
        if network.version == each.version
    )


NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
"""Public IPv6 addresses are assigned from here alone. Others may lead to what is near: fec0::/10
within a site, 64:ff9b:1::/48 through a NAT64 of the network's own, ::/96 to an IPv4 address."""


NEAR = (
    ipaddress.IPv4Network("168.63.129.16"),  # the host of a virtual machine on Azure
    ipaddress.IPv4Network("192.0.0.0/24"),  # the network itself; metadata on Oracle's cloud
)
"""Addresses that lead to what is near, although they look public to older releases of Python."""


def _is_public(address: Address) -> bool:
    if any(address in network for network in NEAR):
        return False
    if isinstance(address, ipaddress.IPv6Address) and address not in GLOBAL_UNICAST:
        return False
    return address.is_global and not address.is_multicast


def _meanings(address: Address) -> Iterator[Address]:
    """An address, or the IPv4 address inside: packets to an IPv6 address may end up there."""
    if isinstance(address, ipaddress.IPv4Address):
        yield address
    elif address.ipv4_mapped is not None:
        yield address.ipv4_mapped
    elif address in NAT64:
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    else:
        yield address
        if address.sixtofour is not None:
            yield address.sixtofour
        if address.teredo is not None:
            yield from address.teredo


def _not_allowed(host: str) -> str:
    return (
        f"{host} is not a public address. To send requests there, name its network in "
        'OJS["OUTBOUND_NETWORKS"].'
    )


def resolve(target: Target) -> list[str]:
    """Return the addresses of a host that this server may connect to, in the resolver's order.

    Raises:
        OutboundError: the name cannot be resolved.
        Refused: it has only addresses that are refused.
    """
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise OutboundError(f"{target.host} cannot be resolved: {problem}") from problem
    texts = [str(entry[4][0]).partition("%")[0] for entry in found]
    allowed = [text for text in texts if is_allowed(ipaddress.ip_address(text))]
    if not allowed:
        raise Refused(_not_allowed(target.host))
    return list(dict.fromkeys(allowed))


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    timeout: float = TIMEOUT,
    redirects: int = 0,
    only_https: bool = False,
) -> Reply:
    """Send a POST request; return the beginning of the response, whatever its status.

    Args:
        timeout: seconds for everything, redirects included; what resolves names may take longer.
        redirects: how many are followed, each with the same request; one more is an error. With 0
            the redirect is the response.
        only_https: refuse URLs, also those of redirects, that are not encrypted.

    Raises:
        OutboundError: there was no response in time, or there were too many redirects.
        Refused: the URL, or what its name resolves to, is refused.
    """
    until = time.monotonic() + timeout
    for _ in range(redirects + 1):
        target = read_url(url, only_https=only_https)
        addresses = resolve(target)
        reply = _post(target, addresses, body, headers, until - time.monotonic())
        if not (redirects and reply.status in REDIRECTS and reply.location):
            return reply
        try:
            url = urljoin(url, reply.location)
        except ValueError as problem:
            raise Refused(f"{target.host} redirects to what is not a URL: {problem}.") from problem
    raise OutboundError(f"{target.host}: more than {redirects} redirects")


def _post(
    target: Target, addresses: list[str], body: bytes, headers: Mapping[str, str], timeout: float
) -> Reply:
    if timeout <= 0:
        raise OutboundError(f"{target.host}: timed out")
    try:
        with _connected(target, addresses, timeout) as line:
            # What the steps take together; for each of them the socket has the same limit.
            over = threading.Timer(timeout, _cut, [line])
            over.daemon = True
            over.start()
            try:
                return _exchange(target, line, body, headers)
            finally:
                over.cancel()
    except (OSError, http.client.HTTPException, ValueError) as problem:
        reason = str(problem) or type(problem).__name__
        raise OutboundError(f"{target.host}: {reason}") from problem


def sign(secret: str, body: bytes, moment: int) -> str:
    """Return the HMAC-SHA256 of `MOMENT.BODY`, in hexadecimal digits.

    Args:
        moment: seconds since 1970, so that a receiver can refuse an old request that is sent again.
    """
    return hmac.new(secret.encode(), b"%d." % moment + body, hashlib.sha256).hexdigest()


def _connected(target: Target, addresses: list[str], timeout: float) -> socket.socket:
    """Connect to the first address that answers."""
    for place, address in enumerate(addresses):
        try:
            line = socket.create_connection((address, target.port), timeout / len(addresses))
        except OSError:
            if place == len(addresses) - 1:
                raise
            continue
        line.settimeout(timeout)
        if target.scheme == "https":
            context = ssl.create_default_context()
            # The handshake comes later, when its time is limited as well.
            return context.wrap_socket(
                line, server_hostname=target.host, do_handshake_on_connect=False
            )
        return line
    raise OSError("there is no address")


class _Lines:
    """The lines of a response, of which it remembers the last."""

    last = b""

    def __init__(self, lines: Any) -> None:
        self._readline, self.close = lines.readline, lines.close

    def readline(self, limit: int = -1) -> bytes:
        self.last = self._readline(limit)
        return self.last


class _FinalResponse(http.client.HTTPResponse):
    """Reads over interim responses (RFC 9110 §15.2): the base class does so with 100 alone. Takes
    no response whose headers break off, which the base class does."""

    def begin(self) -> None:
        for _ in range(INTERIM_RESPONSES + 1):
            self._begin()
            if not http.HTTPStatus.SWITCHING_PROTOCOLS < self.status < 200:
                return
            self.headers = None  # type: ignore[assignment]  # begin() does nothing otherwise
        raise http.client.HTTPException("too many interim responses")

    def _begin(self) -> None:
        whole: Any = self.fp
        lines: Any = _Lines(whole)
        self.fp = lines
        try:
            super().begin()
        finally:
            if self.fp is lines:  # it was not closed
                self.fp = whole
        if lines.last not in (b"\r\n", b"\n"):
            raise http.client.HTTPException("the headers of the response did not end")


def _beginning(response: http.client.HTTPResponse) -> bytes:
    """What can be read of the body. Where it breaks off, the status has been received all the
    same, and decides."""
    try:
        return response.read(EXCERPT)
    except http.client.IncompleteRead as problem:
        return problem.partial
    except (OSError, http.client.HTTPException, ValueError):
        return b""


def _exchange(
    target: Target, line: socket.socket, body: bytes, headers: Mapping[str, str]
) -> Reply:
    connection = http.client.HTTPConnection(target.host, target.port)
    if isinstance(line, ssl.SSLSocket):
        line.do_handshake()
        connection = http.client.HTTPSConnection(target.host, target.port)
    connection.response_class = _FinalResponse
    connection.sock = line
    # It never connects by itself, which would resolve the name again.
    connection.auto_open = 0
    connection.request("POST", target.path, body, {"Connection": "close", **headers})
    response = connection.getresponse()
    return Reply(
        response.status,
        _line_of(_beginning(response).decode("utf-8", "replace")),
        response.getheader("Location", ""),
        response.getheader("Retry-After", ""),
    )


def _cut(line: socket.socket) -> None:
    """End whatever another thread is waiting for on this connection."""
    with contextlib.suppress(OSError):  # it has ended
        # Not that of `SSLSocket`, which would take the encryption away from the other thread.
        socket.socket.shutdown(line, socket.SHUT_RDWR)
