"""Worker protocols: one object describes each, and its package exports it as `PROTOCOL`.

`OJS["WORKER_PROTOCOLS"]` lists the packages; `jobs.conf` loads them, since each may have options of
its own. A package is imported while settings are read: its `__init__` imports no models, and names
everything that is needed later by its dotted path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from django.core.exceptions import ImproperlyConfigured

OJS = "ojs"
"""The protocol of requests and workers that do not name one."""
DEFAULT_PACKAGES = tuple(f"workers.bindings.{name}" for name in (OJS, "flare", "agq", "rota"))
SHARED = "/ojs/"
"""The path prefix of OJS HTTP, which producers and operators use as well as workers."""
NAME = re.compile(r"[a-z][a-z0-9]{0,15}")
"""A name starts the names of environment variables, up to the first `_`, and must fit columns."""
LISTENING = ("HOST", "PORT", "URL", "TLS_CERTIFICATE", "TLS_KEY")
"""Options that every protocol with a server must have."""


class Reports(StrEnum):
    """Whether workers report their state: running, quiet or terminating."""

    ALWAYS = "always"
    """Every heartbeat contains it."""
    OPTIONALLY = "optionally"
    """It is optional."""
    NEVER = "never"
    """The protocol cannot express it."""


@dataclass(frozen=True, kw_only=True)
class HTTP:
    """Endpoints below the URLs of the site."""

    path: str
    """Path prefix, without slashes at the ends: `flare/v1`."""
    urls: str
    """The module with their `urlpatterns`."""
    switch: str = ""
    """The option that enables them; without one they are always served."""
    in_manifest: bool = True
    """The manifest lists them by the protocol's name."""
    operations: str = ""
    """The module that describes them for the OpenAPI document."""

    @property
    def prefix(self) -> str:
        """The path segment that belongs only to this protocol: `/flare/`."""
        return f"/{self.path.partition('/')[0]}/"


@dataclass(frozen=True, kw_only=True)
class Server:
    """A process of its own, `manage.py runprotocol <name>`, beside the HTTP port.

    The class is called with a certificate (or None) and a health signal, in a running event loop;
    `await server.run(host, port, stop, say)` serves until the event `stop` is set, and calls `say`
    with a line when it listens.
    """

    factory: str
    """The class, by its dotted path."""
    schemes: tuple[str, str]
    """URL schemes without and with TLS: `("redis", "rediss")`."""
    path: str = ""
    """Path of its URL: `/work`."""
    needs: str = ""
    """A package that the protocol's extra installs, and that the server imports."""

    @property
    def is_installed(self) -> bool:
        return not self.needs or find_spec(self.needs) is not None


@dataclass(frozen=True, kw_only=True)
class WebSocket:
    """A WebSocket on the port of the HTTP endpoints; only the ASGI server serves it.

    `await serve(loop, socket)` serves one connection from its handshake to its end. `loop` and
    `socket` are described by `Loop` and `Socket` in `jobs.http.loop`.
    """

    path: str
    """Its path: `/work`."""
    serve: str
    """The function, by its dotted path."""
    switch: str = ""
    """The option that enables it; without one it is always served."""


@dataclass(frozen=True, kw_only=True)
class WorkerProtocol:
    """The properties of a protocol that other packages need."""

    name: str
    """Name in rows, in the manifest and, in capitals, among the settings: `agq`."""
    title: str
    """Display name: `AGQ`."""
    summary: str = ""
    """Its users in a few words: `workers with any Redis client`."""
    hears: frozenset[str] = frozenset()
    """The states that a response can ask a worker to enter: `quiet`, `terminate`."""
    reports: Reports = Reports.NEVER
    http: HTTP | None = None
    server: Server | None = None
    socket: WebSocket | None = None
    options: type[Any] | None = None
    """A dataclass of `jobs.conf.option()`s: `OJS["AGQ"]`, `OJS_AGQ_<NAME>`."""
    commands: str = ""
    """The module whose `COMMANDS` declare permissions (`jobs.access`)."""
    binding: str = ""
    """Its name in that table; by default, the title."""

    @property
    def group(self) -> str:
        """The name of its dictionary of options in `OJS`."""
        return self.name.upper()

    @property
    def named_in_table(self) -> str:
        return self.binding or self.title

    def can_hear(self, state: str) -> bool:
        """Whether a worker can be asked to enter `state`; `running` withdraws a `quiet`."""
        return ("quiet" if state == "running" else state) in self.hears


def undeclared(name: str) -> WorkerProtocol:
    """Describe the protocol of a worker that was recorded when its package was still listed."""
    return WorkerProtocol(name=name, title=name)


def declared_by(packages: Sequence[str]) -> tuple[WorkerProtocol, ...]:
    """Import the packages and return the protocols that they declare, in this order.

    Raises:
        ImproperlyConfigured: one cannot be imported or declares nothing usable, or two have the
            same name; the message names the package.
    """
    found: dict[str, WorkerProtocol] = {}
    for package in packages:
        protocol = _read(package)
        if protocol.name in found:
            raise _wrong(package, f"the name {protocol.name!r} is taken by another package")
        path = protocol.socket.path if protocol.socket else ""
        if path and path in {one.socket.path for one in found.values() if one.socket}:
            raise _wrong(package, f"the WebSocket {path!r} is taken by another package")
        found[protocol.name] = protocol
    return tuple(found.values())


def _read(package: Any) -> WorkerProtocol:
    if not isinstance(package, str):
        raise _wrong(package, "it must be the dotted path of a package")
    try:
        protocol = import_module(package).PROTOCOL
    except (ImportError, ValueError) as problem:
        raise _wrong(package, f"it cannot be imported: {problem}") from problem
    except AttributeError:
        raise _wrong(package, "it has no PROTOCOL") from None
    if not isinstance(protocol, WorkerProtocol):
        raise _wrong(package, "its PROTOCOL is no jobs.protocols.WorkerProtocol")
    if not NAME.fullmatch(protocol.name):
        raise _wrong(package, f"the name {protocol.name!r} must match {NAME.pattern}")
    if protocol.server is not None:
        options = protocol.options
        named = {option.name for option in fields(options)} if options else set()
        missing = [name for name in LISTENING if name not in named]
        if missing:
            raise _wrong(package, f"its server needs the options {', '.join(missing)}")
    if protocol.socket is not None and not protocol.socket.path.startswith("/"):
        raise _wrong(package, f"the path of its WebSocket, {protocol.socket.path!r}, needs a '/'")
    return protocol


def _wrong(package: Any, why: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f'OJS["WORKER_PROTOCOLS"] names {package!r}: {why}.')
