"""Quickstart's choices before Django reads its settings, so that trying it out requires none.

On an address that only this machine reaches, the server is open to all and in DEBUG. On any other
it is neither: the port may be reachable by anyone, and a DEBUG page shows settings and source to
any client that provokes an error. Variables that are set are left as they are.
"""

from __future__ import annotations

import argparse
import errno
import ipaddress
import os
import secrets
import socket
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from .environment import data_folder, flag
from .health import bracketed, own_address

LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")

prepared = False
"""Whether `prepare` has run in this process."""


class Unusable(Exception):
    """The request cannot be met; the text gives the reason in a sentence."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: %(default)s); one that other machines reach makes "
        "API keys necessary",
    )
    parser.add_argument(
        "--port",
        type=_port,
        # A text, so that it goes through `_port` as well.
        default=os.environ.get("PORT") or "8000",
        help="default: PORT, or 8000",
    )
    parser.add_argument(
        "--no-demo",
        action="store_true",
        help="server, reaper and cluster only: no demonstration worker, no demonstration jobs",
    )
    parser.add_argument(
        "--database-url",
        help="postgresql://… or sqlite:////absolute/path (default: DATABASE_URL, which also keeps "
        "a password out of the list of processes; else SQLite in data/)",
    )


def _port(text: str) -> int:
    if not (text.isdecimal() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 65535.")
    return int(text)


@dataclass(frozen=True)
class Address:
    """Where the server listens."""

    host: str
    """As given by the user."""
    ip: str
    port: int

    @classmethod
    def find(cls, host: str, port: int) -> Address:
        """Return the address to listen on.

        Raises:
            Unusable: `host` is no address.
        """
        try:
            found = socket.getaddrinfo(host or "?", port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as problem:
            raise Unusable(f"{host!r} is not an address to listen on ({problem}).") from None
        # A name such as localhost has addresses of both kinds; most clients try IPv4.
        ips = sorted((str(entry[4][0]) for entry in found), key=lambda ip: ":" in ip)
        return cls(host, ips[0], port)

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.ip.partition("%")[0]).is_loopback

    @property
    def is_everywhere(self) -> bool:
        return ipaddress.ip_address(self.ip.partition("%")[0]).is_unspecified

    @property
    def own_ip(self) -> str:
        """The address at which this machine reaches the server."""
        return own_address(self.ip)

    @property
    def url(self) -> str:
        return f"http://{bracketed(self.own_ip)}:{self.port}"

    @property
    def outside_url(self) -> str | None:
        """The URL at which other machines can probably reach it."""
        if self.is_local:
            return None
        host = _outside_ip() if self.is_everywhere else self.ip
        return host and f"http://{bracketed(host)}:{self.port}"

    def check_free(self) -> None:
        """Check that the port is free.

        Raises:
            Unusable: nothing can listen there.
        """
        family = socket.AF_INET6 if ":" in self.ip else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As the server does it: connections of a server that has just ended do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.ip, self.port))
                probe.listen(1)
            except OSError as problem:
                raise Unusable(self._why_not(problem)) from None

    def _why_not(self, problem: OSError) -> str:
        if problem.errno == errno.EADDRINUSE:
            return (
                f"Port {self.port} of {self.host} is in use: stop what listens there, or choose "
                f"another with --port or PORT."
            )
        if problem.errno == errno.EACCES:
            return f"Port {self.port} needs more rights than this user has: choose one above 1023."
        return f"Cannot listen on {self.host}, port {self.port}: {problem.strerror}."


def _outside_ip() -> str | None:
    """This machine's address on the network through which it would reach others, if any."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Chooses a route; a datagram socket sends nothing when it connects.
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return str(probe.getsockname()[0])


def prepare(arguments: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Complete the environment from which settings are read, here and in the child processes.

    Raises:
        Unusable: nothing can be started with these arguments and variables.
    """
    global prepared
    parser = argparse.ArgumentParser("manage.py quickstart", add_help=False)
    add_arguments(parser)
    options, _ = parser.parse_known_args(arguments)
    address = Address.find(options.host, options.port)
    try:
        _prepare_access(address, environ)
    except ImproperlyConfigured as problem:
        raise Unusable(str(problem)) from None
    environ.setdefault("OJS_FLARE_ENABLED", "1")
    if options.database_url:
        environ["DATABASE_URL"] = options.database_url
    _check_database_url(environ.get("DATABASE_URL", ""))
    folder = data_folder(environ)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (environ.get("DJANGO_SECRET_KEY") or environ.get("DJANGO_SECRET_KEY_FILE")):
            environ["DJANGO_SECRET_KEY"] = secret_key(folder)
    except OSError as problem:
        raise Unusable(f"Cannot write to {folder}: {problem.strerror}.") from None
    prepared = True


def _prepare_access(address: Address, environ: MutableMapping[str, str]) -> None:
    environ.setdefault("DJANGO_DEBUG", "1" if address.is_local else "0")
    if not address.is_local:
        if flag(environ, "OJS_ALLOW_ANONYMOUS"):
            raise Unusable(
                "OJS_ALLOW_ANONYMOUS would serve everybody who can reach "
                f"{address.host}: unset it, or listen on 127.0.0.1."
            )
    elif flag(environ, "DJANGO_DEBUG"):
        environ.setdefault("OJS_ALLOW_ANONYMOUS", "1")
    named = environ.get("DJANGO_ALLOWED_HOSTS")
    hosts = [named] if named else [*LOCAL_NAMES, address.host, socket.gethostname()]
    if not named and address.is_everywhere:
        hosts.append(_outside_ip() or "")
    # The demonstration uses this host name, and must get through in any case.
    hosts.append(bracketed(address.own_ip))
    environ["DJANGO_ALLOWED_HOSTS"] = ",".join(dict.fromkeys(filter(None, hosts)))


def _check_database_url(url: str) -> None:
    if not url:
        return
    try:
        database = dj_database_url.parse(url)
        if not database["ENGINE"].endswith(("postgresql", "sqlite3")):
            raise ValueError("another database")
    except ValueError:
        # The problem itself is not shown: it may contain the URL, and with it a password.
        raise Unusable(
            "The database URL must look like postgresql://user:password@host:5432/name or "
            "sqlite:////absolute/path."
        ) from None
    if database["ENGINE"].endswith("sqlite3") and database["NAME"] in ("", ":memory:"):
        raise Unusable("Several processes share the database: SQLite needs a file for that.")


def secret_key(folder: Path) -> str:
    """Return the key kept in `folder`, creating it the first time: sessions outlive a restart."""
    path = folder / "secret-key"
    if not path.exists():
        draft = folder / f"secret-key.{os.getpid()}"
        descriptor = os.open(draft, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with open(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(50))
        draft.replace(path)
    return path.read_text().strip()
