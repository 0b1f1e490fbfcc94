"""TLS for the servers that listen beside the HTTP port: a certificate, renewed while they run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import ssl
from collections.abc import AsyncIterator
from typing import Any

logger = logging.getLogger("workers.tls")

EVERY = 30.0
"""Seconds between two looks at the files of the certificate."""
HANDSHAKE = 10.0
"""Seconds a client may take for the handshake, which happens before it is counted or heard."""


class UnusableCertificate(Exception):
    """The server cannot speak TLS with what it was given; the text says why in a sentence."""


class Certificate:
    """A certificate and its key, in files; `context` always has the last ones that were good.

    Connections keep what they were opened with; new ones get the certificate as it is now.
    """

    def __init__(self, certificate: str, key: str = "") -> None:
        """
        Args:
            certificate: path of a PEM file with the certificate and its chain.
            key: path of the PEM file with the key, unless that is in the first one.

        Raises:
            UnusableCertificate: the files cannot be read, or do not fit together.
        """
        if not certificate:
            raise UnusableCertificate("There is a TLS key and no TLS certificate.")
        self._paths = (certificate, key or None)
        self._seen = self._look()
        self.context = self._load(_context())

    def renew(self) -> None:
        """Read the files again; if they are no good, say so and keep what there is."""
        self._seen = self._look()
        try:
            # A trial first: a renewed certificate beside the old key would spoil the context.
            self._load(_context())
            self._load(self.context)
        except UnusableCertificate as problem:
            logger.error("%s The one from before stays in use.", problem)
        else:
            logger.info("The TLS certificate %s was read again.", self._paths[0])

    def renew_if_changed(self) -> None:
        if self._look() != self._seen:
            self.renew()

    def _load(self, context: ssl.SSLContext) -> ssl.SSLContext:
        try:
            # Without a password the library would ask for one on the terminal.
            context.load_cert_chain(*self._paths, password="")
        except (OSError, ValueError) as problem:
            files = " and ".join(filter(None, self._paths))
            raise UnusableCertificate(f"The TLS certificate in {files}: {problem}.") from None
        return context

    def _look(self) -> list[tuple[int, int, int] | None]:
        """What tells one version of the files from another, through symbolic links."""
        found: list[tuple[int, int, int] | None] = []
        for path in filter(None, self._paths):
            try:
                status = os.stat(path)
            except OSError:
                found.append(None)
            else:
                found.append((status.st_ino, status.st_size, status.st_mtime_ns))
        return found


def _context() -> ssl.SSLContext:
    return ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)


def certificate_of(options: Any, certificate: str | None, key: str | None) -> Certificate | None:
    """Return the certificate that a command or else its group of options names; None for none.

    Raises:
        UnusableCertificate: it cannot be used.
    """
    files = certificate or options.TLS_CERTIFICATE, key or options.TLS_KEY
    return Certificate(*files) if any(files) else None


def add_arguments(parser: Any, group: str) -> None:
    parser.add_argument(
        "--tls-certificate",
        help="PEM file with a certificate and its chain: serve TLS "
        f'(default: OJS["{group}"]["TLS_CERTIFICATE"])',
    )
    parser.add_argument(
        "--tls-key",
        help=f'PEM file with its key, if that is another (default: OJS["{group}"]["TLS_KEY"])',
    )


def server_options(certificate: Certificate | None) -> dict[str, Any]:
    """What asyncio's servers are given."""
    if certificate is None:
        return {}
    return {"ssl": certificate.context, "ssl_handshake_timeout": HANDSHAKE}


@contextlib.asynccontextmanager
async def renewed(certificate: Certificate | None) -> AsyncIterator[None]:
    """Read the certificate again when its files change, and at once on SIGHUP."""
    if certificate is None:
        yield
        return
    loop = asyncio.get_running_loop()
    # Only a main thread hears signals, and Windows has no SIGHUP.
    with contextlib.suppress(ValueError, RuntimeError, NotImplementedError, AttributeError):
        loop.add_signal_handler(signal.SIGHUP, certificate.renew)
    watching = asyncio.create_task(_watch(certificate))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(certificate: Certificate) -> None:
    while True:
        await asyncio.sleep(EVERY)
        certificate.renew_if_changed()
